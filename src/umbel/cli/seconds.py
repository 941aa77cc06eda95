"""Options that take seconds."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from umbel.cli.exits import WrongUse

_MOST: Final = 1e9
"""30 years: what is longer is a slip of the keyboard, and more than some clocks can wait for."""


def seconds(option: str, *, zero: bool = False) -> Callable[[str], float]:
    """The type of `option`: finite seconds below a billion, above 0 or, with `zero`, from 0."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if 0 < value < _MOST or (zero and value == 0):
            return value
        least = "from 0" if zero else "above 0"
        raise WrongUse(f"{option} {text:.80}: expected seconds, {least} and below a billion")

    return parse
