"""How much Python one ``delay()`` is, on the memory broker: calls, files, depth."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

from bench.figures import Figure, Workload

from umbel import Umbel


class Count:
    """A profile function that counts calls of Python functions."""

    def __init__(self) -> None:
        self.calls = 0
        self.files: set[str] = set()
        self.deepest = 0
        self._depth = 0

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            self.calls += 1
            self._depth += 1
            self.deepest = max(self.deepest, self._depth)
            self.files.add(frame.f_code.co_filename)
        elif event == "return":
            self._depth -= 1


def measure(_: Path) -> Mapping[str, float]:
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
    return {
        "publish, Python calls": count.calls,
        "publish, files": len(count.files),
        "publish, depth": count.deepest,
    }


WORKLOAD = Workload(
    "calls",
    "Python functions called by one delay() on the memory broker",
    (
        Figure("publish, Python calls", "per message", at_most=40),
        Figure("publish, files", "per message"),
        Figure("publish, depth", "per message"),
    ),
    measure,
)
