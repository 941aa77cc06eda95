"""Stamps on signatures, and in the messages that come of them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.api.looking import lease, only

from umbel import Signature, StampingVisitor, Task, Umbel, chain, signature
from umbel.exceptions import Retry
from umbel.request import running


@pytest.fixture
def add(app: Umbel) -> Task[[int, int], int]:
    @app.task
    def add(x: int, y: int = 0) -> int:
        return x + y

    return add


class Visitor(StampingVisitor):
    """Notes in which order, with which stamps, it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def on_signature(self, sig: Signature, **headers: Any) -> dict[str, Any]:
        self.asked.append((f"signature {sig.args}", headers))
        return {"sig": 1}

    def on_callback(self, callback: Signature, **headers: Any) -> dict[str, Any]:
        self.asked.append((f"callback {callback.args}", headers))
        return {"cb": True}

    def on_errback(self, errback: Signature, **headers: Any) -> dict[str, Any]:
        self.asked.append((f"errback {errback.args}", headers))
        return {"eb": True}

    def on_chain_start(self, sig: Signature, **headers: Any) -> dict[str, Any]:
        self.asked.append(("start", headers))
        return {"ch": 1}

    def on_chain_end(self, sig: Signature, **headers: Any) -> None:
        self.asked.append(("end", headers))


def stamps(options: dict[str, Any]) -> dict[str, Any]:
    return {name: options[name] for name in options.get("stamped_headers", ())}


def test_a_stamp_is_an_option_of_its_name(add: Task[..., int]) -> None:
    sig = add.s(1, 2)
    assert sig.stamp(foo="bar") is sig
    assert sig.options == {"foo": "bar", "stamped_headers": ["foo"]}
    sig.stamp(foo="baz", other=1)
    assert sig.options == {"foo": "baz", "other": 1, "stamped_headers": ["foo", "other"]}


def test_append_stamps_keeps_what_was_there(add: Task[..., int]) -> None:
    sig = add.s().stamp(foo="a", many=[1, 2])
    sig.stamp(append_stamps=True, foo="b", many=3, new=0)
    assert stamps(sig.options) == {"foo": ["b", "a"], "many": [3, 1, 2], "new": 0}
    sig.stamp(append_stamps=True, foo="a")
    assert sig.options["foo"] == ["a", "b"]


def test_what_is_linked_is_stamped_too(add: Task[..., int]) -> None:
    sig = add.s(1)
    sig.link(add.s(2) | add.s(3))
    inner = add.s(4)
    inner.link(add.s(5))
    sig.link_error(inner)
    sig.stamp(foo="bar")
    (callback,), (errback,) = sig.options["link"], sig.options["link_error"]
    assert [stamps(step["options"]) for step in callback["kwargs"]["tasks"]] == [{"foo": "bar"}] * 2
    assert stamps(errback["options"]) == {"foo": "bar"}
    assert stamps(errback["options"]["link"][0]["options"]) == {"foo": "bar"}
    other = add.s(1)
    other.link(add.s(2))
    other.stamp_links(foo="bar")
    assert stamps(other.options) == {}
    assert stamps(other.options["link"][0]["options"]) == {"foo": "bar"}


def test_the_order_in_which_a_visitor_is_asked(add: Task[..., int]) -> None:
    chained = chain(add.s(1), add.s(2))
    chained.link(add.s(3))
    chained.link_error(add.s(4))
    visitor = Visitor()
    chained.stamp(visitor, mine=4)
    start: dict[str, Any] = {"mine": 4, "ch": 1, "stamped_headers": ["mine", "ch"]}
    assert visitor.asked == [
        ("start", {"mine": 4}),
        ("callback (3,)", start),
        ("signature (3,)", {**start, "cb": True, "stamped_headers": ["mine", "ch", "cb"]}),
        ("errback (4,)", start),
        ("signature (4,)", {**start, "eb": True, "stamped_headers": ["mine", "ch", "eb"]}),
        ("signature (1,)", start),
        ("signature (2,)", start),
        ("end", start),
    ]
    assert [stamps(step.options) for step in chained.tasks] == [{"mine": 4, "ch": 1, "sig": 1}] * 2
    assert stamps(chained.options["link"][0]["options"]) == {
        "mine": 4, "ch": 1, "cb": True, "sig": 1,
    }  # fmt: skip


