"""How commands print: tables for people, JSON for programs."""

from __future__ import annotations

import codecs
import contextlib
import json
import logging
import re
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, TextIO

import click

from umbel.cli.exits import WrongUse

if TYPE_CHECKING:  # rich takes 50 ms, which --help and --json don't pay
    from rich.console import Console

_WIDE = 10_000
_NAME = 200
"""Characters of a name or an id in a sentence."""
# Unicode's categories Cc, which terminals take for orders, and Cs, which can't be written.
_UNSEEN: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_NOT_IN_JSON: Final = re.compile("[\x7f-\x9f\ud800-\udfff]")
_SHORT: Final = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}


def visible(text: str, *, lines: bool = False) -> str:
    r"""`text`, which a stranger may have written, with ``\x1b`` in place of an escape character.

    With `lines`, ends of lines and tabs stay.
    """

    def escaped(found: re.Match[str]) -> str:
        char = found[0]
        if lines and char in "\n\t":
            return char
        return _SHORT.get(char) or (f"\\x{ord(char):02x}" if char < "\xff" else f"\\u{ord(char):x}")

    return _UNSEEN.sub(escaped, text)


def one_line(text: str) -> str:
    """A sentence, which may hold a stranger's words, without breaks and control characters."""
    return visible(" ".join(text.split()))


def quoted(text: str) -> str:
    """`text` between quotes for a sentence, cut where it is longer than any name needs to be."""
    return repr(text if len(text) <= _NAME else f"{text[:_NAME]}…")


def message_of(error: BaseException) -> str:
    """What an exception says; a stranger's may raise another one when it is asked."""
    try:
        return str(error)
    except Exception as second:
        return f"(its message can't be shown: {type(second).__name__})"


class _Remarks:
    """Where remarks go: None is standard error, as they are; else a stream that takes JSON."""

    json_to: TextIO | None = None


def remarks_in_json(switched_on: bool) -> None:
    """Whether remarks are lines of a log that has only JSON objects.

    They go to the standard error of now, also when a worker has redirected it to its log.
    """
    _Remarks.json_to = sys.stderr if switched_on else None


def remark(line: str, level: int = logging.WARNING) -> None:
    """A line on standard error. Where that can't be written to, nobody is there to be told."""
    stream = _Remarks.json_to
    with contextlib.suppress(OSError):
        if stream is None:
            click.echo(line, err=True)
        else:
            click.echo(_as_json(line.removeprefix("umbel: "), level), file=stream)


def _as_json(line: str, level: int) -> str:
    from umbel.worker.jsonlog import JsonFormatter

    record = logging.LogRecord("umbel.cli", level, "", 0, line, None, None)
    return JsonFormatter().format(record)


def print_exactly(text: str) -> None:
    """Text as it is, for a program; what would steer a terminal is made visible on one."""
    if sys.stdout.isatty():
        click.echo(visible(text, lines=True))
    else:
        click.echo(text.encode(errors="backslashreplace").decode(), color=True)


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
    """Columns as wide as they need; numbers to the right. Cells are one `visible` line each."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    lines = [list(row) for row in rows]
    for index, header in enumerate(headers):
        numeric = bool(lines) and all(isinstance(line[index], (int, float)) for line in lines)
        table.add_column(header, justify="right" if numeric else "left", overflow="fold")
    for line in lines:
        table.add_row(
            *(f"{cell:,}" if isinstance(cell, int) else visible(str(cell)) for cell in line)
        )
    console(no_color).print(table)


def print_json(value: object) -> None:
    """`value` as JSON on lines of its own; what JSON doesn't know, as text."""
    # Where the encoding lacks letters, JSON has its own way to write them.
    unicode = codecs.lookup(sys.stdout.encoding or "ascii").name.startswith("utf")
    text = json.dumps(value, indent=2, ensure_ascii=not unicode, default=str)
    # The rest of the control characters than those that JSON itself doesn't allow.
    click.echo(_NOT_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text))


def local_time(at: float) -> str:
    """Unix seconds as ISO 8601 in the time zone of this machine, to the second."""
    return datetime.fromtimestamp(at, UTC).astimezone().isoformat(" ", "seconds")


def count(number: int, noun: str) -> str:
    """``1 message``, ``1,200 messages``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def confirm(question: str) -> None:
    """Go on only after a yes; `click.Abort` after a no. Without a terminal there is no yes."""
    question = visible(question)
    if not sys.stdin.isatty():
        raise WrongUse(f"{question} There is no terminal to ask at: add --force to go on")
    click.confirm(question, abort=True, err=True)
