"""Waiting no-op tasks, from the first execution to the last.

They become visible in one step while the worker is ready and idle, so neither its start nor their
sending is in the figures. CPU is that of all of the worker's processes, until it has settled.
"""

from __future__ import annotations

from collections.abc import Mapping

from bench.bed import Bed, Ground, Worker
from bench.figures import Figure, Workload


def measure(ground: Ground) -> Mapping[str, float]:
    values = _drain(ground.bed(stored=False), "ignored")
    if ground.contender.stores:
        values |= _drain(ground.bed(), "stored")
    return values


def _drain(bed: Bed, kind: str) -> dict[str, float]:
    count = bed.count
    with bed.parking() as parking:
        with Worker(bed, parking) as worker:
            ids = parking.send("noop", range(count))
            before = worker.cpu_seconds()
            ids = parking.release() or ids
            worker.run(count)
            cpu = worker.cpu_seconds() - before
            memory = worker.pss_mib()
        noted = bed.account(ids, count)
    return {
        f"drain, {kind}, CPU": cpu / count * 1e6,
        f"drain, {kind}, rate": (count - 1) / (noted[-1].at - noted[0].at),
        f"drain, {kind}, memory": memory,
    }


WORKLOAD = Workload(
    "drain",
    "waiting no-op tasks, results ignored and stored, from the first execution to the last; memory "
    "(PSS) after it",
    tuple(
        figure
        for kind in ("ignored", "stored")
        for figure in (
            Figure(f"drain, {kind}, CPU", "µs per task"),
            Figure(f"drain, {kind}, rate", "tasks per second", is_rate=True),
            Figure(f"drain, {kind}, memory", "MiB"),
        )
    ),
    measure,
    is_scaled=True,
)
