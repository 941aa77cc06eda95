"""`AsyncResult`: states, waiting, exceptions, forgetting, revoking."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.api.looking import lease, store

from umbel import AsyncResult, Umbel
from umbel.exceptions import (
    ImproperlyConfigured,
    NotRegistered,
    TaskRevokedError,
    TimeoutError,
)
from umbel.mailbox import read_command
from umbel.message import Result
from umbel.ports import Revocation
from umbel.request import running
from umbel.serialization import JSON
from umbel.stored import encode_meta

DONE = "2027-01-15T08:00:00+00:00"


def test_nothing_is_known(app: Umbel) -> None:
    result = app.AsyncResult("id")
    assert (result.state, result.status, result.result, result.traceback) == (
        "PENDING",
        "PENDING",
        None,
        None,
    )
    assert {result.ready(), result.successful(), result.failed(), result.exists()} == {False}
    assert result.children is None
    assert result.date_done is None


def test_a_value(app: Umbel) -> None:
    store(app, "id", "SUCCESS", {"a": [1]}, DONE)
    result = app.AsyncResult("id")
    assert result.get() == result.wait(timeout=0) == result.result == result.info == {"a": [1]}
    assert result.state == "SUCCESS"
    assert result.ready()
    assert result.successful()
    assert not result.failed()
    assert result.exists()
    assert result.date_done == datetime(2027, 1, 15, 8, tzinfo=UTC)


def test_a_failure_is_raised_or_returned(app: Umbel) -> None:
    store(app, "id", "FAILURE", KeyError("x"), DONE)
    result = app.AsyncResult("id")
    with pytest.raises(KeyError, match="x"):
        result.get(timeout=5)
    returned = result.get(propagate=False)
    assert isinstance(returned, KeyError)
    assert returned.args == ("x",)
    assert result.failed()
    assert isinstance(result.result, KeyError)


def test_a_revoked_task_raises(app: Umbel) -> None:
    store(app, "id", "REVOKED", TaskRevokedError("expired"), DONE)
    with pytest.raises(TaskRevokedError, match="expired"):
        app.AsyncResult("id").get()


@pytest.mark.parametrize("state", ["STARTED", "RETRY", "PROGRESS"])
def test_what_is_not_final_is_waited_for(app: Umbel, state: str) -> None:
    store(app, "id", state, KeyError("x") if state == "RETRY" else {"done": 1})
    result = app.AsyncResult("id")
    with pytest.raises(TimeoutError, match=state):
        result.get(timeout=0.01)
    assert not result.ready()
    assert isinstance(result.result, KeyError if state == "RETRY" else dict)
    store(app, "id", "SUCCESS", 5)
    assert result.get(timeout=5) == 5


@pytest.mark.parametrize("timeout", [0, 0.05, 0.3])
def test_get_never_ends_later_than_its_timeout(app: Umbel, timeout: float) -> None:
    start = time.monotonic()
    with pytest.raises(TimeoutError, match=f"after {timeout} s.*umbel why id"):
        app.AsyncResult("id").get(timeout=timeout)
    assert timeout <= time.monotonic() - start < timeout + 1


def test_get_returns_when_the_result_comes(app: Umbel) -> None:
    got: list[Any] = []
    result = app.AsyncResult("id")
    thread = threading.Thread(target=lambda: got.append(result.get(timeout=20)))
    thread.start()
    store(app, "other", "SUCCESS", 1)
    store(app, "id", "STARTED", {})
    store(app, "id", "SUCCESS", 2)
    thread.join(10)
    assert got == [2]


def test_a_callback_gets_id_and_value(app: Umbel) -> None:
    store(app, "id", "SUCCESS", 7)
    called: list[Any] = []
    app.AsyncResult("id").get(callback=lambda *args: called.append(args), interval=1)
    assert called == [("id", 7)]


def test_ignored_results_are_not_waited_for(app: Umbel) -> None:
    @app.task(ignore_result=True)
    def t() -> int:
        return 1

    assert t.delay().get() is None
    assert not t.apply_async(ignore_result=False).ignored
    assert app.send_task("x", ignore_result=True).get() is None


def test_waiting_inside_a_task_is_refused(app: Umbel) -> None:
    @app.task(name="proj.t")
    def t() -> None: ...

    t.delay()
    store(app, "other", "SUCCESS", 1)
    with running(t, lease(app)):
        with pytest.raises(RuntimeError, match=r"proj\.t waits .*disable_sync_subtasks=False"):
            app.AsyncResult("other").get()
        assert app.AsyncResult("other").get(disable_sync_subtasks=False) == 1


def test_without_a_store_there_is_nothing_to_get() -> None:
    with Umbel("a", broker="memory://x", backend="disabled://", set_as_current=False) as app:
        result = app.send_task("t")
        for ask in (result.get, result.ready, result.forget, lambda: result.state):
            with pytest.raises(ImproperlyConfigured, match="disabled://"):
                ask()


def test_forgetting(app: Umbel) -> None:
    store(app, "id", "SUCCESS", 1)
    result = app.AsyncResult("id")
    assert result.get() == 1
    result.forget()
    assert result.state == "PENDING"


def test_children_and_what_is_stored_beside(app: Umbel) -> None:
    meta = encode_meta(
        "id", "SUCCESS", 1, children=[[["c1", None], None], "strange"],
        extended={
            "name": "proj.t", "args": [1], "kwargs": {}, "worker": "w", "retries": 2, "queue": "q",
        },
    )  # fmt: skip
    assert app.store is not None
    app.store.put([Result("id", "SUCCESS", meta)])
    result = app.AsyncResult("id")
    assert result.children == [app.AsyncResult("c1")]
    assert (result.name, result.args, result.kwargs) == ("proj.t", [1], {})
    assert (result.worker, result.retries, result.queue) == ("w", 2, "q")
    assert app.send_task("named").name == "named"


def test_equal_by_id(app: Umbel) -> None:
    one = app.AsyncResult("id")
    other: AsyncResult[int] = AsyncResult("id", app=app)
    assert one == other == "id"
    assert one != app.AsyncResult("x")
    assert len({one, other}) == 1
    assert (str(one), repr(one), one.task_id) == ("id", "<AsyncResult: id>", "id")
    bad: Any = None
    with pytest.raises(ValueError, match="delay"):
        AsyncResult(bad, app=app)


def test_the_last_app_is_the_one_of_results_without(app: Umbel) -> None:
    store(app, "id", "SUCCESS", 1)
    result: AsyncResult[int] = AsyncResult("id")
    assert result.get() == 1


# Revoking


def test_what_waits_is_revoked_at_once(app: Umbel) -> None:
    result = app.send_task("t")
    result.revoke()
    assert result.state == "REVOKED"
    with pytest.raises(TaskRevokedError, match="revoked"):
        result.get(timeout=5)
    assert app.broker.revoked(0)[1] == (Revocation(result.id),)


def test_supervisors_are_told_only_of_what_may_have_to_be_ended(app: Umbel) -> None:
    subscription = app.broker.subscribe(["celery.pidbox"])
    app.send_task("t").revoke()
    result = app.send_task("t")
    result.revoke(terminate=True, signal="KILL")
    heard = subscription.get(5)
    assert heard is not None
    assert heard[0] == "celery.pidbox"
    command = read_command(heard[1], {JSON.content_type: JSON})
    assert command.method == "revoke"
    assert command.arguments == {
        "task_id": [result.id],
        "terminate": True,
        "signal": "SIGKILL",
    }
    assert command.is_logged
    assert subscription.get(0.0) is None
    subscription.close()


@pytest.mark.parametrize("wrong", ["SIGNONE", "alarm", 4711, ""])
def test_a_signal_that_there_is_not_is_said_to_the_caller(app: Umbel, wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"there is no signal .* here; there are SIG"):
        app.send_task("t").revoke(terminate=True, signal=wrong)


def test_what_runs_or_is_unknown_is_left_to_the_workers(app: Umbel) -> None:
    result = app.send_task("t")
    lease(app)
    result.revoke(terminate=True, signal="SIGKILL")
    app.AsyncResult("unknown").revoke()
    assert result.state == app.AsyncResult("unknown").state == "PENDING"
    assert app.broker.revoked(0)[1] == (
        Revocation(result.id, True, "SIGKILL"),
        Revocation("unknown"),
    )


def test_a_final_state_is_not_overwritten(app: Umbel) -> None:
    result = app.send_task("t", countdown=60)
    store(app, result.id, "FAILURE", NotRegistered("t"), DONE)
    result.revoke()
    assert app.AsyncResult(result.id).state == "FAILURE"
