"""``redis://`` as result store: Celery's keys, records and channels."""

from umbel.stores.redis.address import Address, key_prefix
from umbel.stores.redis.store import RedisStore

__all__ = ["Address", "RedisStore", "key_prefix"]
