"""The server of these tests; it is started once, when the first test asks for it."""

import pytest
from tests.servers import Redis, redis, redis_cluster, redis_over_tls

__all__ = ["redis", "redis_cluster", "redis_over_tls", "redis_server"]


@pytest.fixture(scope="session")
def redis_server(redis: Redis) -> Redis:
    """The server, for modules that import redis-py by the other name."""
    return redis
