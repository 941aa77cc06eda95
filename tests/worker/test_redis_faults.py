"""Real workers on a Redis server that answers nothing, or takes nothing more: nothing is stranded,
nothing is doubled, nothing is lost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.brokers.redis_proxy import Proxy
from tests.servers import Redis, redis_client
from tests.worker.harness import until
from tests.worker.living import Place

from umbel import Umbel
from umbel.exceptions import BrokerUnavailable

TASKS = 60


@pytest.fixture
def proxy(redis: Redis) -> Iterator[Proxy]:
    redis.flush()
    made = Proxy(redis.port)
    yield made
    made.close()


@pytest.fixture
def client(redis: Redis) -> Iterator[Umbel]:
    """Sends without the proxy."""
    with Umbel("direct", broker=redis.url, set_as_current=False) as app:
        yield app


def _is_empty(app: Umbel) -> bool:
    queues = app.broker.queues()
    return not any(each.ready + each.delayed + each.leased + each.lost for each in queues)


def test_answers_to_fetches_and_settlements_that_are_cut_off(
    proxy: Proxy, client: Umbel, tmp_path: Path
) -> None:
    """Again and again, while tasks are taken and settled: what was asked is done, and once."""
    place = Place(tmp_path, lease=8.0, url=proxy.url)
    try:
        worker = place.worker("-c", "2")
        cut = 0
        with client.batch():
            results = [
                client.send_task(name, [f"{name}-{n}", *more])
                for n in range(TASKS // 2)
                for name, *more in (("quick",), ("late_nap", 0.02))
            ]
        while not _is_empty(client):
            proxy.lose_replies = True
            time.sleep(0.05)  # answers are lost meanwhile
            proxy.lose_replies = False
            cut += 1
            before = len(place.notes("start"))
            until(lambda before=before: len(place.notes("start")) > before or _is_empty(client))  # type: ignore[misc]
        assert cut > 1
        assert [each.get(timeout=30) is not None for each in results] == [True] * TASKS
        assert len(place.counts("start")) == TASKS
        assert set(place.counts("start").values()) == {1}
        assert client.broker.dead() == ()
        assert worker.stop() == 0
    finally:
        place.close()


def test_a_server_at_its_memory_limit(redis: Redis, tmp_path: Path) -> None:
    """`delay()` raises; what waits and runs is settled, and the worker lives for three leases."""
    redis.flush()
    place = Place(tmp_path, lease=1.0, url=redis.url)
    try:
        worker = place.worker("-c", "2")
        run = worker.run(place.broker)
        gate = place.gate()
        running = place.send("late_gated", "running", str(gate))
        place.noted("start", "running")
        with redis_client(redis.port) as server:
            server.config_set("maxmemory", "1")
            try:
                began = time.monotonic()
                while time.monotonic() - began < 3 * place.lease:
                    with pytest.raises(BrokerUnavailable, match="memory limit"):
                        place.send("quick", "refused")
                assert [each.run for each in place.broker.runs()] == [run]
                gate.touch()
                place.noted("end", "running")
            finally:
                server.config_set("maxmemory", "0")
        assert running.get(timeout=30)
        assert place.send("quick", "after").get(timeout=30)
        until(lambda: _is_empty(place.app), what=place.logs())
        assert place.counts("start") == {"running": 1, "after": 1}
        assert place.broker.dead() == ()
        assert worker.stop() == 0
    finally:
        place.close()
