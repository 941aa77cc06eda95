"""Waiting for results in coroutines: one thread asks the store for all that wait."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.api.looking import lease, store
from tests.worker.harness import until

from umbel import AsyncResult, Umbel, waiting
from umbel.exceptions import (
    ImproperlyConfigured,
    StoreUnavailable,
    TaskRevokedError,
    TimeoutError,
)
from umbel.message import Result
from umbel.request import running
from umbel.result import allow_join_result, as_completed
from umbel.stored import encode_meta

PATIENCE = 30.0
DONE = "2027-01-15T08:00:00+00:00"


def run(main: Awaitable[Any]) -> Any:
    async def limited() -> Any:
        async with asyncio.timeout(PATIENCE):
            return await main

    return asyncio.run(limited())


async def true(ask: Callable[[], Any]) -> None:
    """Return once `ask` gives something true."""
    while not ask():  # noqa: ASYNC110  # nobody sets an event
        await asyncio.sleep(0.002)


def waits(app: Umbel) -> int:
    """How many ids the waiting thread has in hand."""
    return len(app.waiters.of(None)._watches)


def blocked(app: Umbel) -> bool:
    """Whether the waiting thread waits in the store."""
    return app.waiters.of(None)._blocked_in is not None


# One result


def test_a_value_that_is_there(app: Umbel) -> None:
    store(app, "id", "SUCCESS", {"a": [1]}, DONE)

    async def main() -> None:
        result = app.AsyncResult("id")
        assert await result.aget() == await result == await result.aget(timeout=0) == {"a": [1]}
        assert await app.AsyncResult("id").aget(timeout=0) == {"a": [1]}
        assert await app.AsyncResult("id").aready()
        assert await app.AsyncResult("id").astate() == "SUCCESS"
        assert await app.AsyncResult("nobody").astate() == "PENDING"
        assert not await app.AsyncResult("nobody").aready()

    run(main())


def test_a_value_that_comes(app: Umbel) -> None:
    async def main() -> Any:
        waiter = asyncio.create_task(app.AsyncResult("id").aget(timeout=PATIENCE))
        await true(lambda: blocked(app))
        store(app, "other", "SUCCESS", 1)
        store(app, "id", "STARTED", {})
        store(app, "id", "SUCCESS", 2)
        return await waiter

    assert run(main()) == 2


def test_what_is_known_is_not_read_again(app: Umbel) -> None:
    store(app, "id", "SUCCESS", 1, DONE)

    async def main() -> None:
        result = app.AsyncResult("id")
        await result
        assert app.store is not None
        app.store.forget(["id"])
        assert (result.state, result.result, await result) == ("SUCCESS", 1, 1)

    run(main())


def test_failures_and_revocations(app: Umbel) -> None:
    store(app, "failed", "FAILURE", KeyError("x"), DONE)
    store(app, "revoked", "REVOKED", TaskRevokedError("expired"), DONE)

    async def main() -> None:
        with pytest.raises(KeyError, match="x"):
            await app.AsyncResult("failed")
        assert isinstance(await app.AsyncResult("failed").aget(propagate=False), KeyError)
        with pytest.raises(TaskRevokedError, match="expired"):
            await app.AsyncResult("revoked").aget(timeout=5)

    run(main())


@pytest.mark.parametrize("timeout", [0, 0.05])
def test_a_wait_that_lasts_too_long(app: Umbel, timeout: float) -> None:
    store(app, "id", "PROGRESS", {"done": 1})

    async def main() -> None:
        with pytest.raises(TimeoutError, match=f"after {timeout} s; its state is PROGRESS"):
            await app.AsyncResult("id").aget(timeout=timeout)

    run(main())


def test_callbacks(app: Umbel) -> None:
    called: list[Any] = []

    async def callback(task_id: str, value: Any) -> None:
        called.append((task_id, value))

    async def main() -> None:
        waiter = asyncio.create_task(
            app.AsyncResult("id").aget(
                interval=0.01,
                callback=callback,
                on_interval=lambda: called.append("interval"),
                on_message=lambda meta: called.append((meta["status"], meta["result"])),
            )
        )
        await true(lambda: "interval" in called)
        store(app, "id", "PROGRESS", {"done": 1})
        await true(lambda: ("PROGRESS", {"done": 1}) in called)
        store(app, "id", "SUCCESS", 2)
        assert await waiter == 2

    run(main())
    assert [each for each in called if each != "interval"] == [
        ("PROGRESS", {"done": 1}),
        ("SUCCESS", 2),
        ("id", 2),
    ]


def test_a_callback_that_sends_a_task_is_not_waited_for(app: Umbel) -> None:
    store(app, "id", "SUCCESS", 1)
    run(app.AsyncResult("id").aget(callback=lambda *_: app.send_task("next")))
    assert app.broker.queues()[0].ready == 1


def test_a_failed_step_before_it_ends_a_wait(app: Umbel) -> None:
    first = app.AsyncResult("first")
    last = app.AsyncResult("last", parent=app.AsyncResult("middle", parent=first))

    async def main() -> None:
        waiter = asyncio.create_task(last.aget())
        await true(lambda: blocked(app))
        store(app, "middle", "SUCCESS", 1)
        await asyncio.sleep(0)
        store(app, "first", "FAILURE", KeyError("x"))
        with pytest.raises(KeyError, match="x"):
            await waiter
        with pytest.raises(TimeoutError):
            await last.aget(timeout=0.01, follow_parents=False)

    run(main())


def test_waiting_inside_a_task_is_refused(app: Umbel) -> None:
    @app.task(name="proj.t")
    def t() -> None: ...

    t.delay()
    store(app, "other", "SUCCESS", 1)

    async def main() -> None:
        other = app.AsyncResult("other")
        with pytest.raises(RuntimeError, match=r"proj\.t waits .*chain it.*allow_join_result"):
            await other
        assert await other.aget(disable_sync_subtasks=False) == 1
        with allow_join_result():
            assert await other == 1

    with running(t, lease(app)):
        run(main())


def test_ignored_and_disabled(app: Umbel) -> None:
    async def main() -> None:
        ignored = await app.asend_task("t", ignore_result=True)
        assert await ignored is None
        assert [change async for change in ignored] == []
        with Umbel("a", broker="memory://x", backend="disabled://", set_as_current=False) as none:
            result = none.AsyncResult("id")
            for ask in (result.aget, result.astate, result.aready, result.aforget):
                with pytest.raises(ImproperlyConfigured, match="disabled://"):
                    await ask()

    run(main())


def test_forgetting_and_revoking(app: Umbel) -> None:
    async def main() -> None:
        result = await app.asend_task("t")
        await result.arevoke()
        with pytest.raises(TaskRevokedError):
            await result
        await result.aforget()
        assert await result.astate() == "PENDING"

    run(main())


# async for


def test_the_states_of_a_result(app: Umbel) -> None:
    seen: list[Any] = []

    async def main() -> None:
        async def look() -> None:
            async for state, info in app.AsyncResult("id"):
                seen.append((state, info))

        looking = asyncio.create_task(look())
        await true(lambda: blocked(app))
        for done in range(3):
            store(app, "id", "PROGRESS", {"done": done})
            await true(lambda: len(seen) == done + 1)  # noqa: B023  # it is called at once
        store(app, "id", "FAILURE", KeyError("x"))
        await looking

    run(main())
    assert seen[:3] == [("PROGRESS", {"done": done}) for done in range(3)]
    assert seen[3][0] == "FAILURE"
    assert isinstance(seen[3][1], KeyError)
    assert len(seen) == 4


def test_results_as_they_complete(app: Umbel) -> None:
    async def main() -> list[str]:
        store(app, "3", "SUCCESS", 3)
        results = [app.AsyncResult(str(n)) for n in range(4)]
        order: list[str] = []
        async for result in as_completed(results, timeout=PATIENCE):
            order.append(result.id)
            left = [n for n in ("2", "0", "1") if n not in order]
            if left:
                failed = left[0] == "0"
                store(app, left[0], *(("FAILURE", KeyError()) if failed else ("SUCCESS", 1)))
        return order

    assert run(main()) == ["3", "2", "0", "1"]


def test_results_that_do_not_complete_in_time(app: Umbel) -> None:
    store(app, "1", "SUCCESS", 1)
    results = [app.AsyncResult("1"), app.AsyncResult("2")]
    ticks: list[int] = []

    async def main() -> None:
        done = as_completed(
            results, 0.1, interval=0.01, on_interval=lambda: ticks.append(1)
        ).__aiter__()
        assert (await anext(done)).id == "1"
        with pytest.raises(TimeoutError, match=r"1 of 2 tasks have no result after 0.1 s"):
            await anext(done)

    run(main())
    assert ticks


def test_a_loop_that_is_left_early_waits_for_nothing(app: Umbel) -> None:
    store(app, "0", "SUCCESS", 1)

    async def main() -> None:
        done = as_completed([app.AsyncResult(str(n)) for n in range(40)]).__aiter__()
        async for _ in done:
            break
        await done.aclose()  # type: ignore[attr-defined]
        await true(lambda: not waits(app))

    run(main())


# Many


@pytest.fixture(params=["memory", "sqlite", "file"])
def any_app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Umbel]:
    """An app whose store tells who waits, or has to be polled."""
    backend = {
        "memory": f"memory://{tmp_path.name}",
        "sqlite": f"sqlite:///{tmp_path / 'results.db'}",
        "file": f"file://{tmp_path / 'results'}",
    }[request.param]
    with Umbel("proj", broker="memory://many", backend=backend, set_as_current=False) as app:
        yield app


def put(app: Umbel, values: dict[str, Any]) -> None:
    assert app.store is not None
    app.store.put(
        [Result(each, "SUCCESS", encode_meta(each, "SUCCESS", n)) for each, n in values.items()]
    )


@pytest.mark.parametrize("count", [3, 100])
def test_every_store(any_app: Umbel, count: int) -> None:
    async def main() -> list[Any]:
        waiter = asyncio.gather(*(any_app.AsyncResult(f"t{n}").aget() for n in range(count)))
        await true(lambda: waits(any_app) == count)
        for n in range(count):
            await asyncio.to_thread(put, any_app, {f"t{n}": n})
        return list(await waiter)

    assert run(main()) == list(range(count))


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_ten_thousand_at_once(kind: str, tmp_path: Path) -> None:
    backend = "memory://ten" if kind == "memory" else f"sqlite:///{tmp_path / 'r.db'}"
    with Umbel("proj", broker="memory://ten", backend=backend, set_as_current=False) as app:
        before = set(threading.enumerate())

        async def main() -> list[Any]:
            results = [app.AsyncResult(f"t{n}") for n in range(10_000)]
            waiter = asyncio.gather(*(each.aget(timeout=PATIENCE) for each in results))
            await true(lambda: waits(app) == 10_000)
            assert len(set(threading.enumerate()) - before) == 1
            for start in range(0, 10_000, 500):
                put(app, {f"t{n}": n for n in range(start, start + 500)})
                await asyncio.sleep(0)
            return list(await waiter)

        assert run(main()) == list(range(10_000))


def test_loops_in_several_threads_share_one_waiter(app: Umbel) -> None:
    got: list[Any] = []
    before = set(threading.enumerate())

    def work(name: str) -> None:
        async def main() -> list[Any]:
            return list(
                await asyncio.gather(*(app.AsyncResult(f"{name}{n}").aget() for n in range(5)))
            )

        got.append((name, run(main())))

    threads = [threading.Thread(target=work, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    until(lambda: waits(app) == 15)
    assert len(set(threading.enumerate()) - before) == 4
    put(app, {f"{name}{n}": f"{name}{n}" for name in "abc" for n in range(5)})
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(got) == [(name, [f"{name}{n}" for n in range(5)]) for name in "abc"]


# Who leaves


def test_a_wait_that_is_cancelled_leaves_nothing(app: Umbel) -> None:
    async def main() -> None:
        waiter = asyncio.create_task(app.AsyncResult("id").aget())
        await true(lambda: waits(app))
        waiter.cancel()
        await asyncio.wait([waiter])
        assert waiter.cancelled()
        store(app, "other", "SUCCESS", 1)
        await app.AsyncResult("other")
        await true(lambda: not waits(app))

    run(main())


def test_a_loop_that_is_closed_meanwhile_harms_nobody(app: Umbel) -> None:
    gone = asyncio.new_event_loop()
    left = gone.create_task(app.AsyncResult("id").aget())
    gone.run_until_complete(true(lambda: blocked(app)))
    gone.close()
    store(app, "id", "SUCCESS", 1)
    assert run(app.AsyncResult("id").aget(timeout=PATIENCE)) == 1
    left._log_destroy_pending = False  # type: ignore[attr-defined]  # else it is logged


def test_a_store_that_is_away_is_told_to_everyone(
    app: Umbel, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert app.store is not None

    def away(ids: Any) -> Any:
        raise StoreUnavailable("away")

    async def main() -> None:
        waiters = [asyncio.create_task(app.AsyncResult(f"t{n}").aget()) for n in range(3)]
        await true(lambda: waits(app) == 3 and blocked(app))
        assert app.store is not None
        with monkeypatch.context() as patch:
            patch.setattr(app.store, "get", away)
            app.store.interrupt()
            errors = await asyncio.gather(*waiters, return_exceptions=True)
            assert [type(error) for error in errors] == [StoreUnavailable] * 3
            assert len({id(error) for error in errors}) == 3
        store(app, "id", "SUCCESS", 1)
        assert await app.AsyncResult("id") == 1

    run(main())


def test_closing_the_app_tells_those_who_wait(app: Umbel) -> None:
    async def main() -> None:
        waiter = asyncio.create_task(app.AsyncResult("id").aget())
        await true(lambda: blocked(app))
        await asyncio.to_thread(app.close)
        with pytest.raises(StoreUnavailable, match="the app was closed"):
            await waiter
        store(app, "id", "SUCCESS", 1)
        assert await app.AsyncResult("id") == 1

    run(main())


def test_a_thread_without_work_ends_and_comes_again(
    app: Umbel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "IDLE", 0.01)
    store(app, "id", "SUCCESS", 1)
    assert run(app.AsyncResult("id").aget()) == 1
    until(lambda: app.waiters.of(None)._thread is None, what="the thread ends")
    assert run(app.AsyncResult("id").aget()) == 1


def test_a_store_that_is_named_has_a_waiter_of_its_own(app: Umbel, tmp_path: Path) -> None:
    backend = f"sqlite:///{tmp_path / 'other.db'}"
    with Umbel("other", broker="memory://other", backend=backend, set_as_current=False) as other:
        store(other, "id", "SUCCESS", "there")

        async def main() -> None:
            result: AsyncResult[str] = AsyncResult("id", other.store, app=app)
            assert await result == "there"
            assert result.get() == "there"
            with pytest.raises(TimeoutError):
                await app.AsyncResult("id").aget(timeout=0)

        run(main())


def test_a_fork_has_a_thread_of_its_own(tmp_path: Path) -> None:
    code = """
