"""The scoreboard: what each pool process is doing, readable after its death.

One locked file in shared memory per run. Its owner process writes a slot; the supervisor, or a
later run on the same host, reads it. Because the file outlives a SIGKILL, what a process had
*decided* is settled as decided, and only what was *running* is buried.

::

    header    4 KiB   magic, run id, the boot time at which the last good heartbeat was sent, and
                      the location of the broker that knows the run
    slot 0    132 KiB words (8 bytes each), the running task's texts, a ring of decided outcomes
    slot 1    …

The lane word is ``lease * 2 | ended``. Leases are handed out, marked and started in order, so a
lease above the word's never began, the word's own is running or has ended, any lower has ended.
A decided outcome is written to the ring before the word says ended.

The file's lock belongs to one open file description, which the whole process tree of the run
shares: it is free only once every process of the run is gone.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from struct import pack_into, unpack_from
from typing import Final

from umbel.exceptions import ImproperlyConfigured

MAGIC: Final = b"UMBEL01\n"
HEADER_BYTES: Final = 4096
TEXT_OFFSET: Final = 256
TEXT_BYTES: Final = 4096 - TEXT_OFFSET
RING_OFFSET: Final = 4096
RING_SIZE: Final = 64
ENTRY_BYTES: Final = 2048
"""A retry, which carries its next message, takes 1.2 KiB and more."""
OUTCOME_BYTES: Final = ENTRY_BYTES - 16
SLOT_BYTES: Final = RING_OFFSET + RING_SIZE * ENTRY_BYTES
NANOSECONDS: Final = 1_000_000_000

_RUN_ID: Final = slice(8, 72)
_BEAT_WORD: Final = 16
_LOCATION: Final = slice(256, HEADER_BYTES)
_PATTERN: Final = "umbel-*.board"


class Word(IntEnum):
    """The words of a slot, by index."""

    OWNER = 0
    """n of the owner ``<run>#<n>``; 0 where the slot is free."""
    PID = 1
    LANE = 2
    """``lease * 2 | ended`` of the newest lease that was started."""
    SKIP_FROM = 3
    SKIP_TO = 4
    """Leases above SKIP_FROM up to SKIP_TO have been given back and must not start."""
    BEGUN = 5
    """The mark that the broker has confirmed: everything up to this lease."""
    HIGH = 6
    """The highest lease that was handed out."""
    READY = 7
    """1 once the process fetches."""
    STOP = 8
    """1: finish what runs, give back the rest, and end."""
    STARTED_AT = 9
    SOFT_AT = 10
    HARD_AT = 11
    """Of the running task, in nanoseconds of boot time; 0 is no limit."""
    TERMINATE = 12
    """The lease that is to be ended by a signal."""
    TEXT = 14
    """Length of the running task's texts."""
    FETCHING = 15
    """1 while a turn is under way that may bring more leases."""
    HEARD = 16
    """What of STOP the process has heard."""


@dataclass(frozen=True, slots=True)
class Running:
    """What a slot says of the task that runs: times in seconds of boot time."""

    lease: int
    task_id: str
    task: str
    args: str
    kwargs: str
    started_at: float
    soft_at: float | None
    hard_at: float | None


class Slot:
    """One pool process's part of the board."""

    def __init__(self, memory: memoryview) -> None:
        self._bytes = memory
        self.words = memory[:TEXT_OFFSET].cast("Q")

    def clear(self) -> None:
        """Make the slot free and empty."""
        self._bytes[:TEXT_OFFSET] = bytes(TEXT_OFFSET)
        for index in range(RING_SIZE):
            pack_into("<Q", self._bytes, RING_OFFSET + index * ENTRY_BYTES, 0)

    @property
    def number(self) -> int:
        return self.words[Word.OWNER]

    @property
    def pid(self) -> int:
        return self.words[Word.PID]

    def start(
        self, lease: int, texts: tuple[str, ...], now: float, soft: float | None, hard: float | None
    ) -> None:
        """Say that `lease` starts: the word is written last, so a reader sees all or nothing."""
        words = self.words
        text = "\0".join(texts).encode("utf-8", "replace")[:TEXT_BYTES]
        self._bytes[TEXT_OFFSET : TEXT_OFFSET + len(text)] = text
        words[Word.TEXT] = len(text)
        started = int(now * NANOSECONDS)
        words[Word.STARTED_AT] = started
        words[Word.SOFT_AT] = started + int(soft * NANOSECONDS) if soft else 0
        words[Word.HARD_AT] = started + int(hard * NANOSECONDS) if hard else 0
        words[Word.LANE] = lease << 1

    def end(self, lease: int) -> None:
        """Say that `lease` has ended: only after `decide`, or once it is settled."""
        self.words[Word.LANE] = lease << 1 | 1

    def decide(self, lease: int, outcome: bytes) -> bool:
        """Keep a decided outcome; False where it is too large for its place in the ring."""
        if len(outcome) > OUTCOME_BYTES:
            return False
        at = RING_OFFSET + lease % RING_SIZE * ENTRY_BYTES
        pack_into("<QQ", self._bytes, at, 0, len(outcome))
        self._bytes[at + 16 : at + 16 + len(outcome)] = outcome
        pack_into("<Q", self._bytes, at, lease)
        return True

    def decided(self) -> Iterator[tuple[int, bytes]]:
        """(lease, outcome) of all that the ring still holds, settled or not, by lease."""
        entries = []
        for index in range(RING_SIZE):
            at = RING_OFFSET + index * ENTRY_BYTES
            lease, size = unpack_from("<QQ", self._bytes, at)
            if lease and size <= OUTCOME_BYTES:
                entries.append((lease, bytes(self._bytes[at + 16 : at + 16 + size])))
        yield from sorted(entries)

    def running_lease(self) -> int:
        """The lease that runs, or 0."""
        word = self.words[Word.LANE]
        return 0 if word & 1 else word >> 1

    def skipped(self, lease: int) -> bool:
        """Whether `lease` was given back before it could start."""
        return self.words[Word.SKIP_FROM] < lease <= self.words[Word.SKIP_TO]

    def running(self) -> Running | None:
        """The running task, as one consistent reading; None between tasks."""
        words = self.words
        for _ in range(3):
            word = words[Word.LANE]
            if word & 1 or not word:
                return None
            text = bytes(self._bytes[TEXT_OFFSET : TEXT_OFFSET + words[Word.TEXT]])
            times = words[Word.STARTED_AT], words[Word.SOFT_AT], words[Word.HARD_AT]
            if words[Word.LANE] != word:
                continue
            task_id, task, args, kwargs = (text.decode("utf-8", "replace").split("\0") + [""] * 4)[
                :4
            ]
            started, soft, hard = (value / NANOSECONDS for value in times)
            return Running(
                word >> 1, task_id, task, args, kwargs, started, soft or None, hard or None
            )
        return None

    def release(self) -> None:
        self.words.release()
        self._bytes.release()


