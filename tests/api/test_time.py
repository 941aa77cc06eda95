"""Times: what is said to a call, what stands in its message, and the instant that both mean.

The caller's side is asked in processes with a `TZ` of their own, where every zone of an app and
every form of a time is tried at moments before, in and after changes of the clocks. What a message
of Celery's means is what a Celery 5.7 worker was seen to make of the same text.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from itertools import product
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.api.looking import lease

from umbel import Umbel
from umbel.clock import ManualClock
from umbel.compat.celery import Celery
from umbel.exceptions import InvalidTaskError
from umbel.instants import HOST_ZONE, When, due, expiry, parse_instant, time_zone
from umbel.message import Delivery, Message, Posting
from umbel.protocol import read_request
from umbel.request import Context

HOSTS = ("UTC", "Europe/Berlin", "America/St_Johns", "Asia/Kolkata", "Pacific/Chatham")
ZONES: tuple[tuple[str | None, bool], ...] = (
    (None, True),
    (None, False),
    ("UTC", True),
    ("Europe/Berlin", True),
    ("Europe/Berlin", False),
    ("America/St_Johns", True),
    ("Pacific/Chatham", False),
)
"""`timezone` and `enable_utc`."""
MOMENTS = (
    "2027-01-15T08:00:00+00:00",
    "2027-07-15T08:00:00+00:00",
    # Berlin: 2:00 becomes 3:00 at 1:00 UTC, and 3:00 becomes 2:00.
    "2027-03-28T00:59:55+00:00",
    "2027-10-31T00:30:00+00:00",
    "2027-10-31T01:30:00+00:00",
    # St. John's: 2:00 becomes 3:00 at 5:30 UTC, and 2:00 becomes 1:00 at 4:30.
    "2027-03-14T05:29:55+00:00",
    "2027-11-07T04:29:55+00:00",
    # Chatham: 2:45 becomes 3:45 and 3:45 becomes 2:45, at 14:00 UTC of the day before.
    "2027-09-25T13:59:55+00:00",
    "2027-04-03T13:59:55+00:00",
)
"""When the calls are made."""
WALL_TIMES = (
    "2027-07-01T12:00:00",
    "2027-01-01T00:00:00",
    "2027-03-28T02:30:00",  # skipped in Berlin
    "2027-10-31T02:30:00",  # twice in Berlin
    "2027-03-14T02:15:00",  # skipped in St. John's
    "2027-11-07T01:15:00",  # twice in St. John's
    "2027-09-26T03:00:00",  # skipped in Chatham
    "2027-04-04T03:00:00",  # twice in Chatham
    "2027-11-14T06:30:00.123456",
)
AWARE = ("2027-07-01T12:00:00+05:30", "2027-10-31T02:30:00+01:00", "2027-07-01T12:00:00+00:00")
SECONDS: tuple[float, ...] = (10, 10.5, 3600, 86_400 * 200, 0.25)

Case = tuple[str, str, int]
"""The option, what it is given in JSON's types, and its `fold`."""


def cases() -> list[Case]:
    return [
        *(("countdown", str(each), 0) for each in SECONDS),
        *(("expires", str(each), 0) for each in SECONDS),
        *(("expires_delta", str(each), 0) for each in SECONDS),
        *product(("eta", "expires_at"), WALL_TIMES, (0, 1)),
        *product(("eta_text", "expires_text"), WALL_TIMES, (0,)),
        *product(("eta", "expires_at", "eta_text", "expires_text"), AWARE, (0,)),
    ]


def call(app: Umbel, option: str, value: str, fold: int) -> Posting:
    """What a call with this option publishes."""
    forms: dict[str, Callable[[str], Any]] = {
        "countdown": float,
        "expires": float,
        "expires_delta": lambda text: timedelta(seconds=float(text)),
        "eta_text": str,
        "expires_text": str,
        "eta": lambda text: datetime.fromisoformat(text).replace(fold=fold),
        "expires_at": lambda text: datetime.fromisoformat(text).replace(fold=fold),
    }
    plan = app.plan("t", {option.partition("_")[0]: forms[option](value)}, None)
    return app.publisher.build(plan, (), {}, "id")


