"""The app that the measured workers run.

Each task does nothing but note its number and the time; one that waits notes the time again when it
ends. When its process stops, what it noted goes into a file of the folder that ``BENCH_NOTES``
names, so that every run can be accounted for.
"""

from __future__ import annotations

import asyncio
import os
from array import array
from pathlib import Path
from time import monotonic, sleep

from umbel import Umbel
from umbel.signals import worker_process_shutdown

app = Umbel("bench", set_as_current=False)

NUMBERS = array("q")
TIMES = array("d")


@app.task
def noop(number: int) -> None:
    NUMBERS.append(number)
    TIMES.append(monotonic())


@app.task(ignore_result=True)
def noop_ignored(number: int) -> None:
    NUMBERS.append(number)
    TIMES.append(monotonic())


@app.task(acks_late=True)
def noop_late(number: int) -> None:
    NUMBERS.append(number)
    TIMES.append(monotonic())


@app.task
async def nap(number: int) -> None:
    NUMBERS.append(number)
    TIMES.append(monotonic())
    await asyncio.sleep(0.1)
    TIMES.append(monotonic())


@app.task
def nap_in_thread(number: int) -> None:
    NUMBERS.append(number)
    TIMES.append(monotonic())
    sleep(0.1)
    TIMES.append(monotonic())


@worker_process_shutdown.connect
def write_notes(**_: object) -> None:
    if "BENCH_NOTES" not in os.environ:
        return  # no worker of ours: the workload "calls" runs a pool process in its own
    folder = Path(os.environ["BENCH_NOTES"])
    (folder / f"{os.getpid()}.numbers").write_bytes(NUMBERS.tobytes())
    (folder / f"{os.getpid()}.times").write_bytes(TIMES.tobytes())
