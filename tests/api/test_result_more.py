"""`AsyncResult` beyond its value: chains, callbacks, pickles, and what this process remembers."""

from __future__ import annotations

import asyncio
import copy
import pickle
import threading
from typing import Any

import pytest
from tests.api.looking import lease, store

from umbel import AsyncResult, Umbel
from umbel.eagerresult import EagerResult
from umbel.exceptions import IncompleteStream, NotProvided, TimeoutError
from umbel.message import Result
from umbel.request import running
from umbel.result import allow_join_result, denied_join_result
from umbel.stored import encode_meta

DONE = "2027-01-15T08:00:00+00:00"


def with_children(app: Umbel, task_id: str, value: Any, *children: str) -> None:
    meta = encode_meta(
        task_id, "SUCCESS", value, children=[[[each, None], None] for each in children]
    )
    assert app.store is not None
    app.store.put([Result(task_id, "SUCCESS", meta)])


# Waiting


def test_what_is_called_while_waiting(app: Umbel) -> None:
    called: list[Any] = []

    def on_interval() -> None:
        called.append("interval")
        if called.count("interval") == 2:
            store(app, "id", "PROGRESS", {"done": 1})
        if called.count("interval") == 4:
            store(app, "id", "SUCCESS", 2, DONE)

    result = app.AsyncResult("id")
    value = result.get(
        timeout=30,
        interval=0.005,
        on_interval=on_interval,
        on_message=lambda meta: called.append(meta),
        callback=lambda *each: called.append(each),
        no_ack=False,
    )
    assert value == 2
    first, last, done = [each for each in called if each != "interval"]
    assert (first["status"], first["result"], first["task_id"]) == ("PROGRESS", {"done": 1}, "id")
    assert (last["status"], last["result"], last["date_done"]) == ("SUCCESS", 2, DONE)
    assert done == ("id", 2)


def test_a_failed_step_before_it_ends_a_wait(app: Umbel) -> None:
    first = app.AsyncResult("first")
    last = app.AsyncResult("last", parent=app.AsyncResult("middle", parent=first))
    got: list[BaseException] = []

    def wait() -> None:
        try:
            last.get(timeout=30)
        except KeyError as error:
            got.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    store(app, "middle", "SUCCESS", 1)
    store(app, "first", "FAILURE", KeyError("x"))
    thread.join(30)
    assert [error.args for error in got] == [("x",)]
    with pytest.raises(TimeoutError):
        last.get(timeout=0.01, follow_parents=False)
    with pytest.raises(TimeoutError):
        last.get(timeout=0.01, propagate=False)
    store(app, "last", "SUCCESS", 3)
    assert last.get() == 3


def test_maybe_throw(app: Umbel) -> None:
    called: list[Any] = []
    result = app.AsyncResult("id")
    assert result.maybe_throw() is None
    store(app, "id", "RETRY", KeyError("later"))
    assert isinstance(result.maybe_reraise(), KeyError)
    store(app, "id", "FAILURE", KeyError("x"))
    with pytest.raises(KeyError, match="x"):
        result.maybe_throw(callback=lambda *each: called.append(each))
    assert called == []
    error = result.maybe_throw(propagate=False, callback=lambda *each: called.append(each))
    assert called == [("id", error)]
    with pytest.raises(KeyError, match="x"):
        result.throw(error)


def test_where_waiting_is_allowed(app: Umbel) -> None:
    @app.task(name="proj.t")
    def t() -> None: ...

    t.delay()
    store(app, "id", "SUCCESS", 1)
    result = app.AsyncResult("id")
    with denied_join_result():
        with pytest.raises(RuntimeError, match=r"denied here.*link="):
            result.get()
        with allow_join_result():
            assert result.get() == 1
    with running(t, lease(app)):
        with pytest.raises(RuntimeError, match=r"proj\.t waits .*chain.*link=.*allow_join_result"):
            result.get()
        with allow_join_result():
            assert result.get() == 1
        with pytest.raises(RuntimeError):
            result.get()


def test_a_task_that_runs_in_its_caller_may_wait(app: Umbel) -> None:
    store(app, "id", "SUCCESS", 1)

    @app.task
    def wait() -> int:
        return int(app.AsyncResult("id").get())

    assert wait.apply().get() == 1


# A chain and what a task has sent


def test_what_a_task_has_sent(app: Umbel) -> None:
    with_children(app, "a", 1, "b", "c")
    with_children(app, "b", 2, "d")
    with_children(app, "c", 3)
    with_children(app, "d", 4)
    root = app.AsyncResult("a")
    assert [(parent, node.id) for parent, node in root.iterdeps()] == [
        (None, "a"), ("a", "b"), ("a", "c"), ("b", "d"),
    ]  # fmt: skip
    assert [(node.id, value) for node, value in root.collect()] == [
        ("a", 1), ("b", 2), ("c", 3), ("d", 4),
    ]  # fmt: skip
    assert root.get_leaf() == 4
    assert app.AsyncResult("c").get_leaf() == 3


