"""1,000,000 tasks due in an hour, beside a worker; and how late others start that are due now."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Final

from bench.bed import Ground, Worker, until
from bench.figures import DoesNotAddUp, Figure, Workload

COUNT: Final = 1_000_000
CHUNK: Final = 5_000
SOON: Final = 20
"""Tasks that fall due one after the other, beside the many."""
DELAY: Final = 0.2


def measure(ground: Ground) -> Mapping[str, float]:
    # One round: it takes a minute, and memory doesn't vary.
    if ground.round > 1:
        return {}
    count = COUNT if ground.tasks >= 20_000 else 10 * ground.tasks
    bed = ground.bed(tasks=SOON)
    with bed.parking() as parking, Worker(bed, parking) as worker, bed.sender() as sender:
        before = worker.pss_mib()
        for first in range(0, count, CHUNK):
            sender.call("send_later", range(first, min(count, first + CHUNK)), 3600.0)
        worker.settle()
        after = worker.pss_mib()
        due = sender.call("send_soon", SOON, DELAY)["value"]
        until(lambda: bed.notes.count >= worker.noted + SOON, "all that fell due have run", 60)
        started = {each.number: each.at for each in bed.notes.read() if each.number >= 0}
        late = [started[number] - due_at for number, due_at in enumerate(due)]
        if (delayed := bed.delayed()) != count:
            raise DoesNotAddUp(f"{count} tasks are due later, the broker has {delayed}")
    return {
        "a million due later, memory": (after - before) * 2**20 / 1e6,
        "a million due later, lateness p50": median(late) * 1000,
        "a million due later, lateness max": max(late) * 1000,
    }


WORKLOAD = Workload(
    "million",
    f"what the worker grows by with {COUNT:,} tasks due in an hour, and how much after their time "
    f"{SOON} others start",
    (
        Figure("a million due later, memory", "MB more", digits=1),
        Figure("a million due later, lateness p50", "ms", digits=1),
        Figure("a million due later, lateness max", "ms", digits=1),
    ),
    measure,
)
