"""Named leases, token buckets and counters; each operation is one script.

The rules are those of `umbel.coordination`, which the scripts repeat in their language.
"""

from __future__ import annotations

from umbel.brokers.redis.server import Server
from umbel.coordination import EPSILON, SKEW


def acquire(server: Server, name: str, holder: str, seconds: float) -> bool:
    """See `Coordinator.acquire`."""
    reply = server.run(
        server.scripts.acquire, name, holder, repr(float(seconds)), server.now, repr(SKEW)
    )
    return bool(reply)


def release(server: Server, name: str, holder: str) -> bool:
    """See `Coordinator.release`."""
    return bool(server.run(server.scripts.release, name, holder, server.now))


def take(server: Server, name: str, amount: float, rate: float, burst: float) -> float:
    """See `Coordinator.take`."""
    numbers = map(repr, (float(amount), float(rate), float(burst)))
    wait = server.run(server.scripts.take, name, *numbers, server.now, repr(SKEW), repr(EPSILON))
    return float(wait)


def count(server: Server, name: str, by: int, seconds: float) -> int:
    """See `Coordinator.count`."""
    return int(server.run(server.scripts.count, name, by, repr(float(seconds)), server.now))
