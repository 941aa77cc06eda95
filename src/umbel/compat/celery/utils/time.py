"""``celery.utils.time``: the part that programs use."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

from umbel.compat.missing import guard

__all__ = [
    "get_exponential_backoff_interval",
    "is_naive",
    "localize",
    "make_aware",
    "maybe_iso8601",
    "maybe_make_aware",
    "maybe_timedelta",
    "to_utc",
]


def maybe_timedelta(delta: Any) -> Any:
    """Seconds as a `timedelta`; anything else as it is."""
    return timedelta(seconds=delta) if isinstance(delta, (int, float)) else delta


def is_naive(dt: datetime) -> bool:
    """Whether it says nothing of its time zone."""
    return dt.utcoffset() is None


def make_aware(dt: datetime, tz: tzinfo) -> datetime:
    """The naive time `dt` of the zone `tz`, aware."""
    return dt.replace(tzinfo=tz)


def localize(dt: datetime, tz: tzinfo) -> datetime:
    """The same moment in the zone `tz`; a naive `dt` is a time of that zone."""
    return make_aware(dt, tz) if is_naive(dt) else dt.astimezone(tz)


def to_utc(dt: datetime) -> datetime:
    """The naive time `dt` of UTC, aware."""
    return make_aware(dt, UTC)


def maybe_make_aware(dt: Any, tz: tzinfo | None = None, naive_as_utc: bool = True) -> Any:
    """A naive time as aware, in the zone `tz`, else in UTC; anything else as it is."""
    if not isinstance(dt, datetime) or not is_naive(dt):
        return dt
    aware = make_aware(dt, UTC if naive_as_utc or tz is None else tz)
    return aware if tz is None else localize(aware, tz)


def maybe_iso8601(dt: Any) -> Any:
    """A text as the time that it stands for; a time and None as they are."""
    return datetime.fromisoformat(dt) if isinstance(dt, str) and dt else dt or None


def get_exponential_backoff_interval(
    factor: int, retries: int, maximum: int, full_jitter: bool = False
) -> int:
    """The seconds before the next try: `factor`, twice, four times, … and at most `maximum`.

    With `full_jitter` a random number from 0 to that.
    """
    delay = min(maximum, factor * 2**retries)
    return max(0, random.randrange(delay + 1) if full_jitter else delay)


guard(__name__)
