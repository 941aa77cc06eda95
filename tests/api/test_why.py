"""`app.why`: one sentence, and the same as parts, for every case."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC

import pytest
from tests.api.looking import lease, store, waiting
from tests.api.test_dead import bury
from tests.brokers.weak import WeakBroker

from umbel import Umbel
from umbel.brokers.memory import reset
from umbel.clock import ManualClock
from umbel.exceptions import TaskRevokedError
from umbel.message import Dead, How, Loss, Lost, Settlement
from umbel.ports import BrokerOptions, Revocation
from umbel.testing.contract.rig import posting
from umbel.why import Case, Why, why

DONE = "2027-01-15T08:00:00+00:00"


def asked(app: Umbel, task_id: str, case: Case, sentence: str) -> Why:
    answer = app.why(task_id)
    assert (answer.case, str(answer)) == (case, sentence)
    assert json.loads(json.dumps(dict(answer.details))) == dict(answer.details)
    assert answer.details["id"] == task_id
    assert answer.details["case"] == case.value
    return answer


def test_waiting_at_a_place(app: Umbel) -> None:
    first = app.send_task("a", queue="q")
    second = app.send_task("a", queue="q")
    urgent = app.send_task("a", queue="q", priority=9)
    asked(app, first.id, Case.WAITING, "waiting at place 2 of queue 'q'; no worker is running")
    app.broker.enlist("r", None, b"")
    asked(app, urgent.id, Case.WAITING, "waiting at place 1 of queue 'q'")
    answer = asked(app, second.id, Case.WAITING, "waiting at place 3 of queue 'q'")
    assert (answer.details["queue"], answer.details["position"]) == ("q", 2)


def test_delayed(app: Umbel) -> None:
    result = app.send_task("a", countdown=60)
    sentence = "delayed until 2027-01-15 08:01:00+00:00 in queue 'celery'"
    answer = asked(app, result.id, Case.DELAYED, sentence)
    assert answer.details["due_at"] == 1_800_000_060.0
    app.conf.timezone = "Asia/Tokyo"
    sentence = "delayed until 2027-01-15 17:01:00+09:00 in queue 'celery'"
    asked(app, result.id, Case.DELAYED, sentence)


def test_delayed_for_longer_than_a_calendar_has_days(app: Umbel) -> None:
    result = app.send_task("a", eta="9999-12-31T23:59:59+00:00")
    app.conf.timezone = "Asia/Tokyo"
    assert str(app.why(result.id)).startswith("delayed until second 253402300799")


def test_retrying(app: Umbel) -> None:
    result = app.send_task("a", countdown=60)
    store(app, result.id, "RETRY", ValueError("not\nyet"))
    answer = asked(
        app,
        result.id,
        Case.RETRYING,
        "delayed until 2027-01-15 08:01:00+00:00 in queue 'celery', to be tried again after "
        r"ValueError('not\nyet')",
    )
    assert answer.details["state"] == "RETRY"


def test_an_unknown_task_name(app: Umbel) -> None:
    result = app.send_task("a")
    app.broker.enlist("r", "r#1", b"")
    app.broker.turn("r#1", 1, queues=["celery"], begin=1, limit=1)
    release = Settlement(1, How.RELEASE, delay=1.0, unknown=True)
    app.broker.turn("r#1", 2, settlements=[release])
    answer = asked(
        app,
        result.id,
        Case.UNKNOWN_TASK,
        "waits in queue 'celery' for a worker that knows its task's name; none has since "
        "2027-01-15 08:00:00+00:00, the next try is at 2027-01-15 08:00:01+00:00",
    )
    assert answer.details["since_at"] == 1_800_000_000.0


def test_held_and_running(app: Umbel) -> None:
    first, second = app.send_task("a"), app.send_task("a")
    app.broker.enlist("r", "r#1", b'{"hostname": "umbel@here"}')
    app.broker.turn("r#1", 1, queues=["celery"], begin=1, limit=2)
    answer = asked(app, first.id, Case.RUNNING, "running in worker umbel@here, from queue 'celery'")
    assert answer.details["worker"] == "umbel@here"
    asked(app, second.id, Case.HELD, "held by worker umbel@here, from queue 'celery'")
    first.revoke(terminate=True)
    asked(
        app,
        first.id,
        Case.RUNNING,
        "running in worker umbel@here, from queue 'celery'; it is asked to end",
    )


@pytest.mark.parametrize("info", [b"", b"[]", b"{}", b'{"hostname": 5}', b"\xff"])
def test_a_run_that_does_not_say_its_name(app: Umbel, info: bytes) -> None:
    result = app.send_task("a")
    app.broker.enlist("some-run", "some-run#1", info)
    app.broker.turn("some-run#1", 1, queues=["celery"], limit=1)
    asked(app, result.id, Case.HELD, "held by worker some-run, from queue 'celery'")


def test_set_aside_for_burial(app: Umbel) -> None:
    result = app.send_task("a")
    app.broker.enlist("r", "r#1", b"")
    app.broker.turn("r#1", 1, queues=["celery"], begin=1, limit=1)
    app.broker.abandon("r#1", running={1: Lost(Loss.PROCESS, "signal 9 (SIGKILL)")})
    answer = asked(
        app,
        result.id,
        Case.SET_ASIDE,
        "was running when it was lost (process: signal 9 (SIGKILL)); the next free process of "
        "queue 'celery' decides what follows",
    )
    assert answer.details["reason"] == "signal 9 (SIGKILL)"


def test_revoked(app: Umbel) -> None:
    result = app.send_task("a")
    result.revoke()
    asked(app, result.id, Case.REVOKED, f"revoked at {DONE}")
    assert app.store is not None
    app.store.forget([result.id])
    asked(
        app,
        result.id,
        Case.REVOKED,
        "revoked; its message is still in queue 'celery' and is ended when a worker takes it",
    )
    app.AsyncResult("x").revoke()
    asked(
        app,
        "x",
        Case.REVOKED,
        "revoked; the broker has no message of it, and one that comes is ended",
    )
    store(app, "t", "REVOKED", TaskRevokedError("terminated"), DONE)
    asked(app, "t", Case.REVOKED, f"terminated at {DONE}")


def test_expired(app: Umbel) -> None:
    store(app, "x", "REVOKED", TaskRevokedError("expired"), DONE)
    answer = asked(app, "x", Case.EXPIRED, f"expired at {DONE}; it was not started")
    assert answer.details["reason"] == "expired"


def test_dead(app: Umbel) -> None:
    result = app.send_task("a", queue="q")
    bury(app, "q", "Boom: it broke")
    store(app, result.id, "FAILURE", KeyError("x"), DONE)
    answer = asked(
        app,
        result.id,
        Case.DEAD,
        "dead since 2027-01-15 08:00:00+00:00, from queue 'q': Boom: it broke",
    )
    assert (answer.details["error"], answer.details["state"]) == ("Boom", "FAILURE")
    app.dead.requeue(result.id)
    assert app.why(result.id).case is Case.WAITING


def test_finished(app: Umbel) -> None:
    store(app, "s", "SUCCESS", 1, DONE)
    asked(app, "s", Case.FINISHED, f"finished: SUCCESS at {DONE}")
    store(app, "f", "FAILURE", KeyError("x"), DONE)
    answer = asked(app, "f", Case.FINISHED, f"finished: FAILURE at {DONE}: KeyError('x')")
    assert (answer.details["date_done"], answer.details["error"]) == (DONE, "KeyError('x')")


def test_finished_and_not_yet_settled(app: Umbel) -> None:
    result = app.send_task("a")
    lease(app)
    store(app, result.id, "SUCCESS", 1, DONE)
    assert app.why(result.id).case is Case.FINISHED


def test_a_state_without_a_message(app: Umbel) -> None:
    store(app, "x", "STARTED", {})
    asked(
        app,
        "x",
        Case.STORED,
        "its last stored state is STARTED, and the broker has no message of it",
    )


def test_never_seen(app: Umbel, clock: ManualClock) -> None:
    answer = app.why("nothing")
    assert answer.case is Case.NEVER_SEEN
    assert str(answer).startswith("never seen: the broker has no message of this id")
    assert answer.details == {"id": "nothing", "case": "never seen"}


def test_without_a_result_store(clock: ManualClock) -> None:
    with Umbel("a", broker="memory://why", backend="disabled://", clock=clock) as app:
        result = app.send_task("a")
        assert app.why(result.id).case is Case.WAITING
        assert len(waiting(app)) == 1


@pytest.fixture
def weak(clock: ManualClock) -> Iterator[WeakBroker]:
    """A broker that can't find messages by their id."""
    broker = WeakBroker("why-weak", BrokerOptions(), clock=clock)
    broker.open()
    broker.declare(["q"])
    broker.enlist("r", "r#1", b"")
    yield broker
    broker.close()
    reset("why-weak")


def test_a_broker_that_cannot_find_messages_says_so(
    app: Umbel, weak: WeakBroker, clock: ManualClock
) -> None:
    def ask(case: Case, sentence: str) -> None:
        answer = why(weak, app.store, "id", now=clock.wall(), zone=UTC)
        assert (answer.case, str(answer)) == (case, sentence)

    weak.publish([posting("id", "q")])
    ask(
        Case.HIDDEN,
        "no result is stored, and this broker can't find messages by their id: it may wait, be "
        "due later, run, or never have been sent",
    )
    store(app, "id", "STARTED", None)
    ask(
        Case.STORED,
        "its last stored state is STARTED, and the broker can't find messages by their id",
    )
    app.AsyncResult("id").forget()
    weak.revoke([Revocation("id")])
    ask(Case.REVOKED, "revoked; one that comes is ended")
    (delivery,) = weak.turn("r#1", 1, queues=["q"], limit=1).deliveries
    dead = Dead("it broke")
    weak.turn("r#1", 2, settlements=[Settlement(delivery.lease, How.ACK, dead=dead)])
    ask(Case.DEAD, "dead since 2027-01-15 08:00:00+00:00, from queue 'q': it broke")
