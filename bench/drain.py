"""20,000 no-op tasks that wait for a ready worker, from the first execution to the last.

They become visible in one commit while the worker is idle, so neither its start nor their sending
is in the figures. CPU is that of supervisor, fork server and pool processes together.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from bench.figures import Figure, Workload
from bench.harness import Worker, account, is_drained, sending_to, until
from bench.tasks import noop, noop_ignored, noop_late

from umbel import Task

COUNT: Final = 20_000
VARIANTS: Final[tuple[tuple[str, Task[[int], None], bool], ...]] = (
    ("defaults (results stored)", noop, True),
    ("results ignored", noop_ignored, False),
    ("late acknowledgement, results stored", noop_late, True),
)


def _names(variant: str) -> tuple[str, str]:
    return f"drain, {variant}", f"drain, worker CPU, {variant}"


def measure(folder: Path) -> Mapping[str, float]:
    values: dict[str, float] = {}
    for number, (variant, task, stored) in enumerate(VARIANTS):
        place = folder / str(number)
        place.mkdir()
        rate, cpu = _drain(place, task, stored)
        values |= dict(zip(_names(variant), (rate, cpu), strict=True))
    return values


def _drain(folder: Path, task: Task[[int], Any], stored: bool) -> tuple[float, float]:
    """(tasks per second, CPU microseconds per task)."""
    with sending_to(folder):
        with Worker(folder) as worker:
            before = worker.cpu_seconds()
            results = task.delay_many((number,) for number in range(COUNT))
            until(is_drained, "all tasks are settled", every=0.05)
            cpu = worker.cpu_seconds() - before
        account(worker.numbers(), COUNT, [result.id for result in results] if stored else ())
    times = worker.times()
    return (COUNT - 1) / (times[-1] - times[0]), cpu / COUNT * 1e6


WORKLOAD = Workload(
    "drain",
    f"{COUNT:,} waiting no-op tasks, from the first execution to the last",
    tuple(
        figure
        for variant, _, _ in VARIANTS
        for figure in (
            Figure(_names(variant)[0], "tasks per second", at_least=2000),
            Figure(_names(variant)[1], "µs per task"),
        )
    ),
    measure,
)
