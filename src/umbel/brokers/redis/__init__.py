"""``redis://``: one server that many machines share, with Celery's lists and envelopes."""

from umbel.brokers.redis.broker import RedisBroker
from umbel.brokers.redis.keys import Keys

__all__ = ["Keys", "RedisBroker"]