def test_what_has_not_ended_has_sent_nothing_yet(app: Umbel) -> None:
    with_children(app, "a", 1, "b")
    deps = app.AsyncResult("a").iterdeps()
    assert [next(deps)[1].id, next(deps)[1].id] == ["a", "b"]
    with pytest.raises(IncompleteStream, match="task b hasn't ended; its state is PENDING"):
        next(deps)
    assert [node.id for _, node in app.AsyncResult("a").iterdeps(intermediate=True)] == ["a", "b"]
    with pytest.raises(TimeoutError):
        list(app.AsyncResult("a").collect(timeout=0.01))


def test_the_parts_of_a_group_that_a_task_has_sent(app: Umbel) -> None:
    meta = encode_meta(
        "a", "SUCCESS", 1, children=[[["g", None], [[["x", None], None], [["y", None], []]]]]
    )
    assert app.store is not None
    app.store.put([Result("a", "SUCCESS", meta)])
    assert [each.id for each in app.AsyncResult("a").children or ()] == ["x", "y"]


def test_forgetting_a_chain(app: Umbel) -> None:
    store(app, "first", "SUCCESS", 1)
    store(app, "last", "SUCCESS", 2)
    last = app.AsyncResult("last", parent=app.AsyncResult("first"))
    assert last.get() == 2
    assert last.as_list() == ["last", "first"]
    last.forget()
    assert (last.state, app.AsyncResult("first").state) == ("PENDING", "PENDING")


# Copies, pickles, names that it doesn't have


def test_copies_and_pickles(app: Umbel) -> None:
    store(app, "id", "SUCCESS", 1)
    result = app.AsyncResult("id", task_name="proj.t", parent=app.AsyncResult("first"))
    for made in (copy.copy(result), pickle.loads(pickle.dumps(result))):
        assert made == result
        assert made is not result
        assert (made.app, made.name, made.parent, made.get()) == (app, "proj.t", "first", 1)
    ignored = pickle.loads(pickle.dumps(app.send_task("t", ignore_result=True)))
    assert ignored.get() is None


def test_copies_and_pickles_of_eager_results(app: Umbel) -> None:
    eager = EagerResult("id", 5, "SUCCESS", None, "proj.t", app)
    for made in (copy.copy(eager), pickle.loads(pickle.dumps(eager))):
        assert (made.id, made.get(), made.state, made.name) == ("id", 5, "SUCCESS", "proj.t")
    assert repr(eager) == "<EagerResult: id>"
    eager.revoke(terminate=True)
    assert eager.state == "REVOKED"


def test_eager_results_take_what_others_take(app: Umbel) -> None:
    called: list[Any] = []
    eager = EagerResult("id", KeyError("x"), "FAILURE", "trace", "proj.t", app)
    with pytest.raises(KeyError):
        eager.get(1, True, 0.5, True, True, None, None, None, True)
    error = eager.get(propagate=False, callback=lambda *each: called.append(each))
    assert called == [("id", error)]

    async def main() -> None:
        with pytest.raises(KeyError):
            await eager
        assert await eager.aget(propagate=False, callback=lambda *_: called.append(2)) == error
        assert await EagerResult("id", None, "IGNORED", app=app) is None

    asyncio.run(main())
    assert called[1] == 2


@pytest.mark.parametrize("name", ["graph", "build_graph", "revoke_by_stamped_headers"])
def test_a_name_that_is_not_there_says_what_is(app: Umbel, name: str) -> None:
    result = app.AsyncResult("id")
    assert not hasattr(result, name)
    with pytest.raises(NotProvided, match=rf"result\.{name} comes with the release"):
        getattr(result, name)
    assert result.supports_native_join


def test_celerys_order_of_parameters(app: Umbel) -> None:
    parent = app.AsyncResult("first")
    made: AsyncResult[int] = AsyncResult("id", None, "proj.t", app, parent)
    assert (made.task_name, made.app, made.parent) == ("proj.t", app, parent)
    assert made.backend is app.store


# What is remembered


def reads(app: Umbel, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids that are read from now on."""
    seen: list[str] = []
    store = app.store
    assert store is not None
    get = store.get

    def counted(ids: Any) -> Any:
        seen.extend(ids)
        return get(ids)

    monkeypatch.setattr(store, "get", counted)
    return seen


@pytest.mark.setting("result_cache_max")
def test_result_cache_max(app: Umbel, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        store(app, name, "SUCCESS", name)
    store(app, "started", "STARTED", {})
    seen = reads(app, monkeypatch)

    def read(*names: str) -> list[str]:
        seen.clear()
        for name in names:
            assert app.AsyncResult(name).state in ("SUCCESS", "STARTED")
        return list(seen)

    assert read("a", "a") == ["a", "a"]
    app.conf.result_cache_max = 2
    assert read("a", "a", "b", "a") == ["a", "b"]
    assert read("c", "a", "b") == ["c", "b"], "the one that was used longest ago goes"
    assert read("started", "started") == ["started", "started"]
    assert asyncio.run(app.AsyncResult("b").aget()) == "b"
    app.AsyncResult("b").forget()
    assert app.AsyncResult("b").state == "PENDING"
    app.conf.result_cache_max = 0
    assert read("a", "c", "a", "c") == ["a", "c"]
    app.conf.result_cache_max = -1
    assert read("a", "a") == ["a", "a"]
