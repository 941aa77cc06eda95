"""Sending and running at once: one process calls ``delay()`` in a loop while one worker runs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from bench.figures import Figure, Workload
from bench.harness import Worker, account, is_drained, sending_to, until
from bench.tasks import app, noop

COUNT: Final = 20_000
BATCH: Final = 100


def measure(folder: Path) -> Mapping[str, float]:
    single, batched = folder / "single", folder / "batched"
    single.mkdir()
    batched.mkdir()
    return {
        "together, delay()": _run(single, 1),
        f"together, batches of {BATCH}": _run(batched, BATCH),
    }


def _run(folder: Path, size: int) -> float:
    """Tasks per second from the first call to the last execution."""
    with sending_to(folder):
        with Worker(folder) as worker:
            started = time.monotonic()
            ids = _send_one_by_one() if size == 1 else _send_in_batches(size)
            until(is_drained, "all tasks are settled", every=0.05)
        account(worker.numbers(), COUNT, ids)
    return COUNT / (worker.times()[-1] - started)


def _send_one_by_one() -> list[str]:
    return [noop.delay(number).id for number in range(COUNT)]


def _send_in_batches(size: int) -> list[str]:
    ids = []
    for first in range(0, COUNT, size):
        with app.batch():
            ids += [noop.delay(number).id for number in range(first, first + size)]
    return ids


WORKLOAD = Workload(
    "together",
    f"{COUNT:,} no-op tasks end to end, sent while the worker runs",
    (
        Figure("together, delay()", "tasks per second", at_least=2000),
        Figure(f"together, batches of {BATCH}", "tasks per second", at_least=2000),
    ),
    measure,
)
