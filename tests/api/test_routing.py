"""Calls that name queues and exchanges, declare them, or are routed by functions."""

from __future__ import annotations

import asyncio
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from tests.api.looking import lease, only, waiting

from umbel import Umbel
from umbel.exceptions import (
    EncodeError,
    ImproperlyConfigured,
    Retry,
    RoutingKeyAlone,
    Unroutable,
)
from umbel.exchanges import Binding
from umbel.request import running
from umbel.routing import Broadcast, Exchange, Queue
from umbel.signals import after_task_publish, before_task_publish
from umbel.worker.followups import FollowUps

NEWS = Exchange("news", type="topic")
SPORT = Queue("sport", NEWS, routing_key="sport.#")
GOALS = Queue("goals", NEWS, routing_key="#.goal")


def names(app: Umbel) -> list[str]:
    return [each.name for each in app.broker.queues()]


# Exchanges


def test_a_message_goes_to_each_queue_that_the_exchange_leads_to(app: Umbel) -> None:
    app.conf.task_queues = [SPORT, GOALS, "celery"]
    sent = app.send_task("t", exchange="news", routing_key="sport.goal")
    for queue in ("sport", "goals"):
        message = only(app, queue)
        assert message.id == sent.id
        assert message.properties["delivery_info"] == {
            "exchange": "news",
            "routing_key": "sport.goal",
        }
    app.send_task("t", queue="sport", routing_key="sport.tennis")
    assert (len(waiting(app, "sport")), len(waiting(app, "goals"))) == (2, 1)
    with pytest.raises(Unroutable, match="routing key 'art'"):
        app.send_task("t", exchange="news", routing_key="art")


def test_what_only_other_processes_have_declared_is_reached(app: Umbel) -> None:
    app.broker.declare([], [Binding("theirs", "far", "fanout")])
    app.send_task("t", exchange="far")
    assert only(app, "theirs")
    with pytest.raises(Unroutable, match="exchange 'farther'"):
        app.send_task("t", exchange="farther", routing_key="x")


def test_a_headers_exchange_looks_at_the_headers_of_the_call(app: Umbel) -> None:
    pdf = Queue("pdf", Exchange("files", "headers"), binding_arguments={"kind": "pdf"})
    app.conf.task_queues = [pdf]
    app.send_task("t", queue="pdf", headers={"kind": "pdf"})
    assert only(app, "pdf")
    with pytest.raises(Unroutable):
        app.send_task("t", queue="pdf", headers={"kind": "png"})


def test_both_exchange_and_key_of_a_plain_queue(app: Umbel) -> None:
    for name in ("celery", "new"):
        app.send_task("t", exchange=name, routing_key=name, queue=name)
        assert only(app, name).properties["delivery_info"]["exchange"] == name


def test_a_batch_is_stored_whole_or_not_at_all(app: Umbel) -> None:
    app.conf.task_queues = [SPORT, GOALS]
    with app.batch():
        app.send_task("a", queue="sport")
        app.send_task("b", exchange="news", routing_key="x.goal")
    assert (len(waiting(app, "sport")), len(waiting(app, "goals"))) == (1, 1)

    def send() -> None:
        with app.batch():
            app.send_task("a", queue="sport")
            app.send_task("b", exchange="news", routing_key="nothing")

    with pytest.raises(Unroutable):
        send()
    assert len(waiting(app, "sport")) == 1


def test_receivers_are_told_the_exchange(app: Umbel) -> None:
    app.conf.task_queues = [SPORT]
    told: list[tuple[str, str, str]] = []

    def note(sender: str, exchange: str, routing_key: str, **_: Any) -> None:
        told.append((sender, exchange, routing_key))

    for signal in (before_task_publish, after_task_publish):
        signal.connect(note)
    try:
        app.send_task("t", exchange="news", routing_key="sport.x")
    finally:
        for signal in (before_task_publish, after_task_publish):
            signal.disconnect(note)
    assert told == [("t", "news", "sport.x")] * 2


def test_a_queue_that_exists_with_another_exchange_is_said(app: Umbel) -> None:
    app.broker.declare([], [Binding("old", "news", "fanout")])
    app.conf.task_queues = [SPORT]
    with pytest.raises(ImproperlyConfigured, match="'news' is of type 'fanout' in this broker"):
        app.send_task("t", queue="sport")


def test_queues_by_name_are_bound_all_the_same(app: Umbel) -> None:
    app.conf.task_queues = {"farm": {"exchange": "field", "routing_key": "cow"}}
    app.send_task("t", queue="farm")
    assert only(app, "farm").properties["delivery_info"]["exchange"] == ""
    assert app.broker.bindings() == (Binding("farm", "field", "direct", "cow"),)
    other = Umbel("other", broker=app.conf.broker_url, set_as_current=False)
    other.send_task("t", exchange="field", routing_key="cow")
    assert len(waiting(app, "farm")) == 2


