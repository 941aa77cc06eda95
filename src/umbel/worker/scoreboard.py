"""The scoreboard: what each pool process is doing, readable after its death.

One locked file in shared memory per run. Its owner process writes a slot; the supervisor, or a
later run on the same host, reads it. Because the file outlives a SIGKILL, what a process had
*decided* is settled as decided, and only what was *running* is buried.

::

    header    4 KiB  magic, run id, the boot time at which the last good heartbeat was sent, how
                     many lanes a slot has, and the location of the broker that knows the run
    slot 0    words (8 bytes each); the lanes: a word, times and texts of each; places (2 KiB
              each) for decided outcomes
    slot 1    …

A lane runs one task at a time; a process has one, or as many as its pool runs tasks at once. A
lane's word is ``lease * 2 | ended``. Leases are handed out, marked and started in order, so a lease
above the highest word never began, a lane's own is running or has ended, any other below has ended.
A decided outcome is written to a place before the word says ended.

The file's lock belongs to one open file description, which the whole process tree of the run
shares: it is free only once every process of the run is gone.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from struct import pack_into, unpack_from
from typing import Final

from umbel.exceptions import ImproperlyConfigured

MAGIC: Final = b"UMBEL02\n"
HEADER_BYTES: Final = 4096
WORDS_BYTES: Final = 256
LANE_WORDS: Final = 6
"""Of each lane: its word, three times, the length of its texts, the lease that is to be ended."""
PLACE_BYTES: Final = 2048
"""A retry, which carries its next message, takes 1.2 KiB and more."""
SPARE_PLACES: Final = 63
"""Outcomes that may wait for their settlement while every lane runs the next task."""
OUTCOME_BYTES: Final = PLACE_BYTES - 16
NANOSECONDS: Final = 1_000_000_000

_RUN_ID: Final = slice(8, 72)
_BEAT_WORD: Final = 16
_LANES_WORD: Final = 17
_LOCATION: Final = slice(256, HEADER_BYTES)
_PATTERN: Final = "umbel-*.board"


class Word(IntEnum):
    """The words of a slot, by index."""

    OWNER = 0
    """n of the owner ``<run>#<n>``; 0 where the slot is free."""
    PID = 1
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
    HANDED_AT = 9
    """When leases were last handed out, in nanoseconds of boot time."""
    FETCHING = 15
    """1 while a turn is under way that may bring more leases."""
    HEARD = 16
    """What of STOP the process has heard."""
    RETIRING = 17
    """1 once the process takes no more tasks, and ends with those that it runs."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """Where things lie in a slot whose process runs `lanes` tasks at once."""

    lanes: int

    @property
    def places(self) -> int:
        """How many outcomes there is room for."""
        return self.lanes + SPARE_PLACES

    @property
    def text_bytes(self) -> int:
        """For the texts of one lane."""
        return 3072 if self.lanes == 1 else 512

    @property
    def texts_at(self) -> int:
        return WORDS_BYTES + LANE_WORDS * 8 * self.lanes

    @property
    def places_at(self) -> int:
        end = self.texts_at + self.lanes * self.text_bytes
        return -(-end // 4096) * 4096

    @property
    def slot_bytes(self) -> int:
        return -(-(self.places_at + self.places * PLACE_BYTES) // 4096) * 4096


@dataclass(frozen=True, slots=True)
class Running:
    """What a slot says of a task that runs: times in seconds of boot time."""

    lane: int
    lease: int
    task_id: str
    task: str
    args: str
    kwargs: str
    started_at: float
    soft_at: float | None
    hard_at: float | None


class Slot:
    """One pool process's part of the board.

    Of each lane, by index: `lane_words`; `started_at`, `soft_at` and `hard_at` of what runs, in
    nanoseconds of boot time, 0 is no limit; `terminate`, ``lease * 256 + signal`` of what is to be
    ended.
    """

    def __init__(self, memory: memoryview, geometry: Geometry) -> None:
        self._bytes = memory
        self._geometry = geometry
        self._text_bytes = geometry.text_bytes
        self._texts_at = geometry.texts_at
        self._places_at = geometry.places_at
        self.words = memory[:WORDS_BYTES].cast("Q")
        table = memory[WORDS_BYTES : geometry.texts_at].cast("Q")
        (
            self.lane_words,
            self.started_at,
            self.soft_at,
            self.hard_at,
            self._text_sizes,
            self.terminate,
        ) = self._columns = [
            table[index * geometry.lanes : (index + 1) * geometry.lanes]
            for index in range(LANE_WORDS)
        ]
        table.release()

    def clear(self) -> None:
        """Make the slot free and empty."""
        self._bytes[: self._texts_at] = bytes(self._texts_at)
        for place in self.places:
            pack_into("<Q", self._bytes, self._places_at + place * PLACE_BYTES, 0)

    @property
    def places(self) -> range:
        """Where decided outcomes can be kept."""
        return range(self._geometry.places)

    @property
    def lanes(self) -> range:
        return range(self._geometry.lanes)

    @property
    def number(self) -> int:
        return self.words[Word.OWNER]

    @property
    def pid(self) -> int:
        return self.words[Word.PID]

    def start(
        self,
        lane: int,
        lease: int,
        texts: tuple[str, ...],
        now: float,
        soft: float | None,
        hard: float | None,
    ) -> None:
        """Say that `lease` starts: the word is written last, so a reader sees all or nothing."""
        text = "\0".join(texts).encode("utf-8", "replace")[: self._text_bytes]
        at = self._texts_at + lane * self._text_bytes
        self._bytes[at : at + len(text)] = text
        self._text_sizes[lane] = len(text)
        started = int(now * NANOSECONDS)
        self.started_at[lane] = started
        self.soft_at[lane] = started + int(soft * NANOSECONDS) if soft else 0
        self.hard_at[lane] = started + int(hard * NANOSECONDS) if hard else 0
        self.lane_words[lane] = lease << 1

    def end(self, lane: int, lease: int) -> None:
        """Say that `lease` has ended: only after `decide`, or once it is settled."""
        self.lane_words[lane] = lease << 1 | 1

    def decide(self, place: int, lease: int, outcome: bytes) -> bool:
        """Keep a decided outcome; False where it is too large for its place."""
        if len(outcome) > OUTCOME_BYTES:
            return False
        at = self._places_at + place * PLACE_BYTES
        pack_into("<QQ", self._bytes, at, 0, len(outcome))
        self._bytes[at + 16 : at + 16 + len(outcome)] = outcome
        pack_into("<Q", self._bytes, at, lease)
        return True

    def decided(self) -> Iterator[tuple[int, bytes]]:
        """(lease, outcome) of all that the places still hold, settled or not, by lease."""
        entries = []
        for place in self.places:
            at = self._places_at + place * PLACE_BYTES
            lease, size = unpack_from("<QQ", self._bytes, at)
            if lease and size <= OUTCOME_BYTES:
                entries.append((lease, bytes(self._bytes[at + 16 : at + 16 + size])))
        yield from sorted(entries)

    def newest(self) -> int:
        """The highest lease that was started, or 0."""
        return max(self.lane_words) >> 1

    def running_leases(self) -> list[int]:
        """The leases that run, in order."""
        return sorted(word >> 1 for word in self.lane_words if word and not word & 1)

    def lane_of(self, lease: int) -> int | None:
        """The lane in which `lease` runs."""
        word = lease << 1
        return next((lane for lane in self.lanes if self.lane_words[lane] == word), None)

    def has_free_lane(self) -> bool:
        return any(not word or word & 1 for word in self.lane_words)

    def skipped(self, lease: int) -> bool:
        """Whether `lease` was given back before it could start."""
        return self.words[Word.SKIP_FROM] < lease <= self.words[Word.SKIP_TO]

    def running(self) -> Iterator[Running]:
        """The tasks that run, each as one consistent reading."""
        for lane in self.lanes:
            if (found := self._running(lane)) is not None:
                yield found

    def _running(self, lane: int) -> Running | None:
        for _ in range(3):
            word = self.lane_words[lane]
            if word & 1 or not word:
                return None
            at = self._texts_at + lane * self._text_bytes
            text = bytes(self._bytes[at : at + self._text_sizes[lane]])
            times = self.started_at[lane], self.soft_at[lane], self.hard_at[lane]
            if self.lane_words[lane] != word:
                continue
            task_id, task, args, kwargs = (text.decode("utf-8", "replace").split("\0") + [""] * 4)[
                :4
            ]
            started, soft, hard = (value / NANOSECONDS for value in times)
            return Running(
                lane, word >> 1, task_id, task, args, kwargs, started, soft or None, hard or None
            )
        return None

    def release(self) -> None:
        for view in (self.words, *self._columns, self._bytes):
            view.release()


class Scoreboard:
    """The board of one run, mapped into this process."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor
        size = os.fstat(descriptor).st_size
        self._map = mmap.mmap(descriptor, size)
        self._view = memoryview(self._map)
        self._beat = self._view[_BEAT_WORD * 8 : _BEAT_WORD * 8 + 8].cast("d")
        geometry = Geometry(self._lanes())
        step = geometry.slot_bytes
        starts = range(HEADER_BYTES, size - step + 1, step)
        self.slots = [Slot(self._view[start : start + step], geometry) for start in starts]

    @classmethod
    def create(
        cls, run: str, slots: int, location: str, folder: Path | None = None, *, lanes: int = 1
    ) -> Scoreboard:
        """A new board, locked for as long as a process of this run lives.

        `location` is that of the run's broker, `lanes` how many tasks run at once in a process.
        Raises `ImproperlyConfigured` without room for it.
        """
        path = (folder or default_folder()) / f"umbel-{run}.board"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # `dead_boards` may just be looking at it
        size = HEADER_BYTES + slots * Geometry(lanes).slot_bytes
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
        os.pwrite(descriptor, lanes.to_bytes(8, sys.byteorder), _LANES_WORD * 8)
        os.pwrite(descriptor, _head_of(location), _LOCATION.start)
        os.pwrite(descriptor, head, 0)
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

    def _lanes(self) -> int:
        word = self._view[_LANES_WORD * 8 : _LANES_WORD * 8 + 8]
        return int.from_bytes(word, sys.byteorder)

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
