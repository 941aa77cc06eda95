"""The driver against the model, step by step."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings
from tests.brokers.test_redis_contract import connect, serve
from tests.servers import Redis

from umbel.testing.model import BrokerMachine


@pytest.fixture(autouse=True, scope="module")
def server(redis_server: Redis) -> Iterator[None]:
    yield from serve(redis_server)


class RedisMachine(BrokerMachine):
    connect = staticmethod(connect)


TestRedisMachine = RedisMachine.TestCase
TestRedisMachine.settings = settings(max_examples=20, stateful_step_count=40)
