"""What an idle worker costs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from bench.figures import Figure, Workload
from bench.harness import Worker, sending_to

SECONDS: Final = 15.0


def measure(folder: Path) -> Mapping[str, float]:
    with sending_to(folder), Worker(folder) as worker:
        before, started = worker.cpu_seconds(), time.monotonic()
        time.sleep(SECONDS)
        spent = worker.cpu_seconds() - before
        return {"idle worker, CPU": spent / (time.monotonic() - started) * 100}


WORKLOAD = Workload(
    "idle",
    f"CPU of the whole worker over {SECONDS:g} s without a task",
    (Figure("idle worker, CPU", "% of a core", at_most=1, digits=2),),
    measure,
)