def report() -> None:
    """The other process: what all calls publish under this `TZ`, as JSON lines."""
    for moment, (zone, utc) in product(MOMENTS, ZONES):
        clock = ManualClock(datetime.fromisoformat(moment).timestamp())
        app = Umbel(
            "t", broker="memory://times", timezone=zone, enable_utc=utc, clock=clock,
            set_as_current=False,
        )  # fmt: skip
        for case in cases():
            posting = call(app, *case)
            headers, properties = posting.message.headers, posting.message.properties
            said = (
                headers["eta"], headers["expires"], properties.get("expiration"), posting.due_at
            )  # fmt: skip
            print(json.dumps([moment, zone, utc, case, said]))


@pytest.mark.parametrize("host", HOSTS)
def test_every_form_means_one_instant(host: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from tests.api.test_time import report; report()"],
        env={**os.environ, "TZ": host, "PYTHONPATH": os.getcwd()},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == len(MOMENTS) * len(ZONES) * len(cases())
    for moment, name, utc, (option, value, fold), (eta, expires, expiration, due_at) in lines:
        now = datetime.fromisoformat(moment)
        zone = ZoneInfo(name or ("UTC" if utc else host))
        where = (host, moment, name, utc, option, value, fold)
        if option in ("countdown", "expires", "expires_delta"):
            meant = now + timedelta(seconds=float(value))
            text = meant.astimezone(zone).isoformat()
        else:
            meant = datetime.fromisoformat(value)
            if meant.tzinfo is None:
                meant = meant.replace(tzinfo=zone, fold=fold)
            text = meant.isoformat()
        at = meant.timestamp()
        if option in ("countdown", "eta", "eta_text"):
            assert (eta, due_at) == (text, pytest.approx(at, abs=1e-6)), where
            assert (expires, expiration) == (None, None), where
        else:
            assert (expires, eta, due_at) == (text, None, None), where
            left = max(0.0, (at - now.timestamp()) * 1000)
            assert int(expiration) == pytest.approx(left, abs=1), where
            assert isinstance(expiration, str)
        # Celery's workers, which take naive times for UTC, see the same instant.
        assert as_celery_reads(eta or expires) == pytest.approx(at, abs=1e-6), where


def as_celery_reads(text: str) -> float:
    instant = datetime.fromisoformat(text)
    return (instant if instant.tzinfo else instant.replace(tzinfo=UTC)).timestamp()


# The same as plain sentences.


def berlin(**options: Any) -> tuple[str | None, float | None]:
    """(header eta, due time) of a call of an app in Berlin."""
    with Umbel("t", broker="memory://t", timezone="Europe/Berlin", set_as_current=False) as app:
        posting = app.publisher.build(app.plan("t", options, None), (), {}, "id")
        return posting.message.headers["eta"], posting.due_at


def naive(*fields: int, fold: int = 0) -> datetime:
    return datetime(*fields, fold=fold)  # type: ignore[arg-type]  # noqa: DTZ001


@pytest.mark.parametrize(
    ("given_eta", "written", "utc"),
    [
        (naive(2027, 7, 1, 12), "2027-07-01T12:00:00+02:00", "2027-07-01T10:00"),
        (naive(2027, 12, 1, 12), "2027-12-01T12:00:00+01:00", "2027-12-01T11:00"),
        # Twice: the first, unless fold says otherwise.
        (naive(2027, 10, 31, 2, 30), "2027-10-31T02:30:00+02:00", "2027-10-31T00:30"),
        (naive(2027, 10, 31, 2, 30, fold=1), "2027-10-31T02:30:00+01:00", "2027-10-31T01:30"),
        # Skipped: as long after the gap's begin.
        (naive(2027, 3, 28, 2, 30), "2027-03-28T02:30:00+01:00", "2027-03-28T01:30"),
        ("2027-07-01T12:00", "2027-07-01T12:00:00+02:00", "2027-07-01T10:00"),
        ("2027-07-01T12:00Z", "2027-07-01T12:00Z", "2027-07-01T12:00"),
        (date(2027, 7, 1), "2027-07-01T00:00:00+02:00", "2027-06-30T22:00"),
        ("2027-07-01", "2027-07-01T00:00:00+02:00", "2027-06-30T22:00"),
    ],
)
def test_a_naive_time_is_in_the_apps_zone(given_eta: Any, written: str, utc: str) -> None:
    at = datetime.fromisoformat(utc).replace(tzinfo=UTC).timestamp()
    assert berlin(eta=given_eta) == (written, at)


def test_no_countdown_is_none() -> None:
    """As Celery's: 0 writes no time, and leaves what `eta` says."""
    assert berlin(countdown=0) == (None, None)
    assert berlin(countdown=timedelta(0)) == (None, None)
    assert berlin(countdown=0, eta="2030-01-01T00:00:00Z")[0] == "2030-01-01T00:00:00Z"


def test_countdown_wins_over_eta() -> None:
    text, _ = berlin(countdown=timedelta(days=-1), eta="2030-01-01T00:00:00Z")
    assert text is not None
    assert not text.startswith("2030")


@pytest.mark.parametrize(
    "options",
    [
        {"eta": 1_900_000_000.0},
        {"eta": "tomorrow"},
        {"eta": "2027-13-01"},
        {"countdown": "10"},
        {"countdown": float("inf")},
        {"countdown": float("nan")},
        {"countdown": 1e300},
        {"expires": "15"},
        {"expires": float("inf")},
        {"expires": date(2027, 7, 1)},
        {"expires": [1]},
    ],
    ids=repr,
)
def test_what_is_no_time_is_refused_in_the_caller(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"^{next(iter(options))} is .*; expected a"):
        berlin(**options)


# What workers read.

CELERY = {
    "2027-07-01T12:00:00": 1814443200.0,
    "2027-07-01T12:00:00Z": 1814443200.0,
    "2027-07-01T12:00:00+02:00": 1814436000.0,
    "2027-03-28T02:30:00": 1806201000.0,
    "2027-10-31T02:30:00": 1824949800.0,
    "2027-07-01": 1814400000.0,
    "2027-07-01T12:00": 1814443200.0,
    "20270701T120000": 1814443200.0,
    "2027-07-01 12:00:00.5": 1814443200.5,
    "2027-07-01T12:00:00.123456789Z": 1814443200.123456,
    "2027-W26-4": 1814400000.0,
    "2026-11-30T16:28:01.310870-03:30": 1796068681.31087,
}
"""What a Celery 5.7 worker makes of a header, whatever its `timezone`, `enable_utc` and TZ."""


def read(**headers: Any) -> Context:
    message = Message(b"[[], {}, {}]", "utf-8", "application/json", headers, {})
    return read_request(Delivery(1, "celery", message), hostname="w@here")


@pytest.mark.parametrize("text", CELERY)
@pytest.mark.parametrize("host", ["UTC", "America/St_Johns"])
def test_a_message_of_celerys_is_read_as_celery_reads_it(
    text: str, host: str, set_host_zone: Callable[[str], None]
) -> None:
    set_host_zone(host)
    request = read(task="t", id="1", eta=text, expires=text)
    assert (request.due_at, request.expires_at) == (CELERY[text], CELERY[text])
    assert (request.eta, request.expires) == (text, text)


@pytest.mark.parametrize("text", ["soon", "2027-02-30", "12:00", "2027-07-01T25:00"])
def test_a_header_that_is_no_time_is_said(text: str) -> None:
    with pytest.raises(InvalidTaskError, match=f"header 'expires' is '{text}'; expected a time"):
        read(task="t", id="1", expires=text)


@given(
    st.datetimes(datetime(1971, 1, 1), datetime(9990, 1, 1), timezones=st.timezones()),  # noqa: DTZ001
    st.timezones(),
)
def test_whatever_is_written_is_read_as_the_same_instant(instant: datetime, zone: ZoneInfo) -> None:
    found = due(None, instant, 0.0, zone)
    assert found is not None
    assert found.at == instant.timestamp() == parse_instant(found.text)
    as_naive = due(None, instant.replace(tzinfo=None), 0.0, instant.tzinfo or UTC)
    assert as_naive == found


@given(st.floats(-1e6, 1e9), st.floats(0, 4e9), st.timezones())
def test_seconds_are_counted_on_no_clock_that_is_set_back(
    seconds: float, now: float, zone: ZoneInfo
) -> None:
    text, expiration = expiry(seconds, now, zone)
    end = max(0.0, now + seconds)
    assert text is not None
    assert expiration is not None
    assert parse_instant(text) == pytest.approx(end, abs=2e-6)
    assert int(expiration) == pytest.approx(max(0.0, end - now) * 1000, abs=1)
    assert expiry(timedelta(seconds=seconds), now, zone)[0] is not None


@pytest.fixture
def set_host_zone(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets the zone of this machine, for this process."""
    import time

    def set_it(name: str) -> None:
        monkeypatch.setenv("TZ", name)
        time.tzset()

    yield set_it
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("host", HOSTS)
def test_the_zone_of_the_host_is_a_zone_like_any_other(
    host: str, set_host_zone: Callable[[str], None]
) -> None:
    set_host_zone(host)
    conf = Umbel("t", broker="memory://t", enable_utc=False, set_as_current=False).conf
    assert time_zone(conf) is HOST_ZONE
    named = ZoneInfo(host)
    for moment, hours in product(MOMENTS, range(-3, 4)):
        instant = datetime.fromisoformat(moment) + timedelta(hours=hours, microseconds=7)
        here, there = instant.astimezone(HOST_ZONE), instant.astimezone(named)
        assert here.isoformat() == there.isoformat()
        assert (here.fold, here.tzname()) == (there.fold, there.tzname())
        assert here.timestamp() == instant.timestamp()
    for text, fold in product(WALL_TIMES, (0, 1)):
        wall = datetime.fromisoformat(text).replace(fold=fold)
        assert wall.replace(tzinfo=HOST_ZONE).utcoffset() == wall.replace(tzinfo=named).utcoffset()


def test_a_tzinfo_of_ones_own() -> None:
    zone = timezone(timedelta(hours=5, minutes=45), "Kathmandu")
    with Umbel("t", broker="memory://t", timezone=zone, set_as_current=False) as app:
        assert app.zone is zone
    assert due(None, naive(2027, 7, 1, 12), 0.0, zone) == (
        "2027-07-01T12:00:00+05:45",
        1814443200.0 - 5.75 * 3600,
    )


FORMS: dict[str, tuple[When, bool]] = {
    "seconds": (5, True),
    "a fraction of a second": (0.5, True),
    "timedelta": (timedelta(seconds=5), True),
    "aware": (datetime(2027, 1, 15, 8, 0, 5, tzinfo=UTC), True),
    "naive": (naive(2027, 1, 15, 9, 0, 5), True),
    "text": ("2027-01-15T08:00:05Z", True),
    "naive text": ("2027-01-15T09:00:05", True),
    "an hour later, on a clock in UTC": (naive(2027, 1, 15, 10, 0, 5), False),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("where", ["call", "task", "send_task"])
def test_expiry_is_the_same_instant_for_caller_and_worker(
    form: str, where: str, clock: ManualClock
) -> None:
    """8:00 UTC is 9:00 in Berlin, where this app is."""
    expires, soon = FORMS[form]
    with Umbel(
        "t", broker=f"memory://{len(form)}-{where}", timezone="Europe/Berlin", clock=clock
    ) as app:
        match where:
            case "call":
                app.task(name="t")(empty).apply_async(expires=expires)
            case "task":
                app.task(name="t", expires=expires)(empty).delay()
            case _:
                app.send_task("t", expires=expires)
        at = lease(app).expires_at
        assert at is not None
        assert (clock.wall() < at <= clock.wall() + 5) == soon


def empty() -> None:
    """A task."""


def test_a_program_for_celery_means_utc() -> None:
    """What it says as ``datetime.utcnow() + …`` must not be in the past, whatever `timezone` is."""
    at = naive(2027, 7, 1, 12)
    with Celery("t", broker="memory://t", timezone="Europe/Berlin", set_as_current=False) as app:
        plan = app.plan("t", {"eta": at, "expires": at}, None)
        headers = app.publisher.build(plan, (), {}, "id").message.headers
        assert (headers["eta"], headers["expires"]) == ("2027-07-01T12:00:00+00:00",) * 2
        assert app.zone == ZoneInfo("Europe/Berlin")
