"""What the measured tasks note: their number and the time, whatever library runs them.

``note(number)`` writes into a file of this process in the folder that ``BENCH_NOTES`` names, mapped
into memory, so that noting costs the same for all, needs no hook of the library, and survives
whatever way the process ends. The harness reads the files while the worker runs.
"""

from __future__ import annotations

import itertools
import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Final, NamedTuple

_RECORD: Final = struct.Struct("qd")
_next: Iterator[int] = itertools.count()
_map: mmap.mmap | None = None


def note(number: int) -> None:
    """Thread-safe: each call has a record of its own."""
    _RECORD.pack_into(_map or _opened(), 16 * next(_next), number, monotonic())


def _opened() -> mmap.mmap:
    global _map
    folder, size = os.environ["BENCH_NOTES"], 16 * int(os.environ["BENCH_CAPACITY"])
    file = os.open(f"{folder}/{os.getpid()}", os.O_RDWR | os.O_CREAT, 0o600)
    os.ftruncate(file, size)
    if _map is None:  # else another thread was quicker
        _map = mmap.mmap(file, size)
    os.close(file)
    return _map


def _forget() -> None:
    """A forked child has a file of its own."""
    global _map, _next
    _map, _next = None, itertools.count()


os.register_at_fork(after_in_child=_forget)


class Noted(NamedTuple):
    """One call of `note`. `at`: `time.monotonic`, which all processes of a machine share."""

    number: int
    at: float


class Notes:
    """The harness's view of a folder of notes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def processes(self) -> int:
        """How many processes have noted something."""
        return sum(1 for _ in self.folder.iterdir())

    @property
    def count(self) -> int:
        """How many notes there are, give or take those that are being written."""
        return sum(_count(path) for path in self.folder.iterdir())

    def read(self) -> list[Noted]:
        """All of them, oldest first."""
        noted = [
            Noted(*record)
            for path in self.folder.iterdir()
            for record in _RECORD.iter_unpack(path.read_bytes())
            if record[1]
        ]
        return sorted(noted, key=lambda each: each.at)


def _count(path: Path) -> int:
    """Records are filled one after the other, so the first empty one can be searched for."""
    with path.open("rb") as file:
        low, high = 0, os.fstat(file.fileno()).st_size // 16
        while low < high:
            middle = (low + high) // 2
            file.seek(middle * 16)
            if _RECORD.unpack(file.read(16))[1]:
                low = middle + 1
            else:
                high = middle
        return low
