"""How much Python one message is, on the memory broker: calls, files, depth of the stack.

*publish* is one ``delay()``. *consume* is what a pool process does for a message, in both of its
threads, from the turn that brings it to the turn that settles it, its result stored: messages that
wait are run by a real `PoolProcess` in this process, and its calls are divided by their number.
"""

from __future__ import annotations

import sys
import threading
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Final

from bench.bed import Ground
from bench.figures import DoesNotAddUp, Figure, Workload

from umbel import Umbel
from umbel.clock import boot_time
from umbel.states import SUCCESS
from umbel.worker.forkserver import Order
from umbel.worker.process import STOP_WARM, PoolProcess, Setup
from umbel.worker.scoreboard import Scoreboard, Word

BEFORE: Final = 256
"""Messages before those that are counted, so that what is worked out once is worked out."""
COUNTED: Final = 2048


class Count:
    """A profile function that counts calls of Python functions, of all threads that have it."""

    def __init__(self, *, counts: bool = True) -> None:
        self.counts = counts
        self.calls = 0
        self.files: set[str] = set()
        self.deepest = 0
        self._depths: dict[int, int] = {}

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        thread = threading.get_ident()
        depth = self._depths.get(thread, 0)
        if event == "call":
            self._depths[thread] = depth + 1
            if self.counts:
                self.calls += 1
                self.deepest = max(self.deepest, depth + 1)
                self.files.add(frame.f_code.co_filename)
        elif event == "return":
            self._depths[thread] = depth - 1


def measure(ground: Ground) -> Mapping[str, float]:
    return publish() | consume(ground.folder)


def publish() -> dict[str, float]:
    with Umbel("calls", broker="memory://bench-calls", set_as_current=False) as app:

        @app.task
        def noop(number: int) -> None: ...

        for number in range(3):  # what is worked out once is worked out
            noop.delay(number)
        count = Count()
        sys.setprofile(count)
        noop.delay(3)
        sys.setprofile(None)
        app.broker.purge([app.conf.task_default_queue])
    return _figures("publish", count, 1)


def consume(folder: Path) -> dict[str, float]:
    count, done = Count(counts=False), list[int]()
    with Umbel("calls", broker="memory://bench-calls", set_as_current=False) as app:
        board = Scoreboard.create(uuid.uuid4().hex, 1, app.broker.location, folder)
        words = board.slots[0].words

        @app.task
        def noop(number: int) -> None:
            done.append(number)
            count.counts = BEFORE <= number < BEFORE + COUNTED
            if number == 2 * BEFORE + COUNTED - 1:
                words[Word.STOP] = STOP_WARM

        results = noop.delay_many((number,) for number in range(2 * BEFORE + COUNTED))
        board.beat_sent_at = boot_time()
        interval = sys.getswitchinterval()
        process = PoolProcess(_setup(app, board), Order(slot=0, number=1))
        threading.setprofile(count)
        sys.setprofile(count)
        try:
            process.run()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
            sys.setswitchinterval(interval)  # the process has set its own
        good = sum(result.state == SUCCESS for result in results)
        (queue,) = app.broker.queues()
        app.broker.leave(board.run)
        board.remove()
    if done != list(range(len(results))) or good != len(results) or queue.ready or queue.leased:
        raise DoesNotAddUp(f"{len(done)} of {len(results)} ran, {good} are SUCCESS; left: {queue}")
    return _figures("consume", count, COUNTED)


def _setup(app: Umbel, board: Scoreboard) -> Setup:
    """That of a prefork worker's process with every option at its default."""
    return Setup(
        app=app,
        run=board.run,
        hostname="bench@here",
        queues=(app.conf.task_default_queue,),
        board=board,
        info=b"{}",
        lease_time=app.conf.worker_lease_time,
        pool="prefork",
        processes=1,
        lanes=1,
        multiplier=None,
        max_tasks=None,
        max_memory=None,
        time_limit=None,
        soft_time_limit=None,
        started_in=".",
        replaces=True,
    )


def _figures(what: str, count: Count, messages: int) -> dict[str, float]:
    return {
        f"calls, {what}": count.calls / messages,
        f"files, {what}": len(count.files),
        f"depth, {what}": count.deepest,
    }


WORKLOAD = Workload(
    "calls",
    "Python functions called by one delay(), and by a pool process for one of many waiting "
    "messages, on the memory broker; the files that they are in, and the depth of the stack",
    tuple(
        Figure(f"{kind}, {what}", "per message", digits=1 if kind == "calls" else 0)
        for what in ("publish", "consume")
        for kind in ("calls", "files", "depth")
    ),
    measure,
)
