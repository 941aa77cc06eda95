"""The servers of these tests; each is started once, when the first test asks for it."""

from tests.servers import redis_server

__all__ = ["redis_server"]
