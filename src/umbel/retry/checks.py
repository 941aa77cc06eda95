"""Checks of the values that retry options are made of."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import cast

ExceptionTypes = tuple[type[BaseException], ...]


def exception_types(name: str, value: object) -> ExceptionTypes:
    """`value`, a class or several, as a tuple. Raises `ValueError`."""
    items = tuple(value) if isinstance(value, Iterable) else (value,)
    for item in items:
        if not (isinstance(item, type) and issubclass(item, BaseException)):
            raise ValueError(f"{name} names {item!r}; expected exception classes")
    return cast(ExceptionTypes, items)


def finite(name: str, value: object) -> float:
    """`value` as a number of seconds. Raises `ValueError`."""
    try:
        number = float(cast(float, value))
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{name} is {value!r}; expected a number of seconds")
    return number


def number_from(name: str, value: object, least: float, what: str = "seconds") -> None:
    """Raises `ValueError` for what isn't a number from `least` on; True and text aren't."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{name} is {value!r}; expected a number of {what}")
    if finite(name, value) < least:
        raise ValueError(f"{name} is {value!r}; expected a number of {what} from {least:g}")
