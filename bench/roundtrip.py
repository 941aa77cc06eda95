"""An idle worker: tasks one after the other, each waited for."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import quantiles
from typing import Final

from bench.bed import Ground, Worker
from bench.figures import Figure, Workload

COUNT: Final = 500


def measure(ground: Ground) -> Mapping[str, float]:
    bed = ground.bed()
    count = max(2, min(COUNT, ground.tasks))
    with bed.parking() as parking, Worker(bed, parking) as worker, bed.sender() as sender:
        sender.call("round_trips", 5)  # what is done once is done
        seconds = sender.call("round_trips", count)["value"]
        worker.settle()
    cuts = quantiles(seconds, n=100)
    return {f"round trip, p{at}": cuts[at - 1] * 1000 for at in (50, 95, 99)}


WORKLOAD = Workload(
    "roundtrip",
    f"{COUNT} no-op tasks one after the other on an idle worker, from the call to the result",
    tuple(Figure(f"round trip, p{at}", "ms", digits=2) for at in (50, 95, 99)),
    measure,
)
