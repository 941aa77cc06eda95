"""Requests as they are read from messages: ours, Celery's, and a stranger's garbage."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.api.looking import lease

from umbel import Umbel
from umbel.exceptions import InvalidTaskError
from umbel.message import Delivery, Message, Unreadable
from umbel.protocol import HEADERS, read_request, take_call
from umbel.request import Context, executing, request_of, running


def delivery(headers: dict[str, Any], properties: dict[str, Any] | None = None) -> Delivery:
    message = Message(
        body=b"[[], {}, {}]",
        content_encoding="utf-8",
        content_type="application/json",
        headers=headers,
        properties=properties or {},
    )
    return Delivery(lease=1, queue="q", message=message)


def read(headers: dict[str, Any], properties: dict[str, Any] | None = None) -> Context:
    return read_request(delivery(headers, properties), hostname="w@here")


def test_our_own_message(app: Umbel) -> None:
    result = app.send_task(
        "t", (1,), {"k": 2}, eta="2027-01-15T08:00:00+00:00", expires=60,
        time_limit=9, soft_time_limit=8,
        headers={"tenant": "acme"}, shadow="s", priority=3, root_id="r", parent_id="p",
        group_id="g", group_index=1, ignore_result=True, reply_to="me",
    )  # fmt: skip
    request = lease(app)
    assert (request.id, request.task, request.args, request.kwargs) == (
        result.id,
        "t",
        [1],
        {"k": 2},
    )
    assert (request.root_id, request.parent_id, request.group, request.taskset) == (
        "r",
        "p",
        "g",
        "g",
    )
    assert (request.eta, request.due_at) == ("2027-01-15T08:00:00+00:00", 1_800_000_000.0)
    assert (request.expires, request.expires_at) == (
        "2027-01-15T08:01:00+00:00",
        1_800_000_060.0,
    )
    assert (request.timelimit, request.time_limit, request.soft_time_limit) == ((9, 8), 9, 8)
    assert (request.shadow, request.group_index, request.ignore_result) == ("s", 1, True)
    assert (request.correlation_id, request.reply_to) == (result.id, "me")
    assert (request.hostname, request.called_directly, request.is_eager) == ("w@here", False, False)
    assert request.delivery_info == {
        "exchange": "",
        "routing_key": "celery",
        "priority": 3,
        "redelivered": False,
    }
    assert (request.argsrepr, request.kwargsrepr) == ("(1,)", "{'k': 2}")
    assert request.headers == {"tenant": "acme"}
    assert request.tenant == request.get("tenant") == "acme"
    assert request.get("nothing") is None
    assert request.get("nothing", 5) == 5
    with pytest.raises(AttributeError, match="'nothing'"):
        _ = request.nothing


def test_the_least_that_a_foreign_producer_sends() -> None:
    request = read({"task": "t", "id": "i"})
    assert (request.retries, request.timelimit, request.root_id) == (0, (None, None), "i")
    assert (request.headers, request.argsrepr, request.ignore_result) == (None, "", None)
    assert request.correlation_id == "i"


def test_nulls_are_as_good_as_missing() -> None:
    nulls = dict.fromkeys(HEADERS - {"task", "id"})
    assert read({"task": "t", "id": "i", **nulls}).retries == 0


def test_a_header_cannot_hide_what_a_request_has() -> None:
    request = read({"task": "t", "id": "i", "get": "x", "children": "y", "delivery": "z"})
    assert callable(request.get)
    assert request.children == []
    assert isinstance(request.delivery, Delivery)
    assert request.headers == {"get": "x", "children": "y", "delivery": "z"}


@pytest.mark.parametrize(
    ("headers", "text"),
    [
        ({}, "no header 'task'"),
        ({"id": "i"}, "no header 'task'"),
        ({"task": "t"}, "id"),
        ({"task": 5, "id": "i"}, "task"),
        ({"task": "t", "id": ""}, "id"),
        ({"task": "t", "id": "i", "retries": "3"}, "retries"),
        ({"task": "t", "id": "i", "retries": -1}, "retries"),
        ({"task": "t", "id": "i", "retries": 10**30}, "retries"),
        ({"task": "t", "id": "i", "timelimit": "x"}, "timelimit"),
        ({"task": "t", "id": "i", "timelimit": [1]}, "timelimit"),
        ({"task": "t", "id": "i", "timelimit": [float("inf"), None]}, "timelimit"),
        ({"task": "t", "id": "i", "timelimit": [None, -1]}, "timelimit"),
        ({"task": "t", "id": "i", "eta": 7}, "eta"),
        ({"task": "t", "id": "i", "eta": "soon"}, "eta"),
        ({"task": "t", "id": "i", "expires": "0001-01-01T00:00:00+23:59x"}, "expires"),
        ({"task": "t", "id": "i", "group": {}}, "group"),
    ],
)
def test_garbage_is_an_invalid_task(headers: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidTaskError, match=text):
        read(headers)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
TIMES = st.datetimes().map(lambda d: d.isoformat()) | st.sampled_from(
    ["0001-01-01T00:00:00", "9999-12-31T23:59:59.999999-23:59", "2027-01-15", "20270115T08"]
)


@given(
    headers=st.dictionaries(st.sampled_from([*sorted(HEADERS), "x"]), JSON | TIMES),
    properties=st.dictionaries(
        st.sampled_from(["priority", "reply_to", "correlation_id", "delivery_info"]), JSON
    ),
)
def test_a_strangers_headers_raise_nothing_else(headers: Any, properties: Any) -> None:
    for given_ in (headers, {"task": "t", "id": "i", **headers}):
        try:
            request = read(given_, properties)
        except InvalidTaskError:
            continue
        assert isinstance(request.id, str)
        assert isinstance(request.retries, int)
        assert request.delivery_info is not None
        assert 0 <= request.delivery_info["priority"] <= 9


@given(embed=st.dictionaries(st.sampled_from(["callbacks", "errbacks", "chain", "chord"]), JSON))
def test_a_strangers_embed_raises_nothing_else(embed: Any) -> None:
    request = read({"task": "t", "id": "i"})
    try:
        take_call(request, [], {}, embed)
    except InvalidTaskError:
        return
    assert request.callbacks is None or isinstance(request.callbacks, list)
    assert request.chord is None or isinstance(request.chord, dict)


def test_what_cannot_be_read_is_an_invalid_task() -> None:
    unreadable = Delivery(lease=1, queue="q", message=Unreadable(b"x", "no JSON"))
    with pytest.raises(InvalidTaskError, match="no JSON"):
        read_request(unreadable, hostname="h")


def test_the_innermost_run_of_a_task_counts() -> None:
    task, other = object(), object()
    outer, inner, direct = Context(), Context(), Context()
    outer.called_directly = inner.called_directly = False
    assert executing() is None
    with running(task, outer):
        with running(other, inner), running(task, direct):
            assert request_of(task) is direct
            assert request_of(other) is inner
            entry = executing()
            assert entry is not None
            assert entry.request is inner
        assert request_of(task) is outer
        assert request_of(other) is None
    assert request_of(task) is None