def test_a_visitor_says_which_of_its_values_are_stamps(app: Umbel, add: Task[..., int]) -> None:
    class Urgent(StampingVisitor):
        def on_signature(self, sig: Signature, **headers: Any) -> dict[str, Any]:
            return {"who": "me", "priority": 7, "stamped_headers": ["who"]}

    add.s(1).stamp(Urgent()).apply_async()
    message = only(app)
    assert (message.headers["stamps"], message.properties["priority"]) == ({"who": "me"}, 7)


def test_a_visitor_must_say_something_of_signatures() -> None:
    with pytest.raises(TypeError, match="on_signature"):
        type("Empty", (StampingVisitor,), {})()


def test_a_call_can_not_take_stamps_away(add: Task[..., int]) -> None:
    sig = add.s(1).stamp(foo="bar")
    assert stamps(sig.clone(foo="other").options) == {"foo": "bar"}
    both = sig.clone(stamped_headers=["z"], z=1, foo="other")
    assert stamps(both.options) == {"foo": "bar", "z": 1}
    assert stamps(sig.options) == {"foo": "bar"}


@pytest.mark.parametrize("by_name", [False, True])
def test_stamps_are_in_the_message(app: Umbel, add: Task[..., int], by_name: bool) -> None:
    sig = signature("elsewhere" if by_name else add.name, (1, 2), app=app)
    sig.stamp(foo="bar", many=[1, 2]).apply_async()
    headers = only(app).headers
    assert headers["stamped_headers"] == ["foo", "many"]
    assert headers["stamps"] == {"foo": "bar", "many": [1, 2]}
    assert "foo" not in headers
    request = lease(app)
    assert (request.stamped_headers, request.stamps) == (
        ["foo", "many"], {"foo": "bar", "many": [1, 2]},
    )  # fmt: skip


@pytest.mark.option("stamped_headers")
def test_a_call_may_have_stamps_itself(app: Umbel, add: Task[..., int]) -> None:
    add.apply_async((1,), stamped_headers=["foo"], foo="bar")  # type: ignore[call-arg]
    assert only(app).headers["stamps"] == {"foo": "bar"}
    with pytest.raises(TypeError, match="'foo', which doesn't exist"):
        add.apply_async((1,), foo="bar")  # type: ignore[call-arg]


def test_what_is_not_stamped_says_so(app: Umbel, add: Task[..., int]) -> None:
    add.delay(1)
    headers = only(app).headers
    assert (headers["stamped_headers"], headers["stamps"]) == (None, {})


def test_each_step_of_a_chain_carries_its_stamps(app: Umbel, add: Task[..., int]) -> None:
    chained = add.s(1) | add.s(2)
    chained.stamp(foo="bar").apply_async()
    request = lease(app)
    assert request.stamps == {"foo": "bar"}
    (later,) = request.chain or [{}]
    assert stamps(later["options"]) == {"foo": "bar"}


def test_a_retry_keeps_its_stamps(app: Umbel, add: Task[..., int]) -> None:
    add.s(1).stamp(foo="bar").apply_async()
    request = lease(app)
    with running(add, request), pytest.raises(Retry) as raised:
        add.retry()
    assert raised.value.posting is not None
    assert raised.value.posting.message.headers["stamps"] == {"foo": "bar"}


def test_an_eager_task_has_its_stamps(app: Umbel) -> None:
    @app.task(bind=True)
    def looks(self: Any) -> Any:
        return self.request.stamped_headers, self.request.stamps

    assert looks.s().stamp(foo="bar").apply().get() == (["foo"], {"foo": "bar"})
