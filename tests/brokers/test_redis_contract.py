"""The contract suites on a real server."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.servers import Redis

from umbel.brokers.redis import Keys, RedisBroker
from umbel.clock import Clock
from umbel.ports import BrokerOptions
from umbel.testing.contract import BrokerContract, CoordinatorContract, InspectorContract

URL = "UMBEL_TESTS_REDIS"
"""In the environment, so that the processes that a suite starts find the server too."""


def serve(redis_server: Redis) -> Iterator[None]:
    os.environ[URL] = redis_server.url
    yield
    del os.environ[URL]


@pytest.fixture(autouse=True, scope="module")
def server(redis_server: Redis) -> Iterator[None]:
    yield from serve(redis_server)


def connect(where: Path, options: BrokerOptions, clock: Clock) -> RedisBroker:
    """On the one server, a storage is a prefix of keys."""
    prefix = hashlib.blake2b(str(where).encode(), digest_size=6).hexdigest() + ":"
    return RedisBroker(os.environ[URL], options, clock=clock, keys=Keys(prefix))


class TestRedisBroker(BrokerContract, CoordinatorContract, InspectorContract):
    connect = staticmethod(connect)
