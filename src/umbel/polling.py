"""Waiting for results where nobody can tell of them: asking, at growing intervals."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from math import inf
from typing import Final

from umbel.message import Result
from umbel.states import READY_STATES

FIRST: Final = 0.005
GROWTH: Final = 1.4
LONGEST: Final = 0.5
"""Seconds: 5 ms, 7, 10, 14, … and after about 14 times, 1.7 s in all, every half second."""

FEW: Final = 32
"""Ids that a store is asked to watch; of more than these all are read at intervals."""
LONGEST_OF_MANY: Final = 0.1
"""Seconds between two looks at many ids while nothing comes: `FIRST`, growing up to this."""


_answer_by: Final[ContextVar[float]] = ContextVar("umbel_answer_by", default=inf)


def answer_by() -> float:
    """The moment (monotonic) after which nobody here waits for a store's answer any more."""
    return _answer_by.get()


@contextmanager
def answered_by(moment: float) -> Iterator[None]:
    """Inside the block, a store that can gives up at that moment, with `StoreUnavailable`."""
    token = _answer_by.set(moment)
    try:
        yield
    finally:
        _answer_by.reset(token)


class Interrupts:
    """Counts the calls of a store's `interrupt`; each waiting thread sees each of them once."""

    def __init__(self) -> None:
        self._count = 0
        self._seen = threading.local()

    def add(self) -> None:
        self._count += 1

    def take(self) -> bool:
        """Whether there was one that this thread hasn't seen yet."""
        count = self._count
        if getattr(self._seen, "count", 0) == count:
            return False
        self._seen.count = count
        return True


class Pauses:
    """The pauses of a store that is polled; they end early when it is closed or interrupted."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._interrupts = Interrupts()
        self._closed = False

    def open(self) -> None:
        self._closed = False

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def interrupt(self) -> None:
        with self._changed:
            self._interrupts.add()
            self._changed.notify_all()

    def sleep(self, seconds: float) -> bool:
        """Whether it ended early."""
        with self._changed:
            return self._changed.wait_for(self._is_over, seconds)

    def _is_over(self) -> bool:
        return self._closed or self._interrupts.take()


def poll(
    get: Callable[[Sequence[str]], Sequence[Result | None]],
    task_ids: Sequence[str],
    timeout: float,
    pauses: Pauses,
) -> None:
    """Return once one of the records is ready or has changed, or a pause ended early, or after
    `timeout` seconds."""
    deadline = time.monotonic() + timeout
    before = get(task_ids)
    if any(result is not None and result.state in READY_STATES for result in before):
        return
    pause = FIRST
    while (left := deadline - time.monotonic()) > 0:
        if pauses.sleep(min(pause, left)) or get(task_ids) != before:
            return
        pause = min(pause * GROWTH, LONGEST)
