"""Waiting for a result where the server can't tell of one: asking, at growing intervals."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from threading import Event
from typing import Final

from umbel.message import Result
from umbel.states import READY_STATES

FIRST: Final = 0.005
GROWTH: Final = 1.4
LONGEST: Final = 0.5
"""Seconds: 5 ms, 7, 10, 14, … and after about 14 times, 1.7 s in all, every half second."""


def poll(
    get: Callable[[Sequence[str]], Sequence[Result | None]],
    task_ids: Sequence[str],
    timeout: float,
    closed: Event,
) -> None:
    """Return once one of the records is ready or has changed, at `closed` or after `timeout`."""
    deadline = time.monotonic() + timeout
    before = get(task_ids)
    if any(result is not None and result.state in READY_STATES for result in before):
        return
    pause = FIRST
    while (left := deadline - time.monotonic()) > 0:
        if closed.wait(min(pause, left)) or get(task_ids) != before:
            return
        pause = min(pause * GROWTH, LONGEST)
