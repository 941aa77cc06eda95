"""Named leases, token buckets and counters of ``memory://``.

Every method is called with `MemoryState.lock` held.
"""

from __future__ import annotations

from umbel import coordination
from umbel.coordination import Bucket, Tenure


class Coordination:
    """What there is, by name; a bucket with the time from which on it is full."""

    def __init__(self) -> None:
        self.leases: dict[str, Tenure] = {}
        self.buckets: dict[str, tuple[Bucket, float]] = {}
        self.counters: dict[str, tuple[int, float]] = {}

    def acquire(self, name: str, holder: str, seconds: float, now: float) -> bool:
        has, self.leases[name] = coordination.acquire(self.leases.get(name), holder, seconds, now)
        return has

    def release(self, name: str, holder: str, now: float) -> bool:
        tenure = self.leases.get(name)
        if tenure is None or tenure.holder != holder:
            return False
        del self.leases[name]
        return tenure.until > now

    def take(self, name: str, amount: float, rate: float, burst: float, now: float) -> float:
        known, _ = self.buckets.get(name, (None, now))
        wait, bucket = coordination.take(known, amount, rate, burst, now)
        self.buckets[name] = bucket, bucket.over_at(rate, burst)
        return wait

    def count(self, name: str, by: int, seconds: float, now: float) -> int:
        value, until = self.counters.get(name, (0, now))
        value = by + (value if until > now else 0)
        if not value:
            self.counters.pop(name, None)
        elif by:
            self.counters[name] = value, now + seconds
        return value

    def prune(self, now: float) -> None:
        """Forget what is over."""
        self.leases = {name: held for name, held in self.leases.items() if held.until > now}
        self.buckets = {name: kept for name, kept in self.buckets.items() if kept[1] > now}
        self.counters = {name: kept for name, kept in self.counters.items() if kept[1] > now}
