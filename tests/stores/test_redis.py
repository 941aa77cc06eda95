from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
import redis
from tests.servers import Redis

from umbel.clock import Clock, ManualClock
from umbel.ports import ResultStore
from umbel.states import FAILURE
from umbel.stores.redis import Address, RedisStore
from umbel.testing.contract import ResultStoreContract
from umbel.testing.contract.rig import eventually
from umbel.testing.contract.storing import result

_ports: list[int] = []


class TestRedisStore(ResultStoreContract):
    """The server keeps the time, so what expires is tested in real seconds."""

    @pytest.fixture(autouse=True)
    def _server(self, redis_server: Redis) -> None:
        _ports[:] = [redis_server.port]
        with closing(redis.Redis(port=redis_server.port)) as client:
            client.flushall()

    @staticmethod
    def connect_store(where: Path, clock: Clock) -> RedisStore:
        return RedisStore(Address("127.0.0.1", _ports[0]), clock=clock)

    def test_an_expired_record_is_not_got(self, store: ResultStore, clock: ManualClock) -> None:
        store.put([result("a", expires_at=clock.wall() + 0.3), result("b")])
        assert store.get(["a"])[0] is not None
        eventually(lambda: store.get(["a"]) == [None])
        assert store.get(["b"]) == [result("b")]

    def test_an_expired_success_gives_way(self, store: ResultStore, clock: ManualClock) -> None:
        store.put([result("a", expires_at=clock.wall() - 5)])
        eventually(lambda: store.get(["a"]) == [None])
        store.put([result("a", FAILURE)])
        assert store.get(["a"]) == [result("a", FAILURE)]

    def test_prune_deletes_what_has_expired_and_counts_it(
        self, store: ResultStore, clock: ManualClock
    ) -> None:
        store.put([result("a", expires_at=clock.wall() - 5)])
        assert store.prune() == 0, "the server does it"
