"""Named leases, token buckets and counters; each change is of one row."""

from __future__ import annotations

from typing import Final

from umbel import coordination
from umbel.brokers.sqlite.work import Work
from umbel.coordination import Bucket, Tenure

_LEASE: Final = "SELECT holder, until, seconds FROM named_lease WHERE name = ?"
_KEEP_LEASE: Final = "REPLACE INTO named_lease (name, holder, until, seconds) VALUES (?, ?, ?, ?)"
_RELEASE: Final = "DELETE FROM named_lease WHERE name = ? AND holder = ? RETURNING until"
_BUCKET: Final = "SELECT tokens, at FROM bucket WHERE name = ?"
_KEEP_BUCKET: Final = "REPLACE INTO bucket (name, tokens, at, until) VALUES (?, ?, ?, ?)"
_COUNTER: Final = "SELECT value FROM counter WHERE name = ? AND until > ?"
_KEEP_COUNTER: Final = "REPLACE INTO counter (name, value, until) VALUES (?, ?, ?)"
_FORGET_COUNTER: Final = "DELETE FROM counter WHERE name = ?"
_PRUNE: Final = tuple(
    f"DELETE FROM {table} WHERE until <= ?" for table in ("named_lease", "bucket", "counter")
)


def acquire(work: Work, name: str, holder: str, seconds: float) -> bool:
    """See `Coordinator.acquire`."""
    row = work.tx.execute(_LEASE, (name,)).fetchone()
    known = None if row is None else Tenure(*row)
    has, tenure = coordination.acquire(known, holder, seconds, work.now)
    if tenure != known:
        work.tx.execute(_KEEP_LEASE, (name, *tenure))
    return has


def release(work: Work, name: str, holder: str) -> bool:
    """See `Coordinator.release`."""
    rows = work.tx.execute(_RELEASE, (name, holder)).fetchall()
    return any(until > work.now for (until,) in rows)


def take(work: Work, name: str, amount: float, rate: float, burst: float) -> float:
    """See `Coordinator.take`."""
    row = work.tx.execute(_BUCKET, (name,)).fetchone()
    known = None if row is None else Bucket(*row)
    wait, bucket = coordination.take(known, amount, rate, burst, work.now)
    work.tx.execute(_KEEP_BUCKET, (name, *bucket, bucket.over_at(rate, burst)))
    return wait


def count(work: Work, name: str, by: int, seconds: float) -> int:
    """See `Coordinator.count`."""
    row = work.tx.execute(_COUNTER, (name, work.now)).fetchone()
    value: int = by + (0 if row is None else row[0])
    if not value:
        work.tx.execute(_FORGET_COUNTER, (name,))
    elif by:
        work.tx.execute(_KEEP_COUNTER, (name, value, work.now + seconds))
    return value


def prune(work: Work) -> None:
    """Forget what is over."""
    for statement in _PRUNE:
        work.tx.execute(statement, (work.now,))
