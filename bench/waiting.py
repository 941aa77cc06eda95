"""2,000 tasks that wait for 100 ms each, sent in one batch to an idle worker of two processes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.figures import Figure, Workload
from bench.harness import Worker, account, is_drained, sending_to, until
from bench.tasks import nap, nap_in_thread

from umbel import Task

COUNT: Final = 2000


@dataclass(frozen=True, slots=True)
class Variant:
    """One pool and the task that suits it. `at_most`: the target, in seconds."""

    pool: str
    concurrency: int
    task: Task[[int], Any]
    at_most: float | None = None

    @property
    def whole(self) -> str:
        return f"waiting, {self.pool}, from sending the first to the last result"

    @property
    def running(self) -> str:
        return f"waiting, {self.pool}, from the first start to the last end"


VARIANTS: Final = (
    Variant("asyncio", 1000, nap, at_most=1.0),
    Variant("threads", 200, nap_in_thread),
)


def measure(folder: Path) -> Mapping[str, float]:
    values: dict[str, float] = {}
    for variant in VARIANTS:
        place = folder / variant.pool
        place.mkdir()
        values |= _run(place, variant)
    return values


def _run(folder: Path, variant: Variant) -> dict[str, float]:
    options = ("-P", variant.pool, "-c", str(variant.concurrency), "--processes", "2")
    with sending_to(folder):
        with Worker(folder, options) as worker:
            started = time.monotonic()
            results = variant.task.delay_many((number,) for number in range(COUNT))
            # On SQLite a result is stored in one step with the end of its message.
            until(is_drained, "all results are stored", every=0.01)
            whole = time.monotonic() - started
        account(worker.numbers(), COUNT, [result.id for result in results])
    times = worker.times()
    return {variant.whole: whole, variant.running: times[-1] - times[0]}


WORKLOAD = Workload(
    "waiting",
    f"{COUNT:,} tasks of 100 ms, sent in one batch, in two processes: coroutines with "
    "`-P asyncio -c 1000 --processes 2`, and `time.sleep` with `-P threads -c 200 --processes 2`",
    tuple(
        figure
        for variant in VARIANTS
        for figure in (
            Figure(variant.whole, "s", at_most=variant.at_most, digits=2),
            Figure(variant.running, "s", digits=2),
        )
    ),
    measure,
)