# Objects and declare=


def test_a_queue_object_of_a_call_is_made(app: Umbel) -> None:
    app.send_task("t", queue=GOALS, routing_key="x.goal")
    assert only(app, "goals")
    app.send_task("t", exchange=NEWS, routing_key="y.goal")
    assert len(waiting(app, "goals")) == 2
    assert "celery" not in names(app)


def test_declare_makes_queues_before_the_message_is_sent(app: Umbel) -> None:
    options: dict[str, Any] = {"exchange": "news", "routing_key": "sport.goal"}
    with pytest.raises(Unroutable):
        app.send_task("t", **options)
    app.send_task("t", declare=[SPORT, GOALS, "plain", NEWS], **options)
    assert [only(app, queue).task for queue in ("sport", "goals")] == ["t", "t"]
    assert names(app) == ["goals", "plain", "sport"]
    app.conf.task_routes = {"routed": {"queue": "celery", "declare": [Queue("by route")]}}
    app.send_task("routed")
    assert "by route" in names(app)
    with pytest.raises(ValueError, match="7 can't be a queue name"):
        app.send_task("t", declare=[7])  # type: ignore[list-item]  # that it is refused is the test


def test_declared_again_in_a_new_broker(app: Umbel, tmp_path: Path) -> None:
    app.conf.task_queues = [SPORT]
    for name in ("one", "two"):
        app.conf.broker_url = f"memory://{tmp_path.name}-{name}"
        app.send_task("t", queue="sport")
        app.send_task("t", declare=[GOALS])
        assert only(app, "sport")
        assert "goals" in names(app)


def test_options_of_a_task_take_objects(app: Umbel) -> None:
    @app.task(queue=GOALS, routing_key="all.goal")
    def shoot() -> None: ...

    shoot.delay()
    shoot.apply_async(routing_key="one.goal")
    keys = [m.properties["delivery_info"]["routing_key"] for m in waiting(app, "goals")]
    assert keys == ["all.goal", "one.goal"]


def test_a_queue_object_in_a_callback_is_refused_in_the_caller(app: Umbel) -> None:
    @app.task
    def add(x: int) -> None: ...

    with pytest.raises(EncodeError):
        add.apply_async((1,), link=add.s().set(queue=GOALS))


# Priorities


def test_a_queue_caps_priorities(app: Umbel) -> None:
    app.conf.task_queues = [Queue("capped", max_priority=3), Queue("free"), Queue("old", "x", "k")]
    for priority in (1, 9, 4, 3):
        app.send_task(f"p{priority}", queue="capped", priority=priority)
        app.send_task(f"p{priority}", queue="free", priority=priority)
    assert [m.task for m in waiting(app, "capped")] == ["p9", "p4", "p3", "p1"]
    assert [m.properties["priority"] for m in waiting(app, "capped")] == [3, 3, 3, 1]
    assert [m.task for m in waiting(app, "free")] == ["p9", "p4", "p3", "p1"]
    assert [m.properties["priority"] for m in waiting(app, "free")] == [9, 4, 3, 1]
    with pytest.raises(ValueError, match="0 to 9"):
        app.send_task("t", queue="capped", priority=10)


# A key alone


def test_a_key_alone_warns_at_the_line_of_the_caller(app: Umbel) -> None:
    app.conf.task_queues = [Queue("farm", "field", "cow"), "celery"]

    @app.task(name="t")
    def t() -> None: ...

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            t.apply_async(routing_key="cow")
            app.send_task("t", routing_key="cow")
            t.apply_async(routing_key="typo")
    assert [each.category for each in caught] == [RoutingKeyAlone] * 2
    assert {each.filename for each in caught} == {__file__}
    assert "Write queue='farm'" in str(caught[0].message)
    assert (len(waiting(app, "farm")), len(waiting(app))) == (6, 3)


# Functions


def by_size(name: str, args: Any, kwargs: Any, options: Any, task: Any = None, **_: Any) -> Any:
    """A routing function."""
    if name == "plain":
        return None
    size = args[0] if args else kwargs.get("size", 0)
    return {"queue": "large" if size > 10 else "small", "priority": options.get("priority") or 1}


@pytest.mark.setting("task_routes")
@pytest.mark.parametrize("routes", [by_size, [by_size], f"{__name__}.by_size"])
def test_a_function_sees_each_call(app: Umbel, routes: object) -> None:
    app.conf.task_routes = routes

    @app.task(name="cut")
    def cut(size: int) -> None: ...

    @app.task(name="plain")
    def plain(size: int) -> None: ...

    cut.delay(50)
    cut.delay(5)
    cut.delay(size=60)
    cut.apply_async((7,), priority=4)
    cut.delay_many([(70,), (8,)])
    app.send_task("elsewhere", [80])
    cut.apply_async((9,), queue="mine")
    plain.delay(100)

    async def go() -> None:
        await cut.adelay(90)
        await cut.adelay(1)

    asyncio.run(go())
    assert [json.loads(m.body)[:2] for m in waiting(app, "large")] == [
        [[50], {}], [[], {"size": 60}], [[70], {}], [[80], {}], [[90], {}],
    ]  # fmt: skip
    sizes = [(json.loads(m.body)[0][0], m.properties["priority"]) for m in waiting(app, "small")]
    assert sizes == [(7, 4), (5, 1), (8, 1), (1, 1)]
    assert only(app, "mine").properties["priority"] == 1
    assert only(app).task == "plain"


