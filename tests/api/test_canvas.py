"""Signatures and chains as they are on the wire."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest
from tests.api.looking import only, waiting

from umbel import Umbel
from umbel.canvas import chain, signature
from umbel.message import Message
from umbel.publish import ORIGIN
from umbel.request import Context, running
from umbel.signals import before_task_publish


@dataclass
class Order:
    number: int


NOTHING = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}


@pytest.fixture
def add(app: Umbel) -> Any:
    @app.task(name="add")
    def add(x: int, y: int = 0) -> int:
        return x + y

    return add


def form(*args: object, immutable: bool = False, **options: object) -> dict[str, Any]:
    return {
        "task": "add",
        "args": list(args),
        "kwargs": {},
        "options": options,
        "subtask_type": None,
        "immutable": immutable,
    }


def body(app: Umbel) -> Any:
    return json.loads(only(app).body)


@pytest.mark.option("link", "link_error")
def test_callbacks_and_error_callbacks(app: Umbel, add: Any) -> None:
    add.apply_async((1, 2), link=add.s(3), link_error=[add.si(4), dict(add.s(5))])
    embed = {
        **NOTHING,
        "callbacks": [form(3)],
        "errbacks": [form(4, immutable=True), form(5)],
    }
    assert body(app) == [[1, 2], {}, embed]


def test_the_rest_of_a_chain_is_in_reverse_order(app: Umbel, add: Any) -> None:
    steps = add.s(1, 2) | add.s(3).set(queue="q") | add.si(4, 5)
    result = steps.apply_async(link=add.s(8), link_error=add.s(9))
    message, on_error = only(app), [form(9)]
    middle = result.parent
    own: dict[str, Any] = {"link_error": on_error, "reply_to": ORIGIN.reply_to}
    assert json.loads(message.body)[2] == {
        "callbacks": None,
        "errbacks": on_error,
        "chain": [
            form(4, 5, immutable=True, link=[form(8)], task_id=result.id, **own),
            form(3, queue="q", task_id=middle.id, **own),
        ],
        "chord": None,
    }
    assert message.id == middle.parent.id
    assert (message.headers["root_id"], message.headers["parent_id"]) == (message.id, None)
    assert middle.parent.parent is None


def test_options_of_a_chain_s_call(app: Umbel, add: Any) -> None:
    result = chain(add.s(1), add.s(2)).apply_async((7,), task_id="last", queue="q", shadow="s")
    (message,) = app.broker.peek("q", 2)
    assert isinstance(message, Message)
    args, _, embed = json.loads(message.body)
    assert args == [7, 1]
    assert result.id == "last"
    assert message.headers["shadow"] == "s"
    (rest,) = embed["chain"]
    assert rest["options"] == {"task_id": "last", "reply_to": ORIGIN.reply_to}


@pytest.mark.option("chain")
def test_a_signature_by_name_and_one_with_a_chain_behind_it(app: Umbel) -> None:
    last = signature("c", (), {}, {"task_id": "last"}, app=app)
    first = signature("a", (1,), {}, {}, app=app) | signature("b", app=app)
    first.apply_async(chain=[last])
    embed = body(app)[2]
    assert [each["task"] for each in embed["chain"]] == ["c", "b"]


def test_a_chain_is_one_message_of_a_batch(app: Umbel, add: Any) -> None:
    with app.batch():
        (add.s(1) | add.s(2)).delay()
        add.s(2).delay(1)
        assert waiting(app) == []
    assert [json.loads(message.body)[0] for message in waiting(app)] == [[1], [1, 2]]


def test_receivers_of_a_publish_see_what_follows(app: Umbel, add: Any) -> None:
    def change(body: Any, **_: object) -> None:
        seen.append(body[2]["callbacks"])
        body[2]["errbacks"] = [form(6)]

    seen: list[Any] = []
    before_task_publish.connect(change)
    try:
        add.apply_async((1,), link=add.s(3))
    finally:
        before_task_publish.disconnect(change)
    assert seen == [[form(3)]]
    assert body(app)[2] == {**NOTHING, "callbacks": [form(3)], "errbacks": [form(6)]}


def test_arguments_beyond_json_in_later_steps(app: Umbel) -> None:
    @app.task(name="ship")
    def ship(before: object, order: Order, when: date | None = None) -> None: ...

    steps = signature("a", app=app) | ship.s(Order(3)) | ship.si(None, Order(4))
    steps.delay()
    assert [each["args"] for each in body(app)[2]["chain"]] == [
        [None, {"number": 4}],
        [{"number": 3}],
    ]


def test_wrong_arguments_of_the_first_step_are_said(app: Umbel, add: Any) -> None:
    with pytest.raises(TypeError, match="add"):
        (add.s(1, 2, 3) | add.s(1)).delay()
    with pytest.raises(TypeError, match="'lnk', which doesn't exist"):
        add.s(1).apply_async(lnk=add.s(2))
    assert waiting(app) == []


def test_a_first_step_with_arguments_beyond_json(app: Umbel) -> None:
    @app.task(name="ship")
    def ship(order: Order, when: date) -> None: ...

    steps = ship.s(Order(3), date(2026, 1, 2)) | signature("b", app=app)
    assert steps == ship.s(Order(3), date(2026, 1, 2)) | signature("b", app=app)
    steps.delay()
    assert body(app)[0][0] == {"number": 3}


def test_a_retry_takes_no_links(app: Umbel) -> None:
    """It keeps those of its task; see `tests/worker/test_chains.py`."""

    @app.task(name="again", bind=True)
    def again(self: Any) -> None: ...

    request = Context()
    request.called_directly = False
    with running(again, request), pytest.raises(TypeError, match="'link', which doesn't exist"):
        again.retry(link=again.s())  # type: ignore[call-arg]  # that is what is tested


def test_an_app_s_own_signatures(app: Umbel, add: Any) -> None:
    Umbel("other", broker="memory://another")
    made = app.signature("add", (1,), shadow="s")
    assert made.app is app
    assert made == add.signature((1,), shadow="s")
    made.delay(2)
    assert body(app)[0] == [2, 1]
