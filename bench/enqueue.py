"""Sending only: no worker runs. One call after the other, and all in one step."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from bench.figures import DoesNotAddUp, Figure, Workload
from bench.harness import sending_to
from bench.tasks import app, noop

from umbel.exceptions import NoWorkerYet

COUNT: Final = 20_000


def measure(folder: Path) -> Mapping[str, float]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoWorkerYet)
        return {
            "delay(), CPU": _cpu(folder / "single", _one_by_one),
            "delay_many(), CPU": _cpu(folder / "bulk", _in_bulk),
        }


def _cpu(folder: Path, send: Callable[[], None]) -> float:
    """CPU microseconds of this process per message."""
    folder.mkdir()
    with sending_to(folder):
        app.broker.declare([app.conf.task_default_queue])
        before = time.process_time()
        send()
        spent = time.process_time() - before
        if (ready := app.broker.queues()[0].ready) != COUNT:
            raise DoesNotAddUp(f"{COUNT} messages were sent, {ready} wait")
    return spent / COUNT * 1e6


def _one_by_one() -> None:
    for number in range(COUNT):
        noop.delay(number)


def _in_bulk() -> None:
    noop.delay_many((number,) for number in range(COUNT))


WORKLOAD = Workload(
    "enqueue",
    f"{COUNT:,} calls of a task by one process, no worker running",
    (Figure("delay(), CPU", "µs per call"), Figure("delay_many(), CPU", "µs per message")),
    measure,
)
