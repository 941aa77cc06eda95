"""How commands print: tables for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from umbel.cli.exits import WrongUse

if TYPE_CHECKING:  # rich takes 50 ms, which --help and --json don't pay
    from rich.console import Console

_WIDE = 10_000


def console(no_color: bool) -> Console:
    """A console that prints what it is given, unchanged; unbounded where nobody watches."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else _WIDE
    return Console(
        no_color=no_color or None, width=width, markup=False, highlight=False, emoji=False
    )


def print_table(
    headers: Sequence[str], rows: Iterable[Sequence[object]], *, no_color: bool = False
) -> None:
    """Columns as wide as they need; numbers to the right."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    lines = [list(row) for row in rows]
    for index, header in enumerate(headers):
        numeric = bool(lines) and all(isinstance(line[index], (int, float)) for line in lines)
        table.add_column(header, justify="right" if numeric else "left", overflow="fold")
    for line in lines:
        table.add_row(*(f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in line))
    console(no_color).print(table)


def print_json(value: object) -> None:
    """`value` as JSON on lines of its own; what JSON doesn't know, as text."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def local_time(at: float) -> str:
    """Unix seconds as ISO 8601 in the time zone of this machine, to the second."""
    return datetime.fromtimestamp(at, UTC).astimezone().isoformat(" ", "seconds")


def count(number: int, noun: str) -> str:
    """``1 message``, ``1,200 messages``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def confirm(question: str) -> None:
    """Go on only after a yes; `click.Abort` after a no. Without a terminal there is no yes."""
    if not sys.stdin.isatty():
        raise WrongUse(f"{question} There is no terminal to ask at: add --force to go on")
    click.confirm(question, abort=True, err=True)
