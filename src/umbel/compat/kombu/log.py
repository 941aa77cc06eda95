"""``kombu.log``."""

from __future__ import annotations

import logging
from typing import Any, Final

from umbel.compat.missing import guard

__all__ = ["LOG_LEVELS", "get_logger", "get_loglevel"]

_NUMBERS: Final = logging.getLevelNamesMapping()
LOG_LEVELS: Final[dict[Any, Any]] = {
    **_NUMBERS,
    **{number: logging.getLevelName(number) for number in _NUMBERS.values()},
}
"""Levels by name, and names by level."""


def get_logger(logger: str | logging.Logger) -> logging.Logger:
    """The logger of this name; one that is given as it is."""
    return logging.getLogger(logger) if isinstance(logger, str) else logger


def get_loglevel(level: str | int) -> int:
    """The level of ``"INFO"``; one that is given as it is. Raises `KeyError`."""
    return int(LOG_LEVELS[level.upper()]) if isinstance(level, str) else level


guard(__name__)
