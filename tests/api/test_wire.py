"""Every option of a call, as it is on the wire."""

from __future__ import annotations

import json
import os
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.api.looking import lease, only, waiting

from umbel import Umbel
from umbel.clock import ManualClock
from umbel.exceptions import EncodeError, ImproperlyConfigured, MessageTooLarge
from umbel.message import Posting
from umbel.request import running
from umbel.signals import after_task_publish, before_task_publish

NOW = 1_800_000_000.0
HEADERS = [
    "lang", "task", "id", "shadow", "eta", "expires", "group", "group_index", "retries",
    "timelimit", "root_id", "parent_id", "argsrepr", "kwargsrepr", "origin", "ignore_result",
    "replaced_task_nesting", "stamped_headers", "stamps",
]  # fmt: skip


def test_a_plain_call_writes_every_header_property_and_the_body(app: Umbel) -> None:
    @app.task(name="proj.add")
    def add(x: int, y: int = 2) -> int:
        return x + y

    result = add.delay(1, y=3)
    message = only(app)
    assert list(message.headers) == HEADERS
    assert message.headers == {
        "lang": "py",
        "task": "proj.add",
        "id": result.id,
        "shadow": None,
        "eta": None,
        "expires": None,
        "group": None,
        "group_index": None,
        "retries": 0,
        "timelimit": [None, None],
        "root_id": result.id,
        "parent_id": None,
        "argsrepr": "(1,)",
        "kwargsrepr": "{'y': 3}",
        "origin": f"gen{os.getpid()}@{os.uname().nodename}",
        "ignore_result": False,
        "replaced_task_nesting": 0,
        "stamped_headers": None,
        "stamps": {},
    }
    properties = dict(message.properties)
    assert uuid.UUID(properties.pop("delivery_tag")).version == 4
    assert uuid.UUID(properties.pop("reply_to"))
    assert properties == {
        "correlation_id": result.id,
        "delivery_mode": 2,
        "delivery_info": {"exchange": "", "routing_key": "celery"},
        "priority": 0,
        "body_encoding": "base64",
    }
    assert (message.content_type, message.content_encoding) == ("application/json", "utf-8")
    embed = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
    assert json.loads(message.body) == [[1], {"y": 3}, embed]
    assert uuid.UUID(result.id).version == 4


def sent(app: Umbel, clock: ManualClock, **options: Any) -> Any:
    app.send_task("proj.t", (1,), **options)
    clock.advance(100_000)
    return only(app)


OPTIONS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"countdown": 10}, {"eta": "2027-01-15T08:00:10+00:00"}),
    ({"countdown": 0.5}, {"eta": "2027-01-15T08:00:00.500000+00:00"}),
    ({"countdown": timedelta(minutes=1)}, {"eta": "2027-01-15T08:01:00+00:00"}),
    (
        {"countdown": 10, "eta": datetime(2030, 1, 1, tzinfo=UTC)},
        {"eta": "2027-01-15T08:00:10+00:00"},
    ),
    ({"eta": datetime(2027, 1, 15, 9, tzinfo=UTC)}, {"eta": "2027-01-15T09:00:00+00:00"}),
    ({"eta": datetime(2027, 1, 15, 9)}, {"eta": "2027-01-15T09:00:00+00:00"}),  # noqa: DTZ001
    ({"eta": "2027-01-15T10:00:00+01:00"}, {"eta": "2027-01-15T10:00:00+01:00"}),
    ({"expires": 60}, {"expires": "2027-01-15T08:01:00+00:00"}),
    (
        {"expires": datetime(2027, 1, 15, 8, 2, tzinfo=UTC)},
        {"expires": "2027-01-15T08:02:00+00:00"},
    ),
    ({"expires": "2027-01-15T08:03:00Z"}, {"expires": "2027-01-15T08:03:00Z"}),
    ({"time_limit": 30, "soft_time_limit": 20.5}, {"timelimit": [30, 20.5]}),
    ({"soft_time_limit": 20}, {"timelimit": [None, 20]}),
    ({"headers": {"tenant": "acme"}}, {"tenant": "acme"}),
    ({"shadow": "nice name"}, {"shadow": "nice name"}),
    ({"ignore_result": True}, {"ignore_result": True}),
    ({}, {"ignore_result": None}),
    ({"argsrepr": "(…)", "kwargsrepr": "-"}, {"argsrepr": "(…)", "kwargsrepr": "-"}),
    ({"root_id": "r", "parent_id": "p"}, {"root_id": "r", "parent_id": "p"}),
    ({"group_id": "g", "group_index": 3}, {"group": "g", "group_index": 3}),
    ({"task_id": "my-id"}, {"id": "my-id", "root_id": "my-id"}),
]


