"""Waiting for results in a caller: whether it may, for how long, and what it calls meanwhile.

Inside a worker code may not wait, unless it says so.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from inspect import iscoroutine
from math import inf
from typing import Any, Final

from umbel.polling import answered_by
from umbel.request import Running, current_request
from umbel.saferepr import safe_repr

LONGEST_WAIT: Final = 60.0
LAST_LOOK: Final = 0.5
"""Seconds that a store has for an answer, however short the wait; most need a thousandth."""
"""Seconds; a wait without an end asks again now and then, since a store may have been emptied
meanwhile."""

Callback = Callable[[str, Any], object]
OnMessage = Callable[[dict[str, Any]], object]
OnInterval = Callable[[], object]

_allowed: Final[ContextVar[bool | None]] = ContextVar("umbel_allow_join", default=None)


@contextmanager
def allow_join_result() -> Iterator[None]:
    """Waiting for results is fine inside the block, also in a task."""
    with _set(True):
        yield


@contextmanager
def denied_join_result() -> Iterator[None]:
    """Waiting for results raises `RuntimeError` inside the block, also outside of tasks."""
    with _set(False):
        yield


def refuse_to_wait(task_id: str) -> None:
    """Raises `RuntimeError` where waiting for the task `task_id` is not allowed."""
    allowed = _allowed.get()
    entry = _in_worker()
    if allowed or (allowed is None and entry is None):
        return
    instead = (
        "Let the other task go on with the result: chain it, as in other.s() | more.s(), or give "
        "it a callback with link=. Where the wait is sure to end, say allow_join_result(), or "
        "get(disable_sync_subtasks=False)"
    )
    if entry is None:
        raise RuntimeError(f"waiting for the result of task {task_id} is denied here. {instead}")
    raise RuntimeError(
        f"{entry.request.task} waits for the result of task {task_id} inside a worker: with all "
        f"processes waiting like this, none would be left to run it. {instead}"
    )


class Wait:
    """The time that is left of one wait, and its intervals."""

    def __init__(
        self, timeout: float | None, interval: float, on_interval: OnInterval | None
    ) -> None:
        if timeout is not None:
            timeout = _seconds("timeout", timeout)
        interval = _seconds("interval", interval)
        if on_interval is not None and not callable(on_interval):
            raise TypeError(f"on_interval is {safe_repr(on_interval, 80)}; expected a function")
        self.timeout = timeout
        self.on_interval = on_interval
        self._interval = interval
        now = time.monotonic()
        self._end = None if timeout is None else now + timeout
        self._next = now + interval

    def answers(self) -> AbstractContextManager[None]:
        """Inside, a store that can gives up when the time is over; it has a moment in any case."""
        end = inf if self._end is None else max(self._end, time.monotonic() + LAST_LOOK)
        return answered_by(end)

    def is_over(self) -> bool:
        return self._end is not None and time.monotonic() >= self._end

    def next_pause(self) -> float | None:
        """Seconds to wait until something is to be done again; None once the time is over."""
        now = time.monotonic()
        left = LONGEST_WAIT if self._end is None else min(self._end - now, LONGEST_WAIT)
        if left <= 0:
            return None
        return left if self.on_interval is None else max(0.0, min(left, self._next - now))

    def is_interval(self) -> bool:
        """Whether `on_interval` is due."""
        now = time.monotonic()
        if self.on_interval is None or now < self._next:
            return False
        self._next = now + self._interval
        return True


def _seconds(name: str, value: object) -> float:
    """`value`, unless no clock can tell its end. Raises `ValueError`."""
    try:
        if isinstance(value, int | float) and not math.isnan(value):
            return value
    except OverflowError:  # a whole number above every float
        pass
    raise ValueError(f"{name} is {safe_repr(value, 80)}; expected a number of seconds")


async def called(function: Callable[..., object], *args: object) -> None:
    """Call it, and await what it returns, where that is a coroutine."""
    value = function(*args)
    if iscoroutine(value):
        await value


def _in_worker() -> Running | None:
    """The task that a worker runs here; one that is run in its caller doesn't count."""
    entry = current_request.get()
    while entry is not None and (entry.request.called_directly or entry.request.is_eager):
        entry = entry.outer
    return entry


@contextmanager
def _set(allowed: bool) -> Iterator[None]:
    token = _allowed.set(allowed)
    try:
        yield
    finally:
        _allowed.reset(token)
