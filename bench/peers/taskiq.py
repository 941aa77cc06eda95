"""Taskiq on Redis: a stream, which is acknowledged, or a list, which isn't."""

from __future__ import annotations

import asyncio
import os
import time

from bench.notes import note
from taskiq_redis import ListQueueBroker, RedisAsyncResultBackend, RedisStreamBroker

_URL = os.environ["BENCH_URL"]
_IS_STORED = bool(os.environ["BENCH_STORED"])
_Broker = ListQueueBroker if os.environ["BENCH_VARIANT"] == "list" else RedisStreamBroker
broker = _Broker(_URL)
if _IS_STORED:
    broker = broker.with_result_backend(RedisAsyncResultBackend(_URL, result_ex_time=86_400))


@broker.task(task_name="noop")
async def noop(number: int) -> None:
    note(number)


@broker.task(task_name="nap")
async def nap(number: int) -> None:
    note(number)
    await asyncio.sleep(0.1)
    note(number)


TASKS = {"noop": noop, "nap": nap}
_loop = None


def _run(coroutine):
    """In one loop for all calls, which the broker's connections belong to."""
    global _loop
    if _loop is None:
        _loop = asyncio.new_event_loop()
        _loop.run_until_complete(broker.startup())
    return _loop.run_until_complete(coroutine)


def send(task, numbers):
    async def all_of_them():
        kiq = TASKS[task].kiq
        return [(await kiq(number)).task_id for number in numbers]

    return _run(all_of_them())


def send_in_bulk(task, numbers):
    """A hundred at once; each is a trip of its own."""

    async def all_of_them():
        kiq, sent = TASKS[task].kiq, []
        for first in range(0, len(numbers), 100):
            sent += await asyncio.gather(*map(kiq, numbers[first : first + 100]))
        return [each.task_id for each in sent]

    return _run(all_of_them())


def round_trips(count):
    async def all_of_them():
        taken = []
        for number in range(count):
            began = time.perf_counter()
            await (await noop.kiq(number)).wait_result(check_interval=0.001, timeout=30)
            taken.append(time.perf_counter() - began)
        return taken

    return _run(all_of_them())
