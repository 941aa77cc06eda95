"""Points in time: what `countdown`, `eta`, `expires` and the times on the wire mean.

The caller's naive times are in the app's zone (`timezone`; UTC unless set), and everything is
written with its offset, so that whoever reads it sees the same instant. Where clocks are set back,
a naive time that comes twice is the first of the two, with ``fold=1`` the second; one that is
skipped is as far after the gap as it seems to be after its beginning: 2:30 is 3:30.

A naive time on the wire is UTC, whatever the app's zone: that is how Celery's workers read what
Celery's callers write.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import lru_cache
from typing import Final, NamedTuple

from umbel.exceptions import ImproperlyConfigured
from umbel.saferepr import safe_repr
from umbel.settings import Settings

When = float | timedelta | datetime | str
"""Seconds from now, or an instant; as text in ISO 8601."""

_LATEST: Final = datetime.max.replace(tzinfo=UTC).timestamp() - 86_400


class Due(NamedTuple):
    """A point in time: as it is written into headers, and in unix seconds."""

    text: str
    at: float


def due(
    countdown: float | timedelta | None,
    eta: datetime | date | str | None,
    now: float,
    zone: tzinfo,
) -> Due | None:
    """When a call is due, None: now. Raises `ValueError`.

    `countdown` wins over `eta`, unless it is 0: that says nothing, as in Celery.
    """
    if countdown is not None:
        seconds = _seconds("countdown", countdown, now)
        if seconds:
            return _after(seconds, now, zone)
    if isinstance(eta, date) and not isinstance(eta, datetime):
        eta = datetime.combine(eta, time())
    return None if eta is None else _instant("eta", eta, zone)


def expiry(expires: When | None, now: float, zone: tzinfo) -> tuple[str | None, str | None]:
    """(header `expires`, property `expiration`). Raises `ValueError`."""
    if expires is None:
        return None, None
    if isinstance(expires, int | float | timedelta):
        end = _after(_seconds("expires", expires, now), now, zone)
    else:
        end = _instant("expires", expires, zone)
    return end.text, str(max(0, int((end.at - now) * 1000)))


def parse_instant(text: str) -> float:
    """A time on the wire, in ISO 8601, as unix seconds. Raises `ValueError`."""
    return unix_seconds(_aware(datetime.fromisoformat(text), UTC))


def unix_seconds(aware: datetime) -> float:
    """`aware` as unix seconds. Raises `ValueError` beyond the years that have them."""
    try:
        return aware.timestamp()
    except OverflowError as error:
        raise ValueError(f"{aware.isoformat()} is beyond what a clock can show") from error


def time_zone(conf: Settings) -> tzinfo:
    """The zone of naive times. Raises `ImproperlyConfigured`."""
    zone = conf.timezone
    if zone is None:
        return UTC if conf.enable_utc else HOST_ZONE
    return _named_zone(zone) if isinstance(zone, str) else zone


class HostZone(tzinfo):
    """The zone of this machine, with the offset that holds at each instant."""

    def utcoffset(self, instant: datetime | None) -> timedelta | None:
        return None if instant is None else _on_this_machine(instant).utcoffset()

    def dst(self, instant: datetime | None) -> None:
        return None

    def tzname(self, instant: datetime | None) -> str | None:
        return None if instant is None else _on_this_machine(instant).tzname()

    def fromutc(self, instant: datetime) -> datetime:
        whole = instant.replace(tzinfo=UTC, microsecond=0)
        local = datetime.fromtimestamp(whole.timestamp())  # noqa: DTZ006 (it sets `fold`)
        return local.replace(microsecond=instant.microsecond, tzinfo=self)

    def __repr__(self) -> str:
        return "HostZone()"


HOST_ZONE: Final = HostZone()


def _on_this_machine(instant: datetime) -> datetime:
    return instant.replace(tzinfo=None).astimezone()


@lru_cache(maxsize=8)
def _named_zone(name: str) -> tzinfo:
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ImproperlyConfigured(
            f"timezone {name!r} isn't known on this machine; write a name of the tz database, "
            "such as 'Europe/Paris', and install the package tzdata where the system has none"
        ) from error


def _seconds(name: str, seconds: object, now: float) -> float:
    if isinstance(seconds, timedelta):
        seconds = seconds.total_seconds()
    try:
        if isinstance(seconds, int | float) and now + seconds <= _LATEST:
            return seconds
    except OverflowError:  # a whole number above every float
        pass
    raise ValueError(f"{name} is {safe_repr(seconds, 80)}; expected a number of seconds")


def _after(seconds: float, now: float, zone: tzinfo) -> Due:
    at = now + max(seconds, -now)
    return Due(datetime.fromtimestamp(at, zone).isoformat(), at)


def _instant(name: str, value: object, zone: tzinfo) -> Due:
    try:
        instant = datetime.fromisoformat(value) if isinstance(value, str) else value
        if isinstance(instant, datetime):
            aware = _aware(instant, zone)
            at = unix_seconds(aware)
            if isinstance(value, str) and aware is instant:
                return Due(value, at)
            return Due(aware.isoformat(), at)
    except ValueError:
        pass
    raise ValueError(
        f"{name} is {safe_repr(value, 80)}; expected a datetime or a text in ISO-8601, such as "
        "'2026-12-24T18:00:00+01:00'"
    )


def _aware(instant: datetime, zone: tzinfo) -> datetime:
    return instant if instant.utcoffset() is not None else instant.replace(tzinfo=zone)
