"""PSS of the whole worker: idle, and beside 10,000 tasks that are due in an hour."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bench.bed import Ground, Worker
from bench.figures import Figure, Workload

COUNT: Final = 10_000


def measure(ground: Ground) -> Mapping[str, float]:
    count = min(COUNT, ground.tasks)
    bed = ground.bed(tasks=count)
    with bed.parking() as parking, Worker(bed, parking) as worker, bed.sender() as sender:
        idle, cpu = worker.pss_mib(), worker.cpu_seconds()
        sender.call("send_later", range(count), 3600.0)
        worker.settle(patience=60)
        return {
            "memory, idle": idle,
            "memory, due later": worker.pss_mib() - idle,
            "CPU, due later": worker.cpu_seconds() - cpu,
        }


WORKLOAD = Workload(
    "memory",
    f"PSS of the whole worker, idle; what it grows by, and the CPU that it spends, when {COUNT:,} "
    "tasks due in an hour are sent",
    (
        Figure("memory, idle", "MiB", digits=1),
        Figure("memory, due later", "MiB more", digits=1),
        Figure("CPU, due later", "s", digits=2),
    ),
    measure,
)
