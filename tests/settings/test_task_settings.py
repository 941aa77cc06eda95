"""Settings that decide how tasks end, and the options of tasks by the same names, each changed for
a real worker."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from tests.api.looking import waiting
from tests.worker.harness import Worker, until
from tests.worker.living import Place

from umbel import AsyncResult, Umbel, states
from umbel.outcome import End, Settle, decide
from umbel.worker.executor import options_of

MakePlace = Callable[[float], Place]
ONCE, TWICE = 1, 2


HOW = pytest.mark.parametrize("how", ["setting", "option"])


def start(place: Place, how: str = "setting", **given: Any) -> Worker:
    """A worker whose app has these settings, or whose tasks have the options of these names."""
    settings, options = given, {}
    if how == "option":
        settings, options = {}, {name.removeprefix("task_"): each for name, each in given.items()}
    env = {"SETTINGS": json.dumps(settings), "OPTIONS": json.dumps(options)}
    return place.worker("-c", "1", app="tests.settings.settings_app", env=env)


def ended(result: AsyncResult[Any]) -> str:
    """The final state, or the class of the exception."""
    until(result.ready, what=f"the end of {result}; its state is {result.state}")
    value = result.result
    return type(value).__name__ if isinstance(value, BaseException) else result.state


def dead(place: Place, result: AsyncResult[Any]) -> bool:
    """Whether there is a dead letter of an ended task."""
    until(lambda: sum(queue.leased for queue in place.broker.queues()) == 0, what="it is settled")
    return result.id in {each.id for each in place.app.dead.list()}


# Acknowledgement


@pytest.mark.option("acks_late")
@HOW
@pytest.mark.setting("task_acks_late")
@pytest.mark.parametrize("late", [True, False])
def test_acks_late(place: Place, how: str, late: bool) -> None:
    worker = start(place, how, task_acks_late=late)
    result = place.send("gated", "tag", str(place.gate()))
    place.noted("start")
    worker.kill()
    until(lambda: not place.pids(), what="its processes are gone, before the task could end")
    place.gate().touch()
    start(place, how, task_acks_late=late)
    assert ended(result) == ("SUCCESS" if late else "WorkerLostError")
    assert place.counts("start")["tag"] == (TWICE if late else ONCE)


@pytest.mark.option("acks_on_failure", "acks_on_failure_or_timeout")
@HOW
@pytest.mark.setting("task_acks_on_failure", "task_acks_on_failure_or_timeout")
@pytest.mark.parametrize(
    ("settings", "settle"),
    [
        ({}, Settle.ACK),
        ({"task_acks_on_failure": False}, Settle.REJECT),
        ({"task_acks_on_failure_or_timeout": False}, Settle.REJECT),
        (
            {"task_acks_on_failure_or_timeout": False, "task_acks_on_failure": True},
            Settle.ACK,
        ),
        ({"task_acks_on_timeout": False}, Settle.ACK),
    ],
)
def test_acks_on_failure(app: Umbel, how: str, settings: dict[str, bool], settle: Settle) -> None:
    """What the broker is told; in those of this release both end the message."""
    options = {name.removeprefix("task_"): value for name, value in settings.items()}
    if how == "setting":
        options = {}
        app.conf.update(settings)
    decorate: Any = app.task
    late = decorate(name="late", acks_late=True, **options)(lambda: None)
    assert decide(End.RAISED, options_of(late)).settle is settle
    early = decorate(name="early", **options)(lambda: None)
    assert decide(End.RAISED, options_of(early)).settle is Settle.ACK


@pytest.mark.option(
    "acks_on_timeout", "acks_on_failure_or_timeout", "time_limit", "max_redeliveries", "acks_late"
)
@HOW
@pytest.mark.setting("task_acks_on_timeout", "task_acks_on_failure_or_timeout")
@pytest.mark.parametrize(
    ("settings", "runs"),
    [
        ({}, ONCE),
        ({"task_acks_on_timeout": False}, TWICE),
        ({"task_acks_on_failure_or_timeout": False}, TWICE),
        ({"task_acks_on_failure": False}, ONCE),
    ],
)
def test_acks_on_timeout(place: Place, how: str, settings: dict[str, bool], runs: int) -> None:
    start(place, how, task_acks_late=True, task_time_limit=0.2, task_max_redeliveries=1, **settings)
    result = place.send("hold", "tag", 30.0)
    assert ended(result) == "TimeLimitExceeded"
    assert place.counts("start")["tag"] == runs


@pytest.mark.option("reject_on_worker_lost")
@HOW
@pytest.mark.setting("task_reject_on_worker_lost")
@pytest.mark.parametrize("reject", [True, False, None])
def test_reject_on_worker_lost(place: Place, how: str, reject: bool | None) -> None:
    start(place, how, task_acks_late=True, task_reject_on_worker_lost=reject)
    assert ended(place.send("die", "tag")) == ("SUCCESS" if reject else "WorkerLostError")
    assert place.counts("start")["tag"] == (TWICE if reject else ONCE)


@pytest.mark.option("retry_on_worker_lost")
@HOW
@pytest.mark.setting("task_retry_on_worker_lost")
@pytest.mark.parametrize("retry", [True, False])
def test_retry_on_worker_lost(place: Place, how: str, retry: bool) -> None:
    start(place, how, task_retry_on_worker_lost=retry)
    result = place.send("die", "tag", countdown=0)
    if not retry:
        assert ended(result) == "WorkerLostError"
        return
    until(lambda: result.state == states.RETRY, what="it is sent again")
    (queue,) = place.broker.queues()
    assert queue.delayed == 1  # by the task's default_retry_delay
    assert not dead(place, result)


@pytest.mark.option("max_redeliveries")
@HOW
@pytest.mark.setting("task_max_redeliveries")
@pytest.mark.parametrize("most", [0, 2])
def test_max_redeliveries(place: Place, how: str, most: int) -> None:
    start(place, how, task_max_redeliveries=most)
    result = place.send("always_dies", "tag")
    assert ended(result) == "WorkerLostError"
    assert place.counts("start")["tag"] == 1 + most
    assert dead(place, result)


# Limits


@pytest.mark.option("time_limit")
@HOW
@pytest.mark.setting("task_time_limit")
@pytest.mark.parametrize("limit", [0.2, None])
def test_time_limit(place: Place, how: str, limit: float | None) -> None:
    start(place, how, task_time_limit=limit)
    assert ended(place.send("nap", "tag", 0.6)) == ("TimeLimitExceeded" if limit else "SUCCESS")


@pytest.mark.option("soft_time_limit")
@HOW
@pytest.mark.setting("task_soft_time_limit")
@pytest.mark.parametrize("limit", [0.2, None])
def test_soft_time_limit(place: Place, how: str, limit: float | None) -> None:
    start(place, how, task_soft_time_limit=limit)
    assert place.send("nap", "tag", 0.6).get(timeout=30) == ("soft" if limit else "slept")


# Results


@pytest.mark.option("ignore_result")
@HOW
@pytest.mark.setting("task_ignore_result")
@pytest.mark.parametrize("ignore", [True, False])
def test_ignore_result(place: Place, how: str, ignore: bool) -> None:
    worker = start(place, how, task_ignore_result=ignore)
    result = place.send("quick", "tag")
    place.noted("start")
    assert worker.stop() == 0, worker.text
    assert result.state == (states.PENDING if ignore else states.SUCCESS)


@pytest.mark.option("store_errors_even_if_ignored")
@HOW
@pytest.mark.setting("task_store_errors_even_if_ignored")
@pytest.mark.parametrize("store", [True, False])
def test_store_errors_even_if_ignored(place: Place, how: str, store: bool) -> None:
    worker = start(place, how, task_ignore_result=True, task_store_errors_even_if_ignored=store)
    good, bad = place.send("quick", "good"), place.send("fail", "bad")
    place.noted("start", times=2)
    assert worker.stop() == 0, worker.text
    assert (good.state, bad.state) == (states.PENDING, states.FAILURE if store else states.PENDING)


@pytest.mark.option("track_started")
@HOW
@pytest.mark.setting("task_track_started")
@pytest.mark.parametrize("track", [True, False])
def test_track_started(place: Place, how: str, track: bool) -> None:
    start(place, how, task_track_started=track)
    result = place.send("gated", "tag", str(place.gate()))
    place.noted("start")
    assert result.state == (states.STARTED if track else states.PENDING)
    place.gate().touch()


@pytest.mark.option("dead_letters")
@HOW
@pytest.mark.setting("task_dead_letters")
@pytest.mark.parametrize("keep", [True, False])
def test_dead_letters(place: Place, how: str, keep: bool) -> None:
    start(place, how, task_dead_letters=keep)
    result = place.send("fail", "tag")
    assert ended(result) == "KeyError"
    assert dead(place, result) is keep


@pytest.mark.setting("task_unknown_wait")
@pytest.mark.parametrize("wait", [0.0, 300.0])
def test_unknown_wait(place: Place, wait: float) -> None:
    start(place, task_unknown_wait=wait)
    result = place.send("nobody knows it")
    if wait:
        until(lambda: [q.delayed for q in place.broker.queues()] == [1], what="it waits")
        assert not result.ready()
    else:
        assert ended(result) == "NotRegistered"


@pytest.mark.setting("result_expires")
@pytest.mark.parametrize("expires", [100, None])
def test_result_expires(place: Place, expires: float | None) -> None:
    start(place, result_expires=expires)
    result = place.send("quick", "tag")
    result.get(timeout=30)
    store = place.app.store
    assert store is not None
    (record,) = store.get([result.id])
    assert record is not None
    if expires is None:
        assert record.expires_at is None
    else:
        assert record.expires_at is not None
        assert abs(record.expires_at - time.time() - expires) < 30


# Time


@pytest.mark.setting("timezone", "enable_utc")
@pytest.mark.parametrize(
    ("settings", "offset"),
    [
        ({}, 0),
        ({"timezone": "Asia/Tokyo"}, 9),
        ({"timezone": "Asia/Tokyo", "enable_utc": False}, 9),
        ({"enable_utc": False}, 4),
    ],
)
def test_the_zone_of_date_done(place: Place, settings: dict[str, Any], offset: int) -> None:
    """UTC unless told otherwise; without UTC the host's zone, which is Dubai's here."""
    env = {"SETTINGS": json.dumps(settings), "TZ": "Asia/Dubai"}
    place.worker("-c", "1", app="tests.settings.settings_app", env=env)
    result = place.send("quick", "tag")
    result.get(timeout=30)
    done = result.date_done
    assert isinstance(done, datetime)
    utcoffset = done.utcoffset()
    assert utcoffset is not None
    assert utcoffset.total_seconds() == offset * 3600


# What a task sends


@pytest.mark.setting("task_inherit_parent_priority")
@pytest.mark.parametrize("inherit", [True, False])
def test_inherit_parent_priority(place: Place, inherit: bool) -> None:
    """Of what a task sends, and of what follows it; a priority of its own wins."""
    start(place, task_inherit_parent_priority=inherit)
    signature = place.app.signature
    place.send("parent", "kept", priority=7, link=signature("linked", queue="kept")).get(timeout=30)
    found = {message.task: message.properties["priority"] for message in waiting(place.app, "kept")}
    expected = 7 if inherit else 0
    assert found == {"child": expected, "urgent child": 9, "linked": expected}
