"""Named leases, buckets and counters that are over leave nothing behind, on any driver."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from redis import Redis as Client
from tests.servers import Redis

from umbel.brokers.memory import MemoryBroker
from umbel.brokers.memory.state import shared
from umbel.brokers.redis import Keys, RedisBroker
from umbel.brokers.sqlite import SqliteBroker
from umbel.clock import ManualClock
from umbel.ports import BrokerOptions
from umbel.testing.contract.rig import Driver

SECONDS = {"short": 5.0, "long": 600.0}


def _use(driver: Driver) -> None:
    for name, seconds in SECONDS.items():
        assert driver.acquire(name, "a", seconds)
        assert driver.take(name, 1, 1 / seconds, 1) == 0.0
        assert driver.count(name, 1, seconds) == 1


def _use_and_beat(driver: Driver, clock: ManualClock) -> None:
    driver.open()
    driver.enlist("run", None, b"")
    _use(driver)
    clock.advance(20.0)
    driver.beat("run")
    driver.close()


def test_memory_is_cleared_by_a_heartbeat(tmp_path: Path) -> None:
    clock = ManualClock()
    _use_and_beat(MemoryBroker(str(tmp_path), BrokerOptions(), clock=clock), clock)
    kept = shared(str(tmp_path)).coordination
    assert kept.leases.keys() == kept.buckets.keys() == kept.counters.keys() == {"long"}


def test_a_file_is_cleared_by_a_heartbeat(tmp_path: Path) -> None:
    clock, path = ManualClock(), tmp_path / "umbel.db"
    _use_and_beat(SqliteBroker(path, BrokerOptions(), clock=clock), clock)
    with closing(sqlite3.connect(path)) as connection:
        for table in ("named_lease", "bucket", "counter"):
            assert connection.execute(f"SELECT name FROM {table}").fetchall() == [("long",)]


def test_redis_clears_them_away_by_itself(redis_server: Redis, tmp_path: Path) -> None:
    prefix = f"{tmp_path.name}:"
    driver = RedisBroker(redis_server.url, BrokerOptions(), keys=Keys(prefix))
    driver.open()
    _use(driver)
    driver.close()
    with Client.from_url(redis_server.url) as client:
        left = {key.decode(): client.ttl(key) for key in client.scan_iter(f"{prefix}umbel:*")}
    assert left.keys() == {
        f"{prefix}umbel:{kind}:{name}" for kind in ("lease", "bucket", "count") for name in SECONDS
    }
    for key, ttl in left.items():
        seconds = SECONDS[key.rpartition(":")[2]]
        assert seconds <= ttl <= seconds + 70
