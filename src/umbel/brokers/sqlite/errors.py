"""What SQLite's errors mean for whoever reads them, always with the absolute path."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from typing import Final

from umbel.exceptions import OperationalError

Trace = Callable[[str], object]

_FULL: Final = 13
_READ_ONLY: Final = (3, 8, 23)
_DAMAGED: Final = (11, 26)
_BUSY: Final = (5, 6, 15)
_CANNOT_OPEN: Final = 14
_IO: Final = 10


def _code(error: BaseException) -> int:
    """SQLite's primary result code; 0 where there is none."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def is_busy(error: BaseException) -> bool:
    """Another process's transaction is in the way."""
    return _code(error) in _BUSY


def is_about_the_file(error: sqlite3.Error) -> bool:
    """The connection is of no use any more; a new one may be."""
    return _code(error) in (*_DAMAGED, *_READ_ONLY, _CANNOT_OPEN, _IO)


def sentence(error: sqlite3.Error, path: str) -> str:
    """What happened to `path`, and what to do."""
    code = _code(error)
    if code in _BUSY:
        return (
            f"{path} was locked by another process for too long; nothing was done. Look for a "
            "stopped process or another program that holds the file, then repeat the call"
        )
    if code == _FULL:
        return f"the disk of {path} is full; nothing was done. Make space, then repeat the call"
    if code in _READ_ONLY:
        return (
            f"{path} can't be written: {error}. Give this user the right to write to the file "
            "and to its directory"
        )
    if code in _DAMAGED:
        return (
            f"{path} is not a database or is damaged: {error}. It was left as it is; name "
            "another file, or move this one away and keep it for repair"
        )
    if code == _CANNOT_OPEN:
        return (
            f"{path} can't be opened: {error}. Its directory must exist and let this user "
            "create files in it"
        )
    return f"{path} can't be used: {error} ({type(error).__name__}); nothing was done"


def gone(path: str) -> str:
    return (
        f"{path} was deleted or replaced while it was open; nothing was done, and what the old "
        "file held is lost. The next call opens the file that is there now, or a new one"
    )


def newer(path: str, found: int, known: int) -> str:
    return (
        f"{path} was made by a newer Umbel (its format is {found}, this one knows {known}); "
        "use that version, or name another file"
    )


def foreign(path: str) -> str:
    return f"{path} is a SQLite database of another program; give Umbel a file of its own"


def check_place(path: str, unavailable: type[OperationalError]) -> None:
    """Raise where the file can't be, before SQLite says so in fewer words."""
    directory = os.path.dirname(path)
    if not os.path.isdir(directory):
        raise unavailable(
            f"{path} can't be opened: the directory {directory} doesn't exist. Create it, or "
            "name a file elsewhere"
        )
    if os.path.isdir(path):
        raise unavailable(f"{path} is a directory; name a file in it")
