"""Options that take names with commas between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click


def _names(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """``-Q a,b -Q c`` as (a, b, c)."""
    return tuple(name.strip() for value in values for name in value.split(",") if name.strip())


def names_option(*declarations: str, help: str) -> Callable[[Any], Any]:
    """An option that takes names with commas between them, once or several times."""
    return click.option(*declarations, multiple=True, metavar="NAMES", callback=_names, help=help)
