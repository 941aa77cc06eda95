"""Sending and running at once: one process sends in a loop while the worker runs."""

from __future__ import annotations

import time
from collections.abc import Mapping

from bench.bed import Ground, Worker
from bench.figures import Figure, Workload


def measure(ground: Ground) -> Mapping[str, float]:
    bed = ground.bed()
    count = bed.count
    with bed.parking() as parking, bed.sender() as sender:
        with Worker(bed, parking) as worker:
            began = time.monotonic()
            ids = sender.call("send", "noop", range(count))["value"]
            worker.run(count)
        noted = bed.account(ids, count)
    return {"sent while it runs, rate": count / (noted[-1].at - began)}


WORKLOAD = Workload(
    "together",
    "no-op tasks end to end, results stored, sent one by one while the worker runs",
    (Figure("sent while it runs, rate", "tasks per second", is_rate=True),),
    measure,
    is_scaled=True,
)
