"""``redis://``: one server that many machines share, with Celery's lists and envelopes."""

from umbel.exceptions import ImproperlyConfigured

try:
    import redis  # noqa: F401  # only to say in one sentence that it isn't there
except ImportError as error:
    raise ImproperlyConfigured(
        "redis:// needs the package redis, which isn't installed; install umbel[redis]"
    ) from error

from umbel.brokers.redis.broker import RedisBroker
from umbel.brokers.redis.keys import Keys
from umbel.brokers.redis.link import Pool
from umbel.brokers.redis.settling import ResultsBeside

__all__ = ["Keys", "Pool", "RedisBroker", "ResultsBeside"]