@pytest.mark.option(
    "argsrepr",
    "kwargsrepr",
    "group_id",
    "group_index",
    "headers",
    "ignore_result",
    "parent_id",
    "root_id",
    "shadow",
)
@pytest.mark.parametrize(("options", "headers"), OPTIONS)
def test_options_are_in_the_headers(
    app: Umbel, clock: ManualClock, options: dict[str, Any], headers: dict[str, Any]
) -> None:
    message = sent(app, clock, **options)
    assert {name: message.headers[name] for name in headers} == headers


@pytest.mark.option("reply_to")
@pytest.mark.parametrize(
    ("options", "properties"),
    [
        ({"priority": 7}, {"priority": 7}),
        ({"expires": 60}, {"expiration": "60000"}),
        ({"expires": -5}, {"expiration": "0"}),
        ({"reply_to": "me"}, {"reply_to": "me"}),
        ({"task_id": "my-id"}, {"correlation_id": "my-id"}),
    ],
)
def test_options_are_in_the_properties(
    app: Umbel, clock: ManualClock, options: dict[str, Any], properties: dict[str, Any]
) -> None:
    message = sent(app, clock, **options)
    assert {name: message.properties[name] for name in properties} == properties


@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        ({"countdown": 10}, 10),
        ({"countdown": 10, "eta": "2030-01-01T00:00:00Z"}, 10),
        ({"eta": datetime(2027, 1, 15, 8, 1, tzinfo=UTC)}, 60),
        ({"eta": "2027-01-15T09:01:00+01:00"}, 60),
        ({"eta": datetime(2027, 1, 15, 8, 1)}, 60),  # noqa: DTZ001
    ],
)
def test_due_later_is_kept_by_the_broker(
    app: Umbel, clock: ManualClock, options: dict[str, Any], seconds: float
) -> None:
    app.send_task("proj.t", **options)
    clock.advance(seconds - 0.01)
    assert waiting(app) == []
    clock.advance(0.02)
    assert len(waiting(app)) == 1


def test_naive_times_are_in_the_apps_zone(clock: ManualClock) -> None:
    with Umbel("z", broker="memory://zone", timezone="Asia/Tokyo", clock=clock) as app:
        app.send_task("t", eta=datetime(2027, 1, 15, 17, 1))  # noqa: DTZ001
        app.send_task("t", countdown=60)
        clock.advance(60)
        assert [m.headers["eta"] for m in waiting(app)] == [
            "2027-01-15T17:01:00+09:00",
            "2027-01-15T17:01:00+09:00",
        ]


def test_a_countdown_in_the_past_is_due_now(app: Umbel) -> None:
    app.send_task("proj.t", countdown=-1e300)
    assert len(waiting(app)) == 1


def test_priority_decides_the_order_and_defaults_to_the_setting(app: Umbel) -> None:
    app.conf.task_default_priority = 4
    for priority in (None, 9, 0):
        app.send_task("proj.t", priority=priority)
    assert [m.properties["priority"] for m in waiting(app)] == [9, 4, 0]


@pytest.mark.setting("task_routes")
@pytest.mark.parametrize("options", [{"queue": "slow"}, {"exchange": "slow"}])
def test_a_call_names_its_queue(app: Umbel, options: Any) -> None:
    app.conf.task_routes = {"proj.*": {"queue": "slow", "priority": 3}}
    app.send_task("other", **options)
    assert only(app, "slow").properties["delivery_info"]["routing_key"] == "slow"


