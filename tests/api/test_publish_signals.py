"""What receivers hear of a message that is sent, and of the next try of a task."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, timedelta
from typing import Any

import pytest
from tests.api.looking import lease, only

from umbel import Task, Umbel
from umbel.exceptions import Retry
from umbel.formats import sent_call
from umbel.message import Posting
from umbel.request import running
from umbel.signals import after_task_publish, before_task_publish, task_sent


@pytest.fixture
def heard() -> Iterator[list[dict[str, Any]]]:
    """The keyword arguments of all three signals, in order."""
    events: list[dict[str, Any]] = []

    def hear(signal: Any, **named: Any) -> None:
        events.append({"name": signal.name, **named})

    listened = (before_task_publish, after_task_publish, task_sent)
    for each in listened:
        each.connect(hear)
    yield events
    for each in listened:
        each.disconnect(hear)


@pytest.fixture
def task(app: Umbel) -> Task[..., Any]:
    @app.task(bind=True, name="proj.t")
    def t(self: Any, a: Any = 0, b: Any = 0) -> None: ...

    return t


def test_task_sent_comes_last_with_the_call(
    task: Task[..., Any], heard: list[dict[str, Any]]
) -> None:
    task.apply_async((1,), {"b": 2}, task_id="id", group_id="g", eta="2030-01-01T00:00:00Z")
    assert [each["name"] for each in heard] == [
        "before_task_publish",
        "after_task_publish",
        "task_sent",
    ]
    assert heard[2] == {
        "name": "task_sent",
        "sender": "proj.t",
        "task_id": "id",
        "task": "proj.t",
        "args": [1],
        "kwargs": {"b": 2},
        "eta": "2030-01-01T00:00:00Z",
        "taskset": "g",
    }


@pytest.mark.parametrize("listened", [after_task_publish, task_sent], ids=lambda each: each.name)
def test_each_is_sent_though_nobody_listens_to_the_other(
    app: Umbel, task: Task[..., Any], listened: Any
) -> None:
    names: list[str] = []

    def hear(sender: str, **named: Any) -> None:
        names.append(sender)

    listened.connect(hear)
    try:
        with app.batch():
            task.delay()
            task.delay()
            assert names == []
        assert names == ["proj.t", "proj.t"]
    finally:
        listened.disconnect(hear)


@pytest.mark.parametrize("new", [{}, {"args": (5,)}], ids=["same arguments", "new arguments"])
def test_a_retry_is_told_and_can_be_changed(
    app: Umbel, task: Task[..., Any], new: dict[str, Any]
) -> None:
    told: list[Any] = []

    def change(sender: str, body: Any, headers: Any, properties: Any, **rest: Any) -> None:
        told.append((sender, list(body[0]), headers["retries"], rest["routing_key"]))
        body[1]["b"] = 7
        headers["tenant"] = "acme"
        properties["priority"] = 3

    task.delay(1)
    request = lease(app)
    before_task_publish.connect(change)
    try:
        with running(task, request), pytest.raises(Retry) as caught:
            task.retry(**new)
    finally:
        before_task_publish.disconnect(change)
    posting = caught.value.posting
    assert posting is not None
    assert request.follow_ups == [posting]
    message = posting.message
    args = list(new.get("args", (1,)))
    assert told == [("proj.t", args, 1, "celery")]
    assert (message.headers["tenant"], message.properties["priority"]) == ("acme", 3)
    sent = sent_call(message, {}, 10**6)
    assert not isinstance(sent, bytes)
    assert (list(sent[0]), sent[1]) == (args, {"b": 7})


def test_a_retry_that_nobody_changes_keeps_its_bytes(
    app: Umbel, task: Task[..., Any], heard: list[dict[str, Any]]
) -> None:
    task.delay(1)
    before = only(app).body
    heard.clear()
    posting = next_try_of_waiting(app, task)
    assert posting.message.body == before
    assert [each["name"] for each in heard] == ["before_task_publish"]
    assert heard[0]["declare"] == ["celery"]
    assert heard[0]["retry_policy"] is None


def next_try_of_waiting(app: Umbel, task: Task[..., Any]) -> Posting:
    request = lease(app)
    with running(task, request), pytest.raises(Retry) as caught:
        task.retry()
    assert caught.value.posting is not None
    return caught.value.posting


@pytest.mark.parametrize(
    ("options", "when"),
    [
        ({"countdown": timedelta(minutes=2)}, 120.0),
        ({"countdown": 0}, 0),
        ({"eta": date(2030, 1, 1)}, "2030-01-01 00:00:00"),
        ({"eta": "2030-01-01T00:00:00+01:00"}, "2030-01-01 00:00:00+01:00"),
    ],
)
def test_a_retry_says_when(
    app: Umbel, task: Task[..., Any], options: dict[str, Any], when: object
) -> None:
    task.delay(1)
    request = lease(app)
    with running(task, request), pytest.raises(Retry) as caught:
        task.retry(**options)
    found = caught.value.when
    assert (found if isinstance(when, int | float) else str(found)) == when
    assert str(caught.value).startswith("Retry ")
