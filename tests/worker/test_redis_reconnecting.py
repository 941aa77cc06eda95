"""Real workers whose Redis server, or the way to it, fails and returns: they consume again within
5 s of the return, from the same queues, and have run each task once."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from redis.crc import key_slot
from tests.brokers.redis_proxy import Proxy
from tests.servers import Cluster, Redis, Watched, redis, watched
from tests.worker.harness import until
from tests.worker.living import Place

from umbel import Umbel

__all__ = ["redis", "watched"]

SOON = 5.0
"""Seconds from the return of the server to the start of a task that waits there."""
OUTAGE = 2.5
"""Seconds: longer than any answer is waited for."""


@pytest.fixture
def proxy(redis: Redis) -> Iterator[Proxy]:
    redis.flush()
    made = Proxy(redis.port)
    yield made
    made.close()


@pytest.fixture
def place(proxy: Proxy, tmp_path: Path) -> Iterator[Place]:
    """The workers' way to the server is the proxy."""
    with _place(tmp_path, proxy.url) as made:
        yield made


@contextmanager
def _place(folder: Path, url: str, **settings: object) -> Iterator[Place]:
    made = Place(folder, lease=8.0, url=url, settings=settings)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster(timeout_ms=1000)
    try:
        made.start()
        yield made
    finally:
        made.remove()


@pytest.fixture
def client(redis: Redis) -> Iterator[Umbel]:
    """Sends without the proxy."""
    with Umbel("direct", broker=redis.url, set_as_current=False) as app:
        yield app


def _works(place: Place, client: Umbel, tag: str, since: float, soon: float = SOON) -> None:
    """A task that is sent now begins so soon after the moment `since`."""
    for queue in ("celery", "second"):
        client.send_task("quick", [f"{tag}-{queue}"], queue=queue)
        (note,) = place.noted("start", f"{tag}-{queue}")
        assert note.at - since < soon, place.logs()


def _twice(place: Place) -> set[str]:
    return {tag for tag, count in place.counts("start").items() if count > 1}


def test_answers_that_are_cut_off(place: Place, proxy: Proxy, client: Umbel) -> None:
    place.worker("-c", "2", "-Q", "celery,second")
    _works(place, client, "before", time.monotonic())
    proxy.lose_replies = True
    for n in range(20):
        client.send_task("quick", [f"t{n}"])
    proxy.cut()
    time.sleep(0.5)  # it tries meanwhile, in vain
    proxy.lose_replies = False
    _works(place, client, "after", time.monotonic())
    until(lambda: len(place.notes("start")) >= 24, what=place.logs())
    assert _twice(place) == set()


@pytest.mark.parametrize("is_idle", [True, False])
def test_connections_that_are_dead_and_nobody_says_so(
    place: Place, proxy: Proxy, client: Umbel, is_idle: bool
) -> None:
    """Also those that a worker waits and listens on."""
    worker = place.worker("-c", "2", "-Q", "celery,second")
    _works(place, client, "before", time.monotonic())
    if not is_idle:
        for n in range(200):
            client.send_task("quick", [f"t{n}"])
        place.noted("start", times=20)
    proxy.deafen()
    _works(place, client, "after", time.monotonic())
    if not is_idle:
        until(lambda: len(place.notes("start")) >= 204, what=place.logs())
    assert _twice(place) == set()
    assert worker.stop() == 0


def test_packets_that_are_dropped_for_a_while(place: Place, proxy: Proxy, client: Umbel) -> None:
    place.worker("-c", "2", "-Q", "celery,second")
    _works(place, client, "before", time.monotonic())
    proxy.swallow = True
    time.sleep(OUTAGE)
    proxy.swallow = False
    _works(place, client, "after", time.monotonic())
    assert _twice(place) == set()


def test_a_server_that_stands_still_for_a_while(place: Place, client: Umbel, redis: Redis) -> None:
    place.worker("-c", "2", "-Q", "celery,second")
    _works(place, client, "before", time.monotonic())
    redis.freeze()
    time.sleep(OUTAGE)
    redis.thaw()
    _works(place, client, "after", time.monotonic())
    assert _twice(place) == set()


@pytest.mark.parametrize("keeps", [True, False])
def test_a_server_that_is_started_again(
    place: Place, client: Umbel, redis: Redis, keeps: bool
) -> None:
    """With what it had, or empty: then the worker is a new run, for which it starts as a whole, and
    how long that takes on a busy machine is another matter."""
    place.worker("-c", "2", "-Q", "celery,second")
    _works(place, client, "before", time.monotonic())
    redis.kill()
    if not keeps:
        shutil.rmtree(redis.folder / "appendonlydir")
    time.sleep(OUTAGE)
    redis.start()
    _works(place, client, "after", time.monotonic(), SOON if keeps else 4 * SOON)
    assert _twice(place) == set()


def test_a_failover(watched: Watched, tmp_path: Path) -> None:
    """Of a primary that dies, with messages, results and a worker that is at work."""
    with _place(tmp_path, watched.url, broker_transport_options=watched.transport) as place:
        place.worker("-c", "2", "-Q", "celery,second")
        _works(place, place.app, "before", time.monotonic())
        watched.primary.kill()
        watched.await_promotion()
        _works(place, place.app, "after", time.monotonic())
        assert place.send("quick", "result").get(timeout=SOON)
        assert _twice(place) == set()


SLOT = key_slot(b"umbel")


def test_a_slot_of_a_cluster_that_moves(cluster: Cluster, tmp_path: Path) -> None:
    """Under a worker that is at work; then its node dies, and a replica takes its place."""
    with _place(tmp_path, cluster.url) as place:
        place.worker("-c", "2", "-Q", "celery,second")
        _works(place, place.app, "before", time.monotonic())
        owner = cluster.owner(SLOT)
        target = next(node for node in cluster.nodes if node is not owner)
        for n in range(100):
            place.send("quick", f"t{n}")
        cluster.begin_to_move(SLOT, target)
        cluster.move(SLOT, target)
        _works(place, place.app, "moved", time.monotonic())
        until(lambda: len(place.notes("start")) >= 104, what=place.logs())
        assert _twice(place) == set()

        replica = cluster.add_replica(target)
        cluster.kill(target)
        until(lambda: cluster.owner(SLOT) is replica)
        cluster.await_agreement()
        _works(place, place.app, "promoted", time.monotonic())
        assert _twice(place) == set()
