"""Dramatiq on Redis, with its default middleware and, where results are stored, its results."""

from __future__ import annotations

import os
import time

import dramatiq
from bench.notes import note
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

_URL = os.environ["BENCH_URL"]
_IS_STORED = bool(os.environ["BENCH_STORED"])
broker = RedisBroker(url=_URL)
if _IS_STORED:
    broker.add_middleware(Results(backend=RedisBackend(url=_URL)))
dramatiq.set_broker(broker)
_OPTIONS = {"store_results": True} if _IS_STORED else {}


@dramatiq.actor(**_OPTIONS)
def noop(number):
    note(number)


@dramatiq.actor(**_OPTIONS)
def nap(number):
    note(number)
    time.sleep(0.1)
    note(number)


TASKS = {"noop": noop, "nap": nap}


def send(task, numbers):
    send_one = TASKS[task].send
    return [send_one(number).message_id for number in numbers]


def send_later(numbers, seconds):
    for number in numbers:
        noop.send_with_options(args=(number,), delay=int(seconds * 1000))


def round_trips(count):
    taken = []
    for number in range(count):
        began = time.perf_counter()
        noop.send(number).get_result(block=True, timeout=30_000)
        taken.append(time.perf_counter() - began)
    return taken
