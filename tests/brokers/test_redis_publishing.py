"""Publishing from what web programs are made of: forks, threads, greenlets, coroutines."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.brokers.redis_versions import installed
from tests.servers import Redis, redis_client

from umbel import Umbel

MANY = 10_000
GEVENT = ("gevent==26.9.0", "greenlet==3.5.6", "zope.event==6.2", "zope.interface==8.7")

_FROM_GREENLETS = """
from gevent import monkey
monkey.patch_all()
import sys
import gevent
from umbel import Umbel

app = Umbel("web", broker=sys.argv[1])
ticks = []

def tick():
    while True:
        ticks.append(1)
        gevent.sleep(0.01)

def send(n):
    return [app.send_task("t", [n, k]).id for k in range(20)]

gevent.spawn(tick)
jobs = gevent.joinall([gevent.spawn(send, n) for n in range(50)], timeout=60, raise_error=True)
[queue] = app.broker.queues()
ids = {id for job in jobs for id in job.value}
try:
    app.AsyncResult(ids.pop()).get(timeout=0.5)
except TimeoutError:
    # Whoever waits for a result lets the others go on.
    print(queue.ready, len(ids), len(ticks) > 10)
"""


def _evalshas(port: int) -> int:
    with redis_client(port) as client:
        stats = client.info("commandstats")
    return int(stats.get("cmdstat_evalsha", {"calls": 0})["calls"])


def test_ten_thousand_coroutines_make_few_trips(redis_server: Redis) -> None:
    redis_server.flush()
    with Umbel("web", broker=redis_server.url, set_as_current=False) as app:
        app.send_task("first")
        before = _evalshas(redis_server.port)

        async def send() -> list[str]:
            results = await asyncio.gather(*(app.asend_task("t", (n,)) for n in range(MANY)))
            return [result.id for result in results]

        sent = asyncio.run(send())
        trips = _evalshas(redis_server.port) - before
        [queue] = app.broker.queues()
    print(f"{trips} trips for {MANY} messages")
    assert len(set(sent)) == MANY
    assert queue.ready == MANY + 1
    assert trips <= 100


def test_threads_send_at_once(redis_server: Redis) -> None:
    """More of them than there are connections."""
    redis_server.flush()
    with (
        Umbel("web", broker=redis_server.url, set_as_current=False) as app,
        ThreadPoolExecutor(32) as threads,
    ):
        sent = list(threads.map(lambda n: app.send_task("t", (n,)).id, range(1000)))
        [queue] = app.broker.queues()
        assert len(set(sent)) == queue.ready == 1000


def test_greenlets_send_at_once(redis_server: Redis) -> None:
    redis_server.flush()
    path = os.pathsep.join([str(installed("gevent", *GEVENT)), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", _FROM_GREENLETS, redis_server.url],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
        cwd=Path(__file__).parent,
    )
    assert (done.stdout, done.returncode) == ("1000 999 True\n", 0), done.stderr


@pytest.mark.parametrize("workers", [3])
def test_a_prefork_parent_that_has_sent_before(redis_server: Redis, workers: int) -> None:
    """Its children send from threads and from coroutines, beside each other."""
    redis_server.flush()
    program = """
import asyncio, os, sys
from concurrent.futures import ThreadPoolExecutor
from umbel import Umbel
app = Umbel("web", broker=sys.argv[1])
async def some():
    await asyncio.gather(*(app.asend_task("loop") for _ in range(50)))
app.send_task("before")
asyncio.run(some())
children = []
for _ in range(int(sys.argv[2])):
    child = os.fork()
    if not child:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda n: app.send_task("thread"), range(50)))
        asyncio.run(some())
        os._exit(0)
    children.append(child)
assert [os.waitpid(child, 0)[1] for child in children] == [0] * len(children)
[queue] = app.broker.queues()
print(queue.ready)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, redis_server.url, str(workers)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == f"{1 + 50 + 100 * workers}\n", done.stderr
