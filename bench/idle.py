"""What an idle worker costs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from bench.bed import Ground, Worker
from bench.figures import Figure, Workload

SECONDS: Final = 10.0


def measure(ground: Ground) -> Mapping[str, float]:
    bed = ground.bed()
    with bed.parking() as parking, Worker(bed, parking) as worker:
        before, began = worker.cpu_seconds(), time.monotonic()
        time.sleep(SECONDS)
        spent = worker.cpu_seconds() - before
        return {"idle worker, CPU": spent / (time.monotonic() - began) * 100}


WORKLOAD = Workload(
    "idle",
    f"CPU of the whole worker over {SECONDS:g} s without a task",
    (Figure("idle worker, CPU", "% of a core", digits=2),),
    measure,
)
