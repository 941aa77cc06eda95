"""`live_app` on a wall clock that a file sets forwards or back, in every process that has it."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tests.worker import live_app

from umbel import Umbel
from umbel.clock import SystemClock


class JumpingClock(SystemClock):
    """The machine's clock, plus the seconds that a file says."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def wall(self) -> float:
        return time.time() + float(self._path.read_text() or 0)

    def jump(self, seconds: float) -> None:
        """Set it so many seconds off the machine's clock, for all at once."""
        fresh = self._path.with_suffix(".fresh")
        fresh.write_text(str(seconds))
        fresh.replace(self._path)


if "CLOCK" in os.environ:
    app = Umbel("jumping", clock=JumpingClock(Path(os.environ["CLOCK"])))
    for task in list(live_app.app.tasks.values()):
        app.task(name=task.name, acks_late=task.options.acks_late)(task.__wrapped__)
