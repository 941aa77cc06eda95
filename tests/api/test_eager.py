"""Tasks that run in the caller: `apply`, `task_always_eager` and their settings."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass
from typing import Any

import pytest
from tests.api.looking import only, waiting

from umbel import AsyncResult, Task, Umbel, signals
from umbel.eagerresult import EagerResult
from umbel.exceptions import AlwaysEagerIgnored, EncodeError, Ignore, Reject

NAMES = ("task_prerun", "task_success", "task_retry", "task_failure", "task_postrun")


@pytest.fixture
def seen(request: pytest.FixtureRequest) -> Any:
    """The names of signals and handlers, in their order."""
    names: list[str] = []

    def note(signal: Any, **_: Any) -> None:
        names.append(signal.name)

    for name in NAMES:
        getattr(signals, name).connect(note)
    yield names
    for name in NAMES:
        getattr(signals, name).disconnect(note)


class Noting(Task[..., Any]):
    seen: list[str]

    def before_start(self, *args: Any) -> None:
        self.seen.append("before_start")

    def on_success(self, *args: Any) -> None:
        self.seen.append("on_success")

    def on_retry(self, *args: Any) -> None:
        self.seen.append("on_retry")

    def on_failure(self, *args: Any) -> None:
        self.seen.append("on_failure")

    def after_return(self, *args: Any) -> None:
        self.seen.append("after_return")


@pytest.fixture
def act(app: Umbel, seen: list[str]) -> Any:
    """A task that ends as it is told."""

    @app.task(base=Noting, bind=True, name="act", max_retries=2)
    def act(self: Task[..., Any], how: str, until: int = 9) -> Any:
        retries = self.request.retries
        match how:
            case "retry" if retries < until:
                self.retry(exc=KeyError(retries), countdown=1000)
            case "retry_args" if retries < 1:
                self.retry(args=("retry_args", 77))
            case "fail":
                raise ValueError("no")
            case "ignore":
                raise Ignore()
            case "reject":
                raise Reject("never")
        return retries, until, self.request.is_eager, self.request.called_directly

    loose: Any = act
    loose.seen = seen
    return act


START = ["task_prerun", "before_start"]
RETRY = [*START, "on_retry", "task_retry", "task_postrun"]
FAILURE = ["on_failure", "task_failure", "after_return", "task_postrun"]


@pytest.mark.parametrize(
    ("how", "state", "order"),
    [
        ("go", "SUCCESS", [*START, "on_success", "task_success", "after_return", "task_postrun"]),
        ("fail", "FAILURE", [*START, *FAILURE]),
        ("retry", "FAILURE", [*RETRY, *RETRY, *START, *FAILURE]),
        ("ignore", "IGNORED", [*START, "task_postrun"]),
        ("reject", "REJECTED", [*START, "task_postrun", "task_failure"]),
    ],
)
def test_apply_calls_handlers_and_signals_as_a_worker(
    app: Umbel, act: Any, seen: list[str], how: str, state: str, order: list[str]
) -> None:
    result = act.apply((how,))
    assert (result.state, seen) == (state, order)
    assert waiting(app) == []


def test_results_are_there_at_once(act: Any) -> None:
    result = act.apply(("go",), task_id="mine")
    assert isinstance(result, EagerResult)
    assert isinstance(result, AsyncResult)
    assert (result.id, result.ready(), result.successful()) == ("mine", True, True)
    assert result.get() == (0, 9, True, False)
    failed = act.apply(("fail",))
    assert "ValueError: no" in failed.traceback
    with pytest.raises(ValueError, match="no"):
        failed.get()
    assert isinstance(failed.get(propagate=False), ValueError)
    assert act.apply(("ignore",)).get() is None
    failed.revoke()
    assert failed.state == "REVOKED"


def test_retries_run_at_once(act: Any) -> None:
    assert act.apply(("retry",), {"until": 2}).get() == (2, 2, True, False)
    assert act.apply(("retry_args",)).get() == (1, 77, True, False)
    assert act.apply(("retry",), {"until": 2}, retries=2).get() == (2, 2, True, False)
    with pytest.raises(KeyError, match="2"):
        act.apply(("retry",)).get()


def test_autoretry_runs_at_once(app: Umbel) -> None:
    @app.task(bind=True, autoretry_for=KeyError, retry_backoff=True)
    def flaky(self: Task[..., Any]) -> int:
        if self.request.retries < 3:
            raise KeyError
        return self.request.retries

    assert flaky.apply().get() == 3


@pytest.mark.setting("task_eager_propagates")
def test_throw_and_task_eager_propagates(app: Umbel, act: Any, seen: list[str]) -> None:
    with pytest.raises(ValueError, match="no"):
        act.apply(("fail",), throw=True)
    assert seen[-4:] == FAILURE
    app.conf.task_eager_propagates = True
    with pytest.raises(ValueError, match="no"):
        act.apply(("fail",))
    assert act.apply(("fail",), throw=False).failed()


@pytest.mark.setting("task_always_eager")
def test_task_always_eager(app: Umbel, act: Any) -> None:
    app.conf.task_always_eager = True
    assert act.delay("go").get() == (0, 9, True, False)
    assert act.apply_async(("go",), task_id="x", countdown=100).id == "x"
    assert [r.get()[0] for r in act.delay_many([("go",), ("go",)])] == [0, 0]
    with pytest.raises(TypeError, match="missing 1 required"):
        act.delay()
    with pytest.warns(AlwaysEagerIgnored, match="act") as caught:
        app.send_task("act", ("go",))
    assert caught[0].filename == __file__
    assert only(app).task == "act"


def test_arguments_make_the_way_that_they_would_make(app: Umbel) -> None:
    @app.task
    def show(a: uuid.UUID, b: Any) -> Any:
        return a, b

    given = uuid.uuid4()
    app.conf.task_always_eager = True
    assert show.delay(given, (1, 2)).get() == (given, [1, 2])
    with pytest.raises(EncodeError):
        show.delay(given, object())
    assert show.apply((given, (1, 2))).get() == (given, (1, 2))
    app.conf.task_serializer = "pickle"
    assert show.delay(given, (1, 2)).get() == (given, (1, 2))


@pytest.mark.setting("task_store_eager_result")
def test_task_store_eager_result(app: Umbel, act: Any) -> None:
    result = act.apply(("go",))
    assert not app.AsyncResult(result.id).exists()
    app.conf.task_store_eager_result = True
    assert app.AsyncResult(act.apply(("go",)).id).get() == [0, 9, True, False]
    assert app.AsyncResult(act.apply(("fail",)).id).state == "FAILURE"
    ignored = act.apply(("go",), ignore_result=True)
    assert not app.AsyncResult(ignored.id).exists()
    act.store_eager_result = False
    assert not app.AsyncResult(act.apply(("go",)).id).exists()


def test_coroutines_run_with_and_without_a_loop(app: Umbel) -> None:
    @app.task(bind=True)
    async def co(self: Task[..., Any], x: int) -> Any:
        await asyncio.sleep(0)
        return x, self.request.id

    async def inside() -> Any:
        return co.apply((2,), task_id="two").get()

    assert co.apply((1,), task_id="one").get() == (1, "one")
    assert asyncio.run(inside()) == (2, "two")


def test_what_an_eager_task_sends_knows_its_parent(app: Umbel) -> None:
    @app.task
    def child() -> None: ...

    @app.task
    def parent() -> str:
        return child.delay().id

    result = parent.apply(task_id="p")
    message = only(app)
    assert (message.headers["id"], message.headers["parent_id"]) == (result.get(), "p")


def test_callbacks_and_chains(app: Umbel) -> None:
    calls: list[object] = []

    @app.task(name="add")
    def add(x: int, y: int) -> int:
        return x + y

    @app.task(name="note")
    def note(value: object) -> None:
        calls.append(value)

    @app.task(name="tell")
    def tell(request: Any, exc: Any, traceback: Any) -> None:
        calls.append((request.id, repr(exc), "TypeError" in traceback))

    app.conf.task_always_eager = True
    result = (add.s(1, 2) | add.s(10) | add.s(100)).apply_async()
    assert (result.get(), result.parent.get(), result.parent.parent.get()) == (113, 13, 3)
    add.apply_async((1, 2), link=note.s())
    add.apply_async((1, "x"), task_id="f", link=note.s(), link_error=[tell.s(), note.s()])
    assert calls == [3, ("f", calls[1][1], True), "f"]  # type: ignore[index]
    failed = (add.s(1, "x") | add.s(10)).apply_async()
    assert failed.failed()
    assert add.apply((1, 2), link=note.s()).get() == 3
    assert calls[-1] == 3


def test_headers_and_lineage(app: Umbel) -> None:
    @app.task(bind=True)
    def look(self: Task[..., Any]) -> Any:
        request = self.request
        info = request.delivery_info or {}
        return request.tenant, request.root_id, info["priority"]

    result = look.apply(headers={"tenant": "a"}, root_id="r", priority=3)
    assert result.get() == ("a", "r", 3)


def test_what_does_not_fit_is_not_retried(app: Umbel) -> None:
    @app.task(autoretry_for=TypeError)
    def show(a: uuid.UUID) -> None: ...

    app.conf.task_always_eager = True
    app.conf.task_eager_propagates = True
    bad: Any = "no uuid"
    with pytest.raises(TypeError, match="which isn't UUID"):
        show.delay(bad)


@dataclass
class Parcel:
    labels: set[str]


def parcel(label: str) -> Parcel:
    return Parcel({label})


def test_a_return_value_is_plain_where_a_worker_would_make_it_so(app: Umbel) -> None:
    """`apply` and a call are the function's own."""
    packed = app.task(name="packed")(parcel)
    loose = app.task(name="loose", typing=False)(parcel)
    assert packed.apply(("x",)).get() == packed("x") == Parcel({"x"})
    app.conf.task_always_eager = True
    result: Any = packed.delay("x")
    assert result.get() == {"labels": ["x"]}
    result = loose.delay("x")
    assert result.get() == Parcel({"x"})
