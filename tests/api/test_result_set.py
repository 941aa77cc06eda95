"""`ResultSet` and `as_completed`: several results at once."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from tests.api.looking import lease, store
from tests.worker.harness import until

from umbel import Umbel
from umbel.exceptions import TimeoutError
from umbel.request import running
from umbel.result import ResultSet, as_completed


def results(app: Umbel, count: int = 3) -> ResultSet[Any]:
    return app.ResultSet([app.AsyncResult(str(n)) for n in range(count)])


def test_what_is_in_it(app: Umbel) -> None:
    a, b, c = (app.AsyncResult(name) for name in "abc")
    some = ResultSet([a, b, a])
    assert (list(some), len(some), some[1], some.app) == ([a, b], 2, b, app)
    some.add(b)
    some.add(c)
    some.remove("b")
    with pytest.raises(KeyError, match="b"):
        some.remove(b)
    some.discard(b)
    some.discard("c")
    assert some == ResultSet([a])
    assert some != ResultSet([b])
    assert a in some
    some.update([b, c, b])
    assert repr(some) == "<ResultSet: [a, b, c]>"
    some.clear()
    assert len(some) == 0
    assert some.app is app
    assert some.backend is app.store


def test_how_they_are(app: Umbel) -> None:
    some = results(app)

    def now() -> tuple[bool, bool, bool, bool, int]:
        return (
            some.ready(), some.waiting(), some.successful(), some.failed(), some.completed_count(),
        )  # fmt: skip

    assert now() == (False, True, False, False, 0)
    store(app, "0", "SUCCESS", 0)
    store(app, "1", "STARTED", {})
    assert now() == (False, True, False, False, 1)
    store(app, "1", "FAILURE", KeyError("x"))
    assert now() == (False, True, False, True, 1)
    store(app, "2", "SUCCESS", 2)
    assert now() == (True, False, False, True, 2)
    store(app, "1", "SUCCESS", 1)
    assert results(app).successful()
    empty: ResultSet[Any] = app.ResultSet()
    assert (empty.ready(), empty.get(), empty.successful()) == (True, [], True)


def test_asking_is_one_trip(app: Umbel, monkeypatch: pytest.MonkeyPatch) -> None:
    assert app.store is not None
    trips: list[int] = []
    get = app.store.get

    def counted(ids: Any) -> Any:
        trips.append(len(ids))
        return get(ids)

    monkeypatch.setattr(app.store, "get", counted)
    for n in range(100):
        store(app, str(n), "SUCCESS", n)
    assert results(app, 100).get() == list(range(100))
    assert results(app, 100).successful()
    assert trips == [100, 100]


def test_values_come_in_their_order(app: Umbel) -> None:
    some = results(app)
    got: list[Any] = []
    ways = [some.get, results(app).join, results(app).join_native, lambda: asyncio.run(wait())]

    async def wait() -> list[Any]:
        return await results(app)

    threads = [threading.Thread(target=lambda way=way: got.append(way())) for way in ways]
    for thread in threads:
        thread.start()
    for n in (2, 0, 1):
        store(app, str(n), "SUCCESS", n)
    for thread in threads:
        thread.join(30)
    assert got == [[0, 1, 2]] * 4


def test_the_first_failure_is_raised_at_once(app: Umbel) -> None:
    store(app, "2", "FAILURE", KeyError("x"))
    with pytest.raises(KeyError, match="x"):
        results(app).get(timeout=30)
    with pytest.raises(KeyError, match="x"):
        asyncio.run(results(app).aget(timeout=30))
    with pytest.raises(TimeoutError, match=r"2 of 3 tasks have no result after 0\.05 s"):
        results(app).get(timeout=0.05, propagate=False)
    for name in "01":
        store(app, name, "SUCCESS", 1)
    values = results(app).get(propagate=False)
    assert values[:2] == [1, 1]
    assert isinstance(values[2], KeyError)
    with pytest.raises(KeyError, match="x"):
        results(app).maybe_throw()


def test_callbacks(app: Umbel) -> None:
    called: list[Any] = []
    for n in range(3):
        store(app, str(n), "SUCCESS", n)

    def callback(*each: Any) -> None:
        called.append(each)

    def on_message(meta: Any) -> None:
        called.append(meta["status"])

    assert results(app).get(callback=callback, on_message=on_message) == []
    assert called == ["SUCCESS", ("0", 0), "SUCCESS", ("1", 1), "SUCCESS", ("2", 2)]
    called.clear()
    assert asyncio.run(results(app).aget(callback=callback, on_message=on_message)) == []
    assert sorted(each for each in called if each != "SUCCESS") == [("0", 0), ("1", 1), ("2", 2)]
    called.clear()
    results(app).maybe_throw(callback)
    assert called == [("0", 0), ("1", 1), ("2", 2)]
    assert [(each, meta["result"]) for each, meta in results(app).iter_native()] == [
        ("0", 0), ("1", 1), ("2", 2),
    ]  # fmt: skip


def test_intervals(app: Umbel) -> None:
    ticks: list[int] = []

    def on_interval() -> None:
        ticks.append(1)
        if len(ticks) == 3:
            for n in range(3):
                store(app, str(n), "SUCCESS", n)

    assert results(app).get(timeout=30, interval=0.005, on_interval=on_interval) == [0, 1, 2]
    assert len(ticks) >= 3


def test_then(app: Umbel) -> None:
    called: list[Any] = []
    some = results(app)
    some.then(called.append)
    app.ResultSet().then(lambda _: called.append("empty"))
    assert called == ["empty"]
    for n in range(3):
        store(app, str(n), "SUCCESS", n)
    until(lambda: len(called) == 2)
    assert called[1] is some
    assert some.get() == [0, 1, 2]


def test_waiting_inside_a_task_is_refused(app: Umbel) -> None:
    @app.task(name="proj.t")
    def t() -> None: ...

    t.delay()
    for n in range(3):
        store(app, str(n), "SUCCESS", n)
    with running(t, lease(app)):
        with pytest.raises(RuntimeError, match=r"proj\.t waits"):
            results(app).get()
        assert results(app).get(disable_sync_subtasks=False) == [0, 1, 2]


def test_forgetting_and_revoking(app: Umbel) -> None:
    sent = app.ResultSet([app.send_task("t") for _ in range(3)])
    sent.revoke()
    assert [each.state for each in sent] == ["REVOKED"] * 3
    assert len(app.broker.revoked(0)[1]) == 3
    sent.forget()
    assert [each.state for each in sent] == ["PENDING"] * 3
    app.ResultSet().revoke()


def test_as_completed_gives_each_as_it_ends(app: Umbel) -> None:
    store(app, "1", "SUCCESS", 1)
    ignored = app.send_task("t", ignore_result=True)
    order: list[str] = []
    for each in as_completed([*results(app), ignored], timeout=30):
        order.append(each.id)
        if len(order) == 2:
            store(app, "0", "FAILURE", KeyError("x"))
        if len(order) == 3:
            store(app, "2", "SUCCESS", 2)
    assert order[0:2] in (["1", ignored.id], [ignored.id, "1"])
    assert order[2:] == ["0", "2"]
    assert list(as_completed([])) == []


@pytest.mark.parametrize("count", [5, 300])
def test_many_that_end_one_by_one(app: Umbel, count: int) -> None:
    def end() -> None:
        for n in reversed(range(count)):
            store(app, str(n), "SUCCESS", n)

    ending = threading.Thread(target=end)
    ended = as_completed(results(app, count), timeout=30)
    ending.start()
    assert sorted(each.get() for each in ended) == list(range(count))
    ending.join(30)


def test_results_of_several_stores(app: Umbel) -> None:
    with Umbel("other", broker="memory://another", set_as_current=False) as other:
        store(app, "here", "SUCCESS", 1)
        store(other, "there", "SUCCESS", 2)
        both = [app.AsyncResult("here"), other.AsyncResult("there")]
        assert ResultSet(both).get(timeout=30) == [1, 2]
        fresh = [app.AsyncResult("here"), other.AsyncResult("there")]
        assert asyncio.run(ResultSet(fresh).aget(timeout=30)) == [1, 2]