import asyncio, os, sys
from umbel import Umbel
from umbel.message import Result
from umbel.stored import encode_meta

app = Umbel("proj", broker="sqlite:///" + sys.argv[1])

async def wait(task_id):
    waiter = asyncio.create_task(app.AsyncResult(task_id).aget(timeout=20))
    while not app.waiters.of(None)._watches:
        await asyncio.sleep(0.001)
    app.store.put([Result(task_id, "SUCCESS", encode_meta(task_id, "SUCCESS", task_id))])
    assert await waiter == task_id

async def parent():
    left = asyncio.create_task(app.AsyncResult("left").aget(timeout=20))
    await wait("parent")
    child = os.fork()
    if child == 0:
        try:
            asyncio.events._set_running_loop(None)
            asyncio.run(wait("child"))
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    await wait("left")
    assert await left == "left"

asyncio.run(parent())
"""
    ended = subprocess.run(
        [sys.executable, "-c", code, os.fspath(tmp_path / "x.db")],
        capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr


# Without a loop


def test_then_calls_back_once_the_task_has_ended(
    app: Umbel, caplog: pytest.LogCaptureFixture
) -> None:
    called: list[Any] = []
    result = app.AsyncResult("id")
    result.then(lambda each: called.append((each, each.state)))
    result.then(lambda _: 1 / 0, on_error=called.append)
    result.then(lambda _: 1 / 0)
    result.then(lambda _: sys.exit(), on_error=lambda _: 1 / 0)
    assert called == []
    store(app, "id", "FAILURE", KeyError("x"))
    until(lambda: len(called) == 2 and len(caplog.records) == 2)
    assert called[0] == (result, "FAILURE")
    assert isinstance(called[1], ZeroDivisionError)
    assert "A callback for the result of id raised." in caplog.text
    result.then(lambda each: called.append(each.state))
    assert called[2] == "FAILURE"


def test_then_at_the_end_of_the_app_is_one_line(
    app: Umbel, caplog: pytest.LogCaptureFixture
) -> None:
    """No callback has raised: the app is closed, or the process ends."""
    failed: list[BaseException] = []
    app.AsyncResult("id").then(print)
    app.AsyncResult("id").then(print, on_error=failed.append)
    app.close()
    assert [(each.levelname, each.getMessage(), each.exc_info) for each in caplog.records] == [
        (
            "WARNING",
            "Nobody is told of the result of id: the app was closed while a result was waited for",
            None,
        )
    ]
    assert isinstance(failed[0], StoreUnavailable)


def test_then_at_the_end_of_the_process(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "from umbel import Umbel\n"
        "app = Umbel('end', broker='memory://')\n"
        "app.AsyncResult('id').then(print)\n"
    )
    ended = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=PATIENCE
    )
    assert ended.returncode == 0
    assert len(ended.stderr.splitlines()) <= 1, ended.stderr
    assert "raised" not in ended.stderr


# As a web application does


def test_requests_of_a_web_application(app: Umbel) -> None:
    """An ASGI application: each request sends a task and waits for its value, all at once."""

    @app.task(name="double")
    def double(x: int) -> int:
        return 2 * x

    async def application(scope: Any, receive: Any, send: Any) -> None:
        result = await double.adelay(int(scope["path"].strip("/")))
        value = await result.aget(timeout=PATIENCE)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": str(value).encode()})

    async def request(path: str) -> bytes:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        await application({"type": "http", "path": path}, None, send)
        return bytes(sent[1]["body"])

    async def worker(count: int) -> None:
        for _ in range(count):
            await true(lambda: app.broker.queues() and app.broker.queues()[0].ready)
            taken = lease(app)
            assert taken.args is not None
            store(app, str(taken.id), "SUCCESS", double(*taken.args))

    async def main() -> list[bytes]:
        working = asyncio.create_task(worker(200))
        bodies = await asyncio.gather(*(request(f"/{n}") for n in range(200)))
        await working
        return list(bodies)

    assert run(main()) == [str(2 * n).encode() for n in range(200)]
