"""The desk between the two threads of a pool process.

The I/O thread (`Consumer`) takes turns at the broker; the main thread executes. They meet here
in batches, so that the interpreter lock changes hands once per batch, not once per task.

Giving back is decided by one rule, whoever does it (this I/O thread, or the supervisor while the
process is stopped): *write SKIP_TO, then read the lane word; what is above the word is given
back*. The main thread does it the other way round: *write the lane word, then read SKIP_TO*. So
a lease is either seen as started by the giver, or as given back by the main thread.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import AbstractContextManager, nullcontext
from queue import Empty, SimpleQueue

from umbel.message import Delivery, Settlement
from umbel.worker.execution import Execution
from umbel.worker.scoreboard import RING_SIZE, Slot, Word

AVERAGE_WEIGHT = 0.2


class Refused:
    """A settlement whose follow-up no queue would take; the task ends as `Unroutable`."""

    def __init__(self, delivery: Delivery, reason: str) -> None:
        self.delivery = delivery
        self.reason = reason


class Desk:
    """What the threads share. Attributes are written by one thread only, as noted."""

    def __init__(self, slot: Slot, *, exclusive_turns: bool = False) -> None:
        self.slot = slot
        self.lock = threading.Lock()
        self.outcomes: deque[Settlement] = deque()
        """Decided, not yet taken into a turn (main → I/O)."""
        self.unsettled: dict[int, Execution] = {}
        """Started, not yet settled, by lease (main adds, I/O removes)."""
        self.floor = 1
        """No lease below this one is unsettled (I/O)."""
        self.average: float | None = None
        """Moving average of the time an execution takes, in seconds (main)."""
        self.retiring = False
        """This process has run its share of tasks (main)."""
        self.awaited = 0
        """The lease whose settlement the main thread waits for (main)."""
        self.kept = False
        """The awaited outcome is on the scoreboard, so a death can't take it (main)."""
        self.answers: SimpleQueue[Refused | None] = SimpleQueue()
        """For `awaited`: None once it is settled, or why it was refused (I/O)."""
        self.gate: AbstractContextManager[object] = (
            threading.Lock() if exclusive_turns else nullcontext()
        )
        """Held during a turn where nothing may start meanwhile (`Features.exclusive_turns`)."""
        self._batches: SimpleQueue[list[Delivery] | None] = SimpleQueue()
        self._calls: SimpleQueue[None] = SimpleQueue()

    @property
    def stopping(self) -> bool:
        """Finish what runs and give back the rest (supervisor)."""
        return bool(self.slot.words[Word.STOP])

    # The main thread's side.

    def next_batch(self) -> list[Delivery] | None:
        """Blocks for the next begun deliveries; None once there will be no more."""
        return self._batches.get()

    def has_room(self, lease: int) -> bool:
        """Whether the ring's place for `lease` is no longer needed by an older outcome."""
        return lease - self.floor < RING_SIZE

    def is_given_back(self, lease: int) -> bool:
        """Whether a lease that the lane word already names was given back before that."""
        if lease > self.slot.words[Word.SKIP_TO]:
            return False
        with self.lock:
            return self.slot.skipped(lease)

    def hand_in(self, settlement: Settlement) -> None:
        self.outcomes.append(settlement)

    def note_runtime(self, seconds: float) -> None:
        """Follow a change fast upwards: one long task says more than many short ones."""
        average = self.average
        if average is None or seconds > average * 8:
            self.average = seconds
        else:
            self.average = average + AVERAGE_WEIGHT * (seconds - average)

    def call(self) -> None:
        """Wake the I/O thread."""
        self._calls.put(None)

    # The I/O thread's side.

    def hand_out(self, batch: list[Delivery]) -> None:
        self._batches.put(batch)

    def wait_for_call(self, timeout: float) -> None:
        """Block until the main thread calls, or `timeout` seconds; takes all calls at once."""
        try:
            self._calls.get(timeout=timeout)
            while not self._calls.empty():
                self._calls.get_nowait()
        except Empty:
            return

    def give_back(self) -> range:
        """Forbid the start of whatever was handed out and hasn't started: those leases."""
        words = self.slot.words
        with self.lock:
            high = words[Word.HIGH]
            words[Word.SKIP_TO] = high
            newest = words[Word.LANE] >> 1
            words[Word.SKIP_FROM] = newest
        return range(newest + 1, high + 1)

    def settled(self, lease: int) -> None:
        """Forget a started lease."""
        self.unsettled.pop(lease, None)

    def raise_floor(self) -> None:
        """Work out the floor anew, after a turn."""
        with self.lock:
            self.floor = min(list(self.unsettled), default=self.slot.words[Word.HIGH] + 1)

    def close(self) -> None:
        self._batches.put(None)
