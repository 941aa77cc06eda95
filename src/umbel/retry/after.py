"""When a server asks to be left alone for a while: ``Retry-After``, from an exception.

Source: https://www.rfc-editor.org/rfc/rfc9110#field.retry-after
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta


def retry_after(exc: BaseException, now: float) -> float | None:
    """Seconds, from `now` (unix seconds) on, that `exc` asks to wait; None where it doesn't.

    Looked for in ``exc.retry_after``, then in the headers of ``exc.response`` (as of requests and
    httpx) and of `exc` itself (as of urllib and aiohttp). A number of seconds, also as text, a
    date as HTTP writes it, a `datetime` or a `timedelta`; what is none of these is no answer, and
    what lies in the past is 0.
    """
    for value in _answers(exc):
        seconds = _seconds(value, now)
        if seconds is not None and math.isfinite(seconds):
            return max(0.0, seconds)
    return None


def _answers(exc: BaseException) -> Iterator[object]:
    yield _attribute(exc, "retry_after")
    for owner in (_attribute(exc, "response"), exc):
        headers = _attribute(owner, "headers")
        for name in ("Retry-After", "retry-after"):
            try:
                yield headers.get(name)  # type: ignore[attr-defined]  # whatever the user has there
            except Exception:
                break


def _attribute(owner: object, name: str) -> object:
    try:
        return getattr(owner, name, None)
    except Exception:  # a property of the user's class; httpx has one that raises
        return None


def _seconds(value: object, now: float) -> float | None:
    match value:
        case bool():
            return None
        case int() | float():
            return _as_float(value)
        case timedelta():
            return value.total_seconds()
        case datetime():
            return _until(value, now)
        case str():
            number = _as_float(value)
            return _until_date(value, now) if number is None else number
        case _:
            return None


def _as_float(value: float | str) -> float | None:
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _until_date(text: str, now: float) -> float | None:
    from email.utils import parsedate_to_datetime  # loads socket, which not every app needs

    try:
        return _until(parsedate_to_datetime(text), now)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def _until(instant: datetime, now: float) -> float | None:
    # HTTP's dates are in GMT, and one of its three forms doesn't say so.
    aware = instant if instant.tzinfo is not None else instant.replace(tzinfo=UTC)
    try:
        return aware.timestamp() - now
    except OverflowError:
        return None