def test_a_function_is_told_the_task(app: Umbel) -> None:
    told: list[Any] = []

    class Routes:
        def __call__(self, name: str, args: Any, kwargs: Any, options: Any, task: Any) -> None:
            told.append((name, args, kwargs, options, task))

    app.conf.task_routes = [Routes()]

    @app.task(name="t", priority=2)
    def t(x: int) -> None: ...

    t.apply_async((1,), expires=60)
    app.send_task("unknown", kwargs={"y": 2})
    assert told == [
        ("t", (1,), {}, {"priority": 2, "expires": 60}, t),
        ("unknown", (), {"y": 2}, {}, None),
    ]


def test_what_a_function_raises_reaches_the_caller_and_nothing_is_sent(app: Umbel) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise LookupError("no route for this")

    app.conf.task_routes = [refuse]
    with pytest.raises(LookupError, match="no route"):
        app.send_task("t")
    assert names(app) == []


def test_route_for_task_of_an_object(app: Umbel) -> None:
    class Old:
        def route_for_task(self, task: str, args: Any = None, kwargs: Any = None) -> str | None:
            return f"q{args[0]}" if task == "t" else None

    app.conf.task_routes = (Old(), {"u": "map"})
    app.send_task("t", [3])
    app.send_task("u", [3])
    assert [only(app, queue).task for queue in ("q3", "map")] == ["t", "u"]


# Retries


def test_a_retry_goes_where_it_says(app: Umbel) -> None:
    app.conf.task_queues = [SPORT, GOALS, "celery"]

    @app.task(name="t", bind=True)
    def t(self: Any) -> None: ...

    t.apply_async(exchange="news", routing_key="x.goal")
    request = lease(app, "goals")
    cases: tuple[tuple[dict[str, Any], tuple[str, str]], ...] = (
        ({}, ("", "goals")),
        ({"exchange": "news", "routing_key": "sport"}, ("news", "sport")),
        ({"queue": SPORT}, ("news", "sport.#")),
        ({"queue": "celery"}, ("", "celery")),
    )
    for options, address in cases:
        with running(t, request), pytest.raises(Retry):
            t.retry(**options)
        posting = request.follow_ups[-1]
        assert (posting.exchange, posting.routing_key) == address
        info = posting.message.properties["delivery_info"]
        assert (info["exchange"], info["routing_key"]) == address


def test_a_broadcast_without_workers_is_unroutable(app: Umbel) -> None:
    app.conf.task_queues = ["celery", Broadcast("calls")]
    app.conf.task_routes = {"call": "calls"}
    with pytest.raises(Unroutable, match=r"exchange 'calls'.*Start a worker that consumes"):
        app.send_task("call")
    app.broker.enlist("run", None, b"{}")
    own = Broadcast("calls").of_run("run")
    app.broker.declare([own.name], own.links, run="run")
    app.send_task("call")
    assert only(app, own.name).task == "call"


def test_a_function_sees_what_a_callback_and_a_step_are_given(app: Umbel) -> None:
    app.conf.task_routes = lambda name, args, *_, **__: f"q{args[0]}" if name == "b" else None

    @app.task(name="a")
    def a() -> None: ...

    @app.task(name="b")
    def b(x: int, y: int = 0) -> None: ...

    a.apply_async(link=b.s(), chain=[b.s(5)])
    postings = FollowUps(app).of_success(lease(app), 7)
    assert [posting.routing_key for posting in postings] == ["q7", "q7"]


def test_a_function_is_asked_about_a_retry_that_says_where(app: Umbel) -> None:
    app.conf.task_queues = [SPORT, GOALS, "celery"]
    app.conf.task_routes = lambda name, args, *_, **__: {
        "exchange": "news",
        "routing_key": f"{args[0]}.goal",
    }

    @app.task(name="t", bind=True)
    def t(self: Any, x: str) -> None: ...

    t.delay("one")
    request = lease(app, "goals")
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({}, "goals"),
        ({"exchange": "news"}, "one.goal"),
    )
    for options, key in cases:
        with running(t, request), pytest.raises(Retry):
            t.retry(**options)
        assert request.follow_ups[-1].routing_key == key
    with running(t, request), pytest.raises(Retry):
        t.retry(args=("two",), exchange="news")
    assert request.follow_ups[-1].routing_key == "two.goal"
