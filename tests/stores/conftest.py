"""The servers of these tests; each is started once, when the first test asks for it."""

from tests.servers import mariadb, memcached, postgresql, redis_server

__all__ = ["mariadb", "memcached", "postgresql", "redis_server"]