@pytest.mark.setting("task_routes")
def test_call_beats_task_beats_route_beats_setting(app: Umbel) -> None:
    app.conf.update(
        task_default_priority=1,
        task_time_limit=50,
        task_routes={"proj.*": {"queue": "route", "priority": 2, "expires": 20}},
    )

    @app.task(name="proj.a")
    def by_route() -> None: ...

    @app.task(name="proj.b", priority=3, queue="own", expires=30)
    def by_task() -> None: ...

    by_route.delay()
    by_task.delay()
    by_task.apply_async(priority=5, queue="call", expires=None, time_limit=None)
    found = {
        queue: (m.properties["priority"], m.properties.get("expiration"), m.headers["timelimit"])
        for queue in ("route", "own", "call")
        for m in waiting(app, queue)
    }
    assert found == {
        "route": (2, "20000", [50, None]),
        "own": (3, "30000", [50, None]),
        # What a call gives as None takes back what the task says; then the route speaks.
        "call": (5, "20000", [None, None]),
    }


def test_settings_hold_for_tasks_that_were_defined_before(app: Umbel) -> None:
    @app.task
    def t() -> None: ...

    t.delay()
    app.conf.update(task_default_queue="late", task_ignore_result=True)
    assert t.ignore_result is True
    assert t.delay().ignored
    assert only(app, "late").headers["ignore_result"] is True


def test_an_assigned_option_holds(app: Umbel) -> None:
    @app.task(max_retries=1)
    def t() -> None: ...

    assert t.max_retries == 1
    t.delay()
    t.max_retries = None
    t.priority = 6
    t.delay()
    assert t.max_retries is None
    assert [m.properties["priority"] for m in waiting(app)] == [6, 0]


def test_what_a_task_sends_is_its_child(app: Umbel) -> None:
    @app.task
    def parent() -> None:
        child.delay()
        child.apply_async(add_to_parent=False)

    @app.task
    def child() -> None: ...

    outer = parent.apply_async(root_id="root")
    request = lease(app)
    with running(parent, request):
        parent.run()
    first, second = waiting(app)
    assert {m.headers["root_id"] for m in (first, second)} == {"root"}
    assert {m.headers["parent_id"] for m in (first, second)} == {outer.id}
    assert [each.id for each in request.children] == [first.id]


def test_a_task_that_is_called_like_a_function_is_no_parent(app: Umbel) -> None:
    @app.task
    def parent() -> None:
        child.delay()

    @app.task
    def child() -> None: ...

    parent()
    assert only(app).headers["parent_id"] is None


def test_receivers_of_before_task_publish_change_what_is_sent(app: Umbel) -> None:
    seen: list[Any] = []

    def before(sender: str, body: Any, headers: Any, properties: Any, **rest: Any) -> None:
        headers["trace"] = "abc"
        body[1]["y"] = 9
        seen.append((sender, rest["routing_key"], rest["exchange"], rest["declare"]))

    def after(sender: str, body: Any, headers: Any, **rest: Any) -> None:
        seen.append((sender, body[0], body[1], headers["trace"]))

    before_task_publish.connect(before)
    after_task_publish.connect(after)
    try:
        app.send_task("proj.t", [1], {"x": 2})
    finally:
        before_task_publish.disconnect(before)
        after_task_publish.disconnect(after)
    message = only(app)
    assert message.headers["trace"] == "abc"
    assert json.loads(message.body)[:2] == [[1], {"x": 2, "y": 9}]
    assert seen == [
        ("proj.t", "celery", "", ["celery"]),
        ("proj.t", [1], {"x": 2, "y": 9}, "abc"),
    ]


@pytest.mark.setting("task_max_message_size")
def test_a_message_that_is_too_large_is_refused(app: Umbel) -> None:
    app.conf.task_max_message_size = 1000
    with pytest.raises(MessageTooLarge, match=r"proj\.t.* has 10\d\d bytes; .*allows 1000"):
        app.send_task("proj.t", ["x" * 940])
    with pytest.raises(MessageTooLarge):
        app.send_task("proj.t", headers={"big": "x" * 940})
    app.send_task("proj.t", ["x" * 900])


