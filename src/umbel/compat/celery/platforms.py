"""``celery.platforms``: what a process can be asked; what makes it a daemon isn't here."""

from __future__ import annotations

import platform
import signal
from typing import Any, Final

from umbel.compat.missing import guard

__all__ = [
    "EX_FAILURE",
    "EX_OK",
    "EX_UNAVAILABLE",
    "EX_USAGE",
    "IS_WINDOWS",
    "SYSTEM",
    "IS_macOS",
    "isatty",
    "pyimplementation",
    "signal_name",
]

SYSTEM: Final = platform.system()
IS_macOS: Final = SYSTEM == "Darwin"
IS_WINDOWS: Final = SYSTEM == "Windows"
EX_OK: Final = 0
EX_FAILURE: Final = 1
EX_USAGE: Final = 64
EX_UNAVAILABLE: Final = 69


def isatty(fh: Any) -> bool:
    """Whether a file is a terminal; False for what can't tell."""
    try:
        return bool(fh.isatty())
    except (AttributeError, OSError, ValueError):
        return False


def signal_name(signum: int) -> str:
    """``'SIGTERM'`` for 15. Raises `ValueError` for a number that is none."""
    return signal.Signals(signum).name


def pyimplementation() -> str:
    """Which Python this is, such as ``'CPython'``."""
    return platform.python_implementation()


guard(__name__)
