"""The server of these tests; it is started once, when the first test asks for it."""

import pytest
from tests.servers import Redis, redis

__all__ = ["redis", "redis_server"]


@pytest.fixture(scope="session")
def redis_server(redis: Redis) -> Redis:
    """The server, for modules that import redis-py by the other name."""
    return redis
