"""From the worker's command to its first execution, and the import of an app's module."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from statistics import median
from typing import Final

from bench.bed import Bed, Ground, Worker
from bench.figures import Figure, Workload

TRIES: Final = 5
_PROGRAM: Final = (
    "from time import perf_counter\n"
    "import importlib, sys\n"
    "began = perf_counter()\n"
    "importlib.import_module(sys.argv[1])\n"
    "print(perf_counter() - began)\n"
)


def measure(ground: Ground) -> Mapping[str, float]:
    bed = ground.bed()
    with bed.parking() as parking, Worker(bed, parking) as worker:
        first = worker.first_task
    _import(bed)  # compiled, as after the first start of any installed package
    return {
        "start, first task": first,
        "start, import": median(_import(bed) for _ in range(TRIES)) * 1000,
    }


def _import(bed: Bed) -> float:
    command = [str(bed.python), "-c", _PROGRAM, bed.contender.module]
    environment = bed.environment(bed.url())
    return float(subprocess.check_output(command, cwd=bed.folder, env=environment))


WORKLOAD = Workload(
    "start",
    "from the worker's command to the first execution of a waiting task; and the import of a "
    f"module with an app and two tasks, median of {TRIES} processes",
    (
        Figure("start, first task", "s", digits=2),
        Figure("start, import", "ms", digits=1),
    ),
    measure,
)
