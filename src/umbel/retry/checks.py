"""Checks of the values that retry options are made of."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import cast

from umbel.saferepr import safe_repr

ExceptionTypes = tuple[type[BaseException], ...]


def exception_types(name: str, value: object) -> ExceptionTypes:
    """`value`, a class or several, as a tuple. Raises `ValueError`."""
    items = tuple(value) if isinstance(value, Iterable) else (value,)
    for item in items:
        if not (isinstance(item, type) and issubclass(item, BaseException)):
            raise ValueError(f"{name} names {safe_repr(item, 80)}; expected exception classes")
    return cast(ExceptionTypes, items)


def finite(name: str, value: object) -> float:
    """`value` as a number of seconds. Raises `ValueError`."""
    try:
        number = float(cast(float, value))
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{name} is {safe_repr(value, 80)}; expected a number of seconds")
    return number


def mapping(name: str, value: object, example: str) -> Mapping[str, object]:
    """`value` as a dict with texts as keys. Raises `TypeError`."""
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return value
    raise TypeError(f"{name} is {safe_repr(value, 80)}; expected a dict such as {example}")


def number_from(name: str, value: object, least: float, what: str = "seconds") -> None:
    """Raises `ValueError` for what isn't a number from `least` on; True and text aren't."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{name} is {safe_repr(value, 80)}; expected a number of {what}")
    if finite(name, value) < least:
        raise ValueError(f"{name} is {value!r}; expected a number of {what} from {least:g}")
