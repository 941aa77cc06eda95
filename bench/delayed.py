"""Memory of a worker beside 100,000 tasks that are due in an hour, and beside none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from bench.figures import DoesNotAddUp, Figure, Workload
from bench.harness import Worker, sending_to
from bench.tasks import app, noop

COUNT: Final = 100_000
CHUNK: Final = 20_000
RUN: Final = 1000
"""Tasks that the worker runs before it is measured, so that it has met its working memory."""


def measure(folder: Path) -> Mapping[str, float]:
    without = _memory(folder / "without", 0)
    beside = _memory(folder / "beside", COUNT)
    return {
        "memory of an idle worker": without / 2**20,
        f"more beside {COUNT:,} delayed tasks": (beside - without) / 1e6,
    }


def _memory(folder: Path, delayed: int) -> int:
    """PSS in bytes of the worker's processes."""
    folder.mkdir()
    with sending_to(folder), Worker(folder) as worker:
        for first in range(0, delayed, CHUNK):
            with app.batch():
                for number in range(first, first + CHUNK):
                    noop.apply_async((number,), countdown=3600)
        for number in range(RUN):
            noop.delay(number).get(timeout=30)
        if (waiting := app.broker.queues()[0].delayed) != delayed:
            raise DoesNotAddUp(f"{delayed} tasks are due later, the broker has {waiting}")
        return worker.pss_bytes()


WORKLOAD = Workload(
    "delayed",
    f"PSS of the whole worker with {COUNT:,} tasks due in an hour, and with none",
    (
        Figure("memory of an idle worker", "MiB", digits=1),
        Figure(f"more beside {COUNT:,} delayed tasks", "MB", at_most=10, digits=1),
    ),
    measure,
)
