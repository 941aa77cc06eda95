"""The desk between the threads of a pool process.

The I/O thread (`Consumer`) takes turns at the broker; the main thread starts what they bring, and
runs it in one or many lanes. They meet here in batches, so that the interpreter lock changes hands
once per batch, not once per task.

Giving back is decided by one rule, whoever does it (this I/O thread, or the supervisor while the
process is stopped): *write SKIP_TO, then read the newest lease that has started; what is above it
is given back*. The main thread does it the other way round: *write the lane's word, then read
SKIP_TO*. So a lease is either seen as started by the giver, or as given back by the main thread.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue

from umbel.clock import boot_time
from umbel.message import Delivery, Settlement
from umbel.worker.execution import Execution
from umbel.worker.scoreboard import NANOSECONDS, Slot, Word

AVERAGE_WEIGHT = 0.2


class Refused:
    """A settlement whose follow-up no queue would take; the task ends as `Unroutable`."""

    def __init__(self, delivery: Delivery, reason: str) -> None:
        self.delivery = delivery
        self.reason = reason


Answer = Callable[[Refused | None], object]
"""Told None once a settlement is done, or why it was refused."""


class Desk:
    """What the threads share. Attributes are written by one thread only, as noted.

    `lanes` is how many tasks run at once. `interrupt` lets the I/O thread return from the broker's
    `wait`.
    """

    def __init__(
        self,
        slot: Slot,
        *,
        interrupt: Callable[[], None],
        exclusive_turns: bool = False,
    ) -> None:
        self.slot = slot
        self.lock = threading.Lock()
        self.outcomes: deque[Settlement] = deque()
        """Decided, not yet taken into a turn (lanes → I/O)."""
        self.hand_in = self.outcomes.append
        self.unsettled: dict[int, Execution] = {}
        """Started, not yet settled, by lease (main adds, I/O removes)."""
        self.places: SimpleQueue[int] = SimpleQueue()
        """Where on the scoreboard the outcome of one more task can be kept (I/O → main)."""
        self.free_lanes: SimpleQueue[int] = SimpleQueue()
        """Lanes without a task (lanes → main)."""
        for place in slot.places:
            self.places.put(place)
        for lane in slot.lanes:
            self.free_lanes.put(lane)
        self.newest = 0
        """The newest lease that has started, and when (main)."""
        self.newest_at = 0.0
        self.handed_at = 0.0
        """When leases were last handed out (I/O)."""
        self.handed = 0
        """How many batches were handed out (I/O), and how many the main thread is done with."""
        self.started = 0
        self.average: float | None = None
        """Moving average of the time an execution takes, in seconds (lanes)."""
        self.retiring = False
        """This process has run its share of tasks (lanes)."""
        self.answers: dict[int, Answer] = {}
        """Who waits for the settlement of a lease (lanes add, I/O removes)."""
        self.kept: set[int] = set()
        """Of `answers`, what is on the scoreboard, so that a death can't take it."""
        self.bell: Callable[[], None] | None = None
        """Rung after a batch was handed out, where the main thread can't block (main)."""
        # Held while something starts, and during a turn. They are one lock where nothing may start
        # during a turn (`Features.exclusive_turns`); with many lanes something runs during most
        # turns anyway.
        self.start_gate = threading.Lock()
        exclusive = exclusive_turns and len(slot.lanes) == 1
        self.turn_gate = self.start_gate if exclusive else threading.Lock()
        self._interrupt = interrupt
        self._is_at_the_broker = False
        self._batches: SimpleQueue[list[Delivery] | None] = SimpleQueue()
        self._calls: SimpleQueue[None] = SimpleQueue()

    @property
    def lanes(self) -> int:
        """How many tasks run at once."""
        return len(self.slot.lanes)

    @property
    def stopping(self) -> bool:
        """Finish what runs and give back the rest (supervisor)."""
        return bool(self.slot.words[Word.STOP])

    @property
    def unkept(self) -> int:
        """How many tasks run whose outcome isn't on the scoreboard yet."""
        return self.lanes - self.free_lanes.qsize() - len(self.kept)

    # The side of the main thread and the lanes.

    def next_batch(self) -> list[Delivery] | None:
        """Blocks for the next begun deliveries; None once there will be no more."""
        return self._batches.get()

    def batch_started(self) -> None:
        """All of a batch has been started, or given back."""
        self.started += 1
        self.call()

    def has_batch(self) -> bool:
        """Whether `next_batch` wouldn't block."""
        return not self._batches.empty()

    def start(
        self, execution: Execution, lane: int, soft: float | None, hard: float | None
    ) -> bool:
        """Say that an execution starts in `lane`, with these limits in seconds; False, and it must
        not, where it was given back meanwhile. There has to be one of the `places`."""
        lease = execution.delivery.lease
        execution.place = self.places.get()
        self.unsettled[lease] = execution
        now = boot_time()
        with self.start_gate:
            self.slot.start(lane, lease, execution.texts, now, soft, hard)
        self.newest_at = now
        self.newest = lease
        if self.is_given_back(lease):
            self.settled(lease)  # the I/O thread may have done it
            self.slot.end(lane, lease)
            self.free_lanes.put(lane)
            return False
        return True

    def is_given_back(self, lease: int) -> bool:
        """Whether a lease that a lane's word already names was given back before that."""
        if lease > self.slot.words[Word.SKIP_TO]:
            return False
        with self.lock:
            return self.slot.skipped(lease)

    def keep(self, lease: int, outcome: bytes) -> bool:
        """Write a decided outcome to its place on the scoreboard; False where it is too large."""
        return self.slot.decide(self.unsettled[lease].place, lease, outcome)

    def await_settlement(self, settlement: Settlement, answer: Answer, *, kept: bool) -> None:
        """Hand in, and have `answer` told by the I/O thread how it went."""
        self.answers[settlement.lease] = answer
        if kept:
            self.kept.add(settlement.lease)
        self.hand_in(settlement)
        self.call()

    def retire(self) -> None:
        """Take no more: what this process still runs may take long, so another is started."""
        self.retiring = True
        self.slot.words[Word.RETIRING] = 1

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
        if self._is_at_the_broker:
            self._interrupt()

    # The I/O thread's side.

    def hand_out(self, batch: list[Delivery]) -> None:
        self.handed += 1
        self._batches.put(batch)
        self._ring()

    def wait_for_call(self, timeout: float) -> None:
        """Block until somebody calls, or `timeout` seconds; takes all calls at once."""
        try:
            self._calls.get(timeout=timeout)
            while not self._calls.empty():
                self._calls.get_nowait()
        except Empty:
            return

    def wait_at(self, broker: Callable[[], object]) -> None:
        """Call `broker`, which blocks, unless somebody calls or has called."""
        self._is_at_the_broker = True
        try:
            if self._calls.empty():
                broker()
        finally:
            self._is_at_the_broker = False
        self.wait_for_call(0)

    def give_back(self) -> range:
        """Forbid the start of whatever was handed out and hasn't started: those leases."""
        words = self.slot.words
        with self.lock:
            high = words[Word.HIGH]
            words[Word.SKIP_TO] = high
            newest = self.slot.newest()
            words[Word.SKIP_FROM] = newest
        return range(newest + 1, high + 1)

    def note_handed_out(self, highest: int) -> None:
        """Leases up to `highest` are here; with the time, so that nobody takes them for stuck."""
        self.handed_at = boot_time()
        self.slot.words[Word.HANDED_AT] = int(self.handed_at * NANOSECONDS)
        self.slot.words[Word.HIGH] = highest

    def settled(self, lease: int) -> Execution | None:
        """Forget a started lease; its place is free."""
        execution = self.unsettled.pop(lease, None)
        if execution is not None:
            self.places.put(execution.place)
        return execution

    def tell(self, lease: int, refused: Refused | None) -> None:
        """Answer whoever waits for the settlement of `lease`."""
        answer = self.answers.pop(lease, None)
        if answer is not None:
            self.kept.discard(lease)
            answer(refused)

    def close(self) -> None:
        self._batches.put(None)
        self._ring()

    def _ring(self) -> None:
        if self.bell is not None:
            self.bell()
