"""Clocks that are handed to whoever needs the time, so that a test can hold the hands.

Two times exist in Umbel. *Wall* time (unix seconds) is shared between machines and is what a
broker compares due times and liveness with. *Boot* time (seconds, counts while the machine is
suspended) measures how long ago something happened on this machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol


class Clock(Protocol):
    """Where the time comes from."""

    def wall(self) -> float:
        """Unix seconds."""
        ...

    def boot(self) -> float:
        """Seconds on a clock that never jumps and that runs during suspension."""
        ...


# Asked several times for each task, so no function of ours stands before the system's.
boot_time: Final[Callable[[], float]] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME)
    if hasattr(time, "CLOCK_BOOTTIME")
    else time.monotonic
)
"""Seconds since boot, suspension included (``CLOCK_BOOTTIME``); elsewhere monotonic time."""


class SystemClock:
    """The machine's own clocks."""

    wall = staticmethod(time.time)
    boot = staticmethod(boot_time)


class ManualClock:
    """A clock that stands still until it is told to move; for tests and simulations."""

    def __init__(self, wall: float = 1_800_000_000.0, boot: float = 1_000.0) -> None:
        self._wall = wall
        self._boot = boot

    def wall(self) -> float:
        return self._wall

    def boot(self) -> float:
        return self._boot

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass on both clocks."""
        self._wall += seconds
        self._boot += seconds

    def jump(self, seconds: float) -> None:
        """Set the wall clock forwards or back, as an operator or a time server would."""
        self._wall += seconds


SYSTEM = SystemClock()
