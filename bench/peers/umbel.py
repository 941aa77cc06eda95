"""Umbel, on any broker."""

from __future__ import annotations

import os
import time
from typing import Any

from bench.notes import note

from umbel import Task, Umbel

app = Umbel("bench", broker=os.environ["BENCH_URL"])
app.conf.task_acks_late = os.environ["BENCH_VARIANT"] == "late"
_IGNORED = not os.environ["BENCH_STORED"]


@app.task(ignore_result=_IGNORED)
def noop(number: int) -> None:
    note(number)


@app.task(ignore_result=_IGNORED)
async def nap(number: int) -> None:
    # Not above: the import of this module is measured beside those of libraries without coroutines.
    import asyncio

    note(number)
    await asyncio.sleep(0.1)
    note(number)


TASKS: dict[str, Task[[int], Any]] = {"noop": noop, "nap": nap}


def send(task: str, numbers: range) -> list[str]:
    delay = TASKS[task].delay
    return [delay(number).id for number in numbers]


def send_in_bulk(task: str, numbers: range) -> list[str]:
    return [result.id for result in TASKS[task].delay_many((number,) for number in numbers)]


def send_later(numbers: range, seconds: float) -> None:
    with app.batch():
        for number in numbers:
            noop.apply_async((number,), countdown=seconds)


def send_soon(count: int, seconds: float) -> list[float]:
    """One after the other, each due so much later than the last; the monotonic times at which."""
    due = []
    for number in range(count):
        due.append(time.monotonic() + seconds * (1 + number))
        noop.apply_async((number,), countdown=seconds * (1 + number))
    return due


def round_trips(count: int) -> list[float]:
    taken = []
    for number in range(count):
        began = time.perf_counter()
        noop.delay(number).get(timeout=30)
        taken.append(time.perf_counter() - began)
    return taken
