"""The long form of a test: ``./dev test tests/stores/long_forgetting.py -n 0``."""

from __future__ import annotations

import pytest
from tests.servers import Redis
from tests.stores.forgetting import get_and_forget


@pytest.mark.timeout(1200)
def test_nothing_is_left_of_a_hundred_thousand_results(redis_server: Redis) -> None:
    get_and_forget(redis_server, 100_000)
