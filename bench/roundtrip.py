"""An idle worker: 500 tasks one after the other, each waited for."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from statistics import quantiles
from typing import Final

from bench.figures import Figure, Workload
from bench.harness import Worker, account, sending_to
from bench.tasks import noop

COUNT: Final = 500


def measure(folder: Path) -> Mapping[str, float]:
    taken = []
    with sending_to(folder):
        with Worker(folder) as worker:
            for number in range(COUNT):
                started = time.perf_counter()
                noop.delay(number).get(timeout=30)
                taken.append((time.perf_counter() - started) * 1000)
        account(worker.numbers(), COUNT)
    cuts = quantiles(taken, n=100)
    return {"round trip p50": cuts[49], "round trip p95": cuts[94], "round trip p99": cuts[98]}


WORKLOAD = Workload(
    "roundtrip",
    f"{COUNT} tasks one after the other on an idle worker, from delay() to the result",
    (
        Figure("round trip p50", "ms", at_most=10, digits=1),
        Figure("round trip p95", "ms", digits=1),
        Figure("round trip p99", "ms", digits=1),
    ),
    measure,
)
