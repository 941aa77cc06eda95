"""Tasks that wait for 100 ms each and become visible in one step: coroutines where the library has
them, threads where it hasn't."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from bench.bed import Ground, Worker
from bench.figures import DoesNotAddUp, Figure, Workload

COUNT: Final = 2000


def measure(ground: Ground) -> Mapping[str, float]:
    count = min(COUNT, ground.tasks)
    bed = ground.bed(tasks=count)
    command = ground.contender.napping
    processes = 1 if "thread" in command else None
    with bed.parking() as parking:
        with Worker(bed, parking, command, processes=processes) as worker:
            parking.send("nap", range(count))
            began = time.monotonic()
            parking.release()
            worker.run(2 * count)
        noted = [each for each in bed.notes.read() if each.number >= 0]
    if sorted(each.number for each in noted) != sorted([*range(count), *range(count)]):
        raise DoesNotAddUp(f"{count} tasks were sent; {len(noted)} starts and ends were noted")
    return {"waiting tasks": noted[-1].at - began}


WORKLOAD = Workload(
    "waiting",
    f"{COUNT:,} tasks that wait for 100 ms, from their becoming visible to the last end; two "
    "processes, but one for Celery's and Huey's threads",
    (Figure("waiting tasks", "s", digits=2),),
    measure,
)