def test_what_cannot_be_sent_is_named(app: Umbel) -> None:
    with pytest.raises(EncodeError, match=r"kwargs\['rows'\]\[1\]"):
        app.send_task("proj.t", kwargs={"rows": [1, object()]})
    with pytest.raises(EncodeError, match=r"headers\['x'\]"):
        app.send_task("proj.t", headers={"x": object()})
    assert waiting(app) == []


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"countdwn": 1}, TypeError, "did you mean 'countdown'"),
        ({"link": "x"}, TypeError, "'x' is no signature; expected one such as add.s"),
        ({"chord": {"a": 1}}, ImproperlyConfigured, "release 'Workflows'"),
        ({"serializer": "pikle"}, ImproperlyConfigured, "did you mean 'pickle'"),
        ({"compression": "zlip"}, ImproperlyConfigured, "did you mean 'zlib'"),
        ({"exchange": "x", "exchange_type": "topik"}, ImproperlyConfigured, "of type 'topik'"),
        ({"countdown": "5"}, ValueError, "countdown is '5'"),
        ({"countdown": float("nan")}, ValueError, "countdown is nan"),
        ({"countdown": float("inf")}, ValueError, "countdown is inf"),
        ({"eta": "tomorrow"}, ValueError, "eta is 'tomorrow'"),
        ({"eta": 5}, ValueError, "eta is 5"),
        ({"expires": "soon"}, ValueError, "expires is 'soon'"),
        ({"priority": 10}, ValueError, "0 to 9"),
        ({"priority": True}, ValueError, "0 to 9"),
        ({"time_limit": -1}, ValueError, "time_limit is -1"),
        ({"headers": [1]}, TypeError, "headers"),
        ({"headers": {"task": "x"}}, ValueError, "'task'"),
        ({"task_id": ""}, TypeError, "task_id"),
        ({"task_id": uuid.uuid4()}, TypeError, r"str\(value\)"),
        ({"args": "abc"}, TypeError, "args of task"),
        ({"kwargs": [1]}, TypeError, "kwargs of task"),
        ({"retry_policy": {"max_retrys": 1}}, ValueError, "max_retries"),
        ({"queue": "a{b}"}, ValueError, "brace"),
    ],
)
def test_bad_options_are_refused_in_one_sentence(
    app: Umbel, options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        app.send_task("proj.t", **options)
    assert app.broker.queues() == () or waiting(app) == []


@pytest.mark.parametrize("options", [{"link": None}, {"link": []}, {"chain": None}])
def test_an_option_of_a_later_release_that_says_nothing_is_taken(app: Umbel, options: Any) -> None:
    app.send_task("proj.t", **options)
    assert len(waiting(app)) == 1


def test_arguments_are_checked_before_sending(app: Umbel) -> None:
    @app.task(name="proj.f")
    def f(a: int, /, b: int, *, c: int = 1) -> None: ...

    loose: Any = f
    for args, kwargs in (((), {}), ((1,), {}), ((1, 2, 3), {}), ((1, 2), {"d": 1}), ((), {"a": 1})):
        with pytest.raises(TypeError, match=r"proj\.f\(\)"):
            loose.apply_async(args, kwargs)
        with pytest.raises(TypeError):
            loose.delay(*args, **kwargs)
    loose.delay(1, b=2, c=3)
    assert len(waiting(app)) == 1


def test_arguments_are_not_checked_with_typing_off(app: Umbel) -> None:
    @app.task(typing=False)
    def f(a: int) -> None: ...

    loose: Any = f
    loose.delay()
    assert len(waiting(app)) == 1


def test_a_soft_limit_above_the_hard_one_is_refused(app: Umbel) -> None:
    @app.task(time_limit=5, soft_time_limit=6)
    def f() -> None: ...

    with pytest.raises(ValueError, match="soft"):
        f.delay()
    assert app.broker.queues() == ()


def test_the_posting_says_when_and_where(app: Umbel) -> None:
    plan = app.plan("proj.t", {"countdown": 5, "priority": 2, "queue": "q"}, None)
    posting = app.publisher.build(plan, (), {}, "id")
    assert posting == Posting(
        message=posting.message, routing_key="q", exchange="", priority=2, due_at=NOW + 5
    )
