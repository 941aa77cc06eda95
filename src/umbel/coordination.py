"""Named leases, token buckets and counters as values: the rules that all drivers keep.

Time is passed in. It comes from the clocks of several machines, which differ, and which may be set
back; so whoever reads a time that lies a little in the future takes it for another's clock, and
one that lies farther in the future, by more than `SKEW`, for a clock that was set back.
"""

from __future__ import annotations

from math import isfinite
from typing import Final, NamedTuple

from umbel.arguments import is_unicode

SKEW: Final = 10.0
"""Seconds by which the clocks of two machines may differ."""
EPSILON: Final = 1e-6
"""Seconds that a taker may come too early, being as exact as a clock is: what it takes then is
owed, and not given away."""
MOST: Final = 2**31 - 1
"""What a counter is changed by at most, so that sums are exact everywhere."""


class Tenure(NamedTuple):
    """Who has a named lease, until when, and for how many seconds it was given."""

    holder: str
    until: float
    seconds: float


class Bucket(NamedTuple):
    """What was in a token bucket at one moment; one that isn't kept is full."""

    tokens: float
    at: float

    def over_at(self, rate: float, burst: float) -> float:
        """When it is full, and need not be kept: by everyone's clock."""
        return self.at + (burst - self.tokens) / rate + SKEW


def acquire(known: Tenure | None, holder: str, seconds: float, now: float) -> tuple[bool, Tenure]:
    """Whether `holder` has the lease now, and what is to be kept."""
    if known is None or known.holder == holder or known.until <= now:
        return True, Tenure(holder, now + seconds, seconds)
    if known.until - known.seconds > now + SKEW:  # else it would last until time has caught up
        return False, known._replace(until=now + known.seconds)
    return False, known


def take(
    known: Bucket | None, amount: float, rate: float, burst: float, now: float
) -> tuple[float, Bucket]:
    """Seconds until `amount` will be there, 0.0 where it was taken, and what is to be kept.

    A bucket has the time of the foremost clock, so that a slower one gives nothing away.
    """
    tokens, at = known or (burst, now)
    if at > now + SKEW:
        at = now
    tokens = min(burst, tokens + max(0.0, now - at) * rate)
    at = max(at, now)
    if tokens + EPSILON * rate >= amount:
        return 0.0, Bucket(tokens - amount, at)
    return at - now + (amount - tokens) / rate, Bucket(tokens, at)


def check_holder(name: str, holder: str) -> None:
    """Raise `ValueError` where these can't be."""
    _check_text("a lease's name", name)
    _check_text("a lease's holder", holder)


def check_lease(name: str, holder: str, seconds: float) -> None:
    """Raise `ValueError` where these can't be."""
    check_holder(name, holder)
    _check_seconds(seconds)


def check_take(bucket: str, amount: float, rate: float, burst: float) -> None:
    """Raise `ValueError` where these can't be."""
    _check_text("a bucket's name", bucket)
    for what, value in (("rate", rate), ("burst", burst)):
        if not (isfinite(value) and value > 0):
            raise ValueError(
                f"bucket {bucket!r} has {what} {value!r}; expected a number of tokens above 0"
            )
    if not 0 < amount <= burst:
        raise ValueError(
            f"{amount!r} tokens were asked of bucket {bucket!r}, which holds {burst!r} at most; "
            "expected a number above 0 and not above that"
        )


def check_count(name: str, by: int, seconds: float) -> None:
    """Raise `ValueError` where these can't be."""
    _check_text("a counter's name", name)
    _check_seconds(seconds)
    if not -MOST <= by <= MOST:
        raise ValueError(
            f"counter {name!r} was to be changed by {by!r}; expected at most {MOST}, up or down"
        )


def _check_text(what: str, text: str) -> None:
    if not text or not is_unicode(text):
        raise ValueError(f"{what} is {text!r}; expected Unicode text that isn't empty")


def _check_seconds(seconds: float) -> None:
    if not (isfinite(seconds) and seconds > 0):
        raise ValueError(f"{seconds!r} seconds were asked for; expected a number above 0")
