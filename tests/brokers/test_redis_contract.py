"""The contract suites on a real server."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.servers import Redis

from umbel.brokers.redis import Keys, RedisBroker, ResultsBeside
from umbel.clock import Clock
from umbel.ports import BrokerOptions
from umbel.stores.redis import RESULT_KEY, Address, RedisStore
from umbel.testing.contract import (
    BrokerContract,
    CoordinatorContract,
    InspectorContract,
    SharedDatabaseContract,
)

URL = "UMBEL_TESTS_REDIS"
"""In the environment, so that the processes that a suite starts find the server too."""


def serve(redis_server: Redis) -> Iterator[None]:
    os.environ[URL] = redis_server.url
    yield
    del os.environ[URL]


@pytest.fixture(autouse=True, scope="module")
def server(redis_server: Redis) -> Iterator[None]:
    yield from serve(redis_server)


RESULTS = 1
"""The database of results; messages are in 0."""


def prefix(where: Path) -> str:
    """On the one server, a storage is a prefix of keys."""
    return hashlib.blake2b(str(where).encode(), digest_size=6).hexdigest() + ":"


def connect(where: Path, options: BrokerOptions, clock: Clock) -> RedisBroker:
    results = ResultsBeside(RESULTS, prefix(where) + RESULT_KEY)
    keys = Keys(prefix(where))
    return RedisBroker(os.environ[URL], options, clock=clock, keys=keys, results=results)


class TestRedisBroker(BrokerContract, CoordinatorContract, InspectorContract):
    connect = staticmethod(connect)


class TestRedisTogether(SharedDatabaseContract):
    """Broker and results in two databases of one server."""

    connect = staticmethod(connect)

    @staticmethod
    def connect_store(where: Path, clock: Clock) -> RedisStore:
        return RedisStore(
            Address.of("result_backend", os.environ[URL].removesuffix("0") + str(RESULTS)),
            {"global_keyprefix": prefix(where)},
            clock=clock,
        )
