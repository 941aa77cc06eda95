"""The servers of these tests; each is started once, when the first test asks for it."""

import pytest
from tests.servers import Redis, mariadb, memcached, postgresql, redis, redis_over_tls

__all__ = ["mariadb", "memcached", "postgresql", "redis", "redis_over_tls", "redis_server"]


@pytest.fixture
def redis_server(redis: Redis) -> Redis:
    """Under a name that the client library doesn't have."""
    return redis
