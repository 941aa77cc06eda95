"""The contract suites, and the model, on a real cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from tests.brokers.test_redis_contract import prefix
from tests.servers import Cluster
from tests.stores import test_redis

from umbel.brokers.redis import Keys, RedisBroker, ResultsBeside
from umbel.clock import Clock
from umbel.ports import BrokerOptions
from umbel.redisurl import BROKER_TIMEOUTS, servers_of
from umbel.stores.redis import RESULT_KEY, RedisStore
from umbel.testing.contract import (
    BrokerContract,
    CoordinatorContract,
    InspectorContract,
    SharedDatabaseContract,
)
from umbel.testing.model import BrokerMachine

URL = "UMBEL_TESTS_REDIS_CLUSTER"
"""In the environment, so that the processes that a suite starts find the cluster too."""


@pytest.fixture(autouse=True, scope="module")
def server(redis_cluster: Cluster) -> Iterator[None]:
    os.environ[URL] = redis_cluster.url
    yield
    del os.environ[URL]


def tag(where: Path) -> str:
    """A storage is a hash tag: its keys are on one node, those of the next one on another."""
    return "{" + prefix(where) + "}"


def connect(where: Path, options: BrokerOptions, clock: Clock) -> RedisBroker:
    transport = {"global_keyprefix": tag(where)}
    servers = servers_of("broker_url", os.environ[URL], BROKER_TIMEOUTS, transport)
    results = ResultsBeside(0, f"{tag(where)}_{RESULT_KEY}")
    keys = Keys(tag(where))
    return RedisBroker(servers, options, clock=clock, keys=keys, results=results)


def connect_store(where: Path, clock: Clock) -> RedisStore:
    transport = {"global_keyprefix": tag(where)}
    servers = servers_of("result_backend", os.environ[URL], {"socket_timeout": 5}, transport)
    return RedisStore(servers, transport, clock=clock)


class TestClusterBroker(BrokerContract, CoordinatorContract, InspectorContract):
    connect = staticmethod(connect)


class TestClusterStore(test_redis.TestRedisStore):
    connect_store = staticmethod(connect_store)

    @pytest.fixture(autouse=True)
    def _server(self) -> None:
        """It is there."""


class TestClusterTogether(SharedDatabaseContract):
    connect = staticmethod(connect)
    connect_store = staticmethod(connect_store)


class ClusterMachine(BrokerMachine):
    connect = staticmethod(connect)


TestClusterMachine = ClusterMachine.TestCase
TestClusterMachine.settings = settings(max_examples=5, stateful_step_count=40)
