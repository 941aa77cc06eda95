"""All of the contracts, and the model, on the oldest and the newest servers; it takes a minute.

Not a part of the suite: ``./dev test tests/brokers/all_redis_versions.py``.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from tests.brokers.redis_versions import OtherRedis
from tests.brokers.test_redis_contract import TestRedisBroker, TestRedisTogether
from tests.brokers.test_redis_model import RedisMachine
from tests.brokers.test_redis_versions import server, test_it_is_the_server_that_it_should_be

__all__ = [
    "TestRedisBroker",
    "TestRedisTogether",
    "server",
    "test_it_is_the_server_that_it_should_be",
]


def test_model(server: OtherRedis) -> None:
    steps = settings(max_examples=20, stateful_step_count=40)
    run_state_machine_as_test(RedisMachine, settings=steps)
