"""Huey on Redis or, as variant, on SQLite; processes or threads."""

from __future__ import annotations

import os
import time

from bench.notes import note
from huey import RedisHuey, SqliteHuey

_URL = os.environ["BENCH_URL"]
_STORED = {"results": bool(os.environ["BENCH_STORED"]), "store_none": True}
if os.environ["BENCH_VARIANT"] == "sqlite":
    huey = SqliteHuey("bench", filename=_URL.removeprefix("sqlite:///"), **_STORED)
else:
    _NOTIFY = {"notify_result": True} if os.environ["BENCH_VARIANT"] == "notify" else {}
    huey = RedisHuey("bench", url=_URL, **_STORED, **_NOTIFY)


@huey.task()
def noop(number):
    note(number)


@huey.task()
def nap(number):
    note(number)
    time.sleep(0.1)
    note(number)


TASKS = {"noop": noop, "nap": nap}


def send(task, numbers):
    call = TASKS[task]
    for number in numbers:
        call(number)


def send_later(numbers, seconds):
    for number in numbers:
        noop.schedule((number,), delay=seconds)


def round_trips(count):
    taken = []
    for number in range(count):
        began = time.perf_counter()
        noop(number).get(blocking=True, timeout=30)
        taken.append(time.perf_counter() - began)
    return taken
