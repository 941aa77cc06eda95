"""Celery with the prefork pool, or threads where tasks wait, on Redis."""

from __future__ import annotations

import os
import time

from bench.notes import note
from celery import Celery

_URL = os.environ["BENCH_URL"]
_IS_STORED = bool(os.environ["BENCH_STORED"])
app = Celery("bench", broker=_URL, backend=_URL)
app.conf.broker_connection_retry_on_startup = True
app.conf.task_ignore_result = not _IS_STORED
if os.environ["BENCH_VARIANT"] == "late":
    app.conf.task_acks_late = True
    app.conf.task_reject_on_worker_lost = True


@app.task
def noop(number):
    note(number)


@app.task
def nap(number):
    note(number)
    time.sleep(0.1)
    note(number)


TASKS = {"noop": noop, "nap": nap}


def send(task, numbers):
    delay = TASKS[task].delay
    return [delay(number).id for number in numbers]


def send_in_bulk(task, numbers):
    """With one producer for all, as its guide has it; each message is still a trip of its own."""
    apply_async = TASKS[task].apply_async
    with app.producer_or_acquire() as producer:
        return [apply_async((number,), producer=producer).id for number in numbers]


def send_later(numbers, seconds):
    for number in numbers:
        noop.apply_async((number,), countdown=seconds)


def round_trips(count):
    taken = []
    for number in range(count):
        began = time.perf_counter()
        noop.delay(number).get(timeout=30)
        taken.append(time.perf_counter() - began)
    return taken