class Scoreboard:
    """The board of one run, mapped into this process."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor
        size = os.fstat(descriptor).st_size
        self._map = mmap.mmap(descriptor, size)
        self._view = memoryview(self._map)
        self._beat = self._view[_BEAT_WORD * 8 : _BEAT_WORD * 8 + 8].cast("d")
        count = (size - HEADER_BYTES) // SLOT_BYTES
        starts = [HEADER_BYTES + index * SLOT_BYTES for index in range(count)]
        self.slots = [Slot(self._view[start : start + SLOT_BYTES]) for start in starts]

    @classmethod
    def create(cls, run: str, slots: int, location: str, folder: Path | None = None) -> Scoreboard:
        """A new board, locked for as long as a process of this run lives.

        `location` is that of the run's broker. Raises `ImproperlyConfigured` without room for it.
        """
        path = (folder or default_folder()) / f"umbel-{run}.board"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # `dead_boards` may just be looking at it
        size = HEADER_BYTES + slots * SLOT_BYTES
        try:
            _reserve(descriptor, size)
        except OSError as error:
            path.unlink()
            os.close(descriptor)
            raise ImproperlyConfigured(
                f"the scoreboard {path} can't get its {size} bytes: {error.strerror}; make room "
                f"in {path.parent}, or start fewer processes (-c)"
            ) from error
        head = MAGIC + run.encode().ljust(_RUN_ID.stop - _RUN_ID.start, b"\0")
        os.pwrite(descriptor, head, 0)
        os.pwrite(descriptor, _head_of(location), _LOCATION.start)
        return cls(path, descriptor)

    @classmethod
    def of_dead_run(cls, path: Path, run: str) -> Scoreboard | None:
        """The board of `run` where all its processes are gone, now locked by us; else None.

        None too where there is no such file or it isn't that run's.
        """
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            head = os.pread(descriptor, _RUN_ID.stop, 0)
            if head[:8] == MAGIC and head[_RUN_ID].rstrip(b"\0") == run.encode():
                return cls(path, descriptor)
        except (OSError, ValueError):
            pass
        os.close(descriptor)
        return None

    @property
    def run(self) -> str:
        return bytes(self._view[_RUN_ID]).rstrip(b"\0").decode()

    def is_of(self, location: str) -> bool:
        """Whether the broker at `location` is this run's."""
        return bytes(self._view[_LOCATION]).rstrip(b"\0") == _head_of(location)

    @property
    def beat_sent_at(self) -> float:
        """Boot time at which the last good heartbeat was sent."""
        return self._beat[0]

    @beat_sent_at.setter
    def beat_sent_at(self, boot: float) -> None:
        self._beat[0] = boot

    def free_slot(self) -> int:
        """The index of a slot that nobody has."""
        return next(index for index, slot in enumerate(self.slots) if not slot.number)

    def close(self) -> None:
        """Unmap; the lock goes with the last process that has the file open."""
        for slot in self.slots:
            slot.release()
        self._beat.release()
        self._view.release()
        self._map.close()
        os.close(self.descriptor)

    def remove(self) -> None:
        """Close, and delete the file: nothing of the run is left to be read."""
        self.path.unlink(missing_ok=True)
        self.close()


def dead_boards(location: str, folder: Path | None = None) -> Iterator[Scoreboard]:
    """The boards of dead runs of one broker, locked by us; whoever takes one closes it."""
    for path in (folder or default_folder()).glob(_PATTERN):
        run = path.stem.removeprefix("umbel-")
        board = Scoreboard.of_dead_run(path, run)
        if board is None:
            continue
        if board.is_of(location):
            yield board
        else:
            board.close()


def _head_of(location: str) -> bytes:
    """A location, cut where it wouldn't fit."""
    return location.encode()[: HEADER_BYTES - _LOCATION.start]


def _reserve(descriptor: int, size: int) -> None:
    """Make the file that large now: a write to memory without room behind it would be SIGBUS."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
    else:
        os.ftruncate(descriptor, size)


def default_folder() -> Path:
    """Shared memory where the system has it, so that no write waits for a disk."""
    shared = Path("/dev/shm")
    return shared if os.access(shared, os.W_OK) else Path(tempfile.gettempdir())
