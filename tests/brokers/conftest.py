"""The servers of these tests; each is started once, when the first test asks for it."""

from tests.servers import redis

__all__ = ["redis"]
