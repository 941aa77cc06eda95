"""``redis://`` as result store: Celery's keys, records and channels."""

from umbel.redisurl import Address
from umbel.stores.redis.store import KEY as RESULT_KEY
from umbel.stores.redis.store import RedisStore

__all__ = ["RESULT_KEY", "Address", "RedisStore"]
