"""What was revoked doesn't run, what runs can be ended; both survive every restart."""

from __future__ import annotations

import pytest
from tests.worker.harness import until
from tests.worker.living import Place

from umbel import AsyncResult, states
from umbel.exceptions import TaskRevokedError


def _assert_revoked(result: AsyncResult[object], why: str = "revoked") -> None:
    until(result.ready, what="the task is ended")
    assert result.state == states.REVOKED
    with pytest.raises(TaskRevokedError, match=why):
        result.get(timeout=5)


def test_a_revocation_survives_the_restart_of_everything(place: Place) -> None:
    delayed = place.send("quick", "delayed", countdown=1.5)
    waiting = place.send("quick", "waiting")
    place.app.revoke([delayed.id, waiting.id])
    place.app.close()
    place.worker("-c", "1").kill()
    place.app.close()
    second = place.worker("-c", "1")
    _assert_revoked(delayed)
    _assert_revoked(waiting)
    until(lambda: place.broker.find(delayed.id) == (), what="the delayed message is ended")
    assert place.send("quick", "other").get(timeout=30)
    assert place.counts("start") == {"other": 1}
    assert place.counts("task_revoked:False:None") == {delayed.id: 1, waiting.id: 1}
    assert second.stop() == 0, second.text


def test_an_id_revoked_before_it_is_sent(place: Place) -> None:
    place.worker("-c", "1")
    place.app.revoke(["later-sent"])
    result = place.send("quick", "later-sent", task_id="later-sent")
    _assert_revoked(result)
    place.send("quick", "other").get(timeout=30)
    assert place.counts("start") == {"other": 1}


@pytest.mark.parametrize(
    ("task", "signal", "number"),
    [
        ("gated", None, 15),
        ("late_gated", None, 15),
        ("gated", "SIGKILL", 9),
        ("loop_gated", None, 15),
        ("stubborn", "SIGTERM", 15),
        ("late_hold", None, 15),
    ],
)
def test_terminate_a_running_task(place: Place, task: str, signal: str | None, number: int) -> None:
    place.worker("-c", "2")
    other = place.send("gated", "other", str(place.gate()))
    what = 20.0 if task == "late_hold" else str(place.gate("never"))
    result = place.send(task, "victim", what)
    pid = place.noted("start", "victim")[0].pid
    result.revoke(terminate=True, signal=signal)
    _assert_revoked(result, "terminated")
    place.noted(f"task_revoked:True:{number}", result.id)
    until(lambda: pid not in place.pids(), what="its process has ended")
    place.gate().touch()
    other.get(timeout=30)
    place.send("quick", "next").get(timeout=30)
    assert place.counts("start") == {"other": 1, "victim": 1, "next": 1}
    assert place.notes("end", "victim") == []
    assert place.app.dead.list() == []


def test_terminate_with_sigusr1_is_a_soft_limit(place: Place) -> None:
    place.worker("-c", "1")
    never = str(place.gate("never"))
    caught = place.send("soft", "caught", never)
    pid = place.noted("start", "caught")[0].pid
    caught.revoke(terminate=True, signal="SIGUSR1")
    assert caught.get(timeout=30) == "cleaned up"
    uncaught = place.send("gated", "uncaught", never)
    place.noted("start", "uncaught")
    uncaught.revoke(terminate=True, signal="SIGUSR1")
    until(uncaught.ready)
    assert uncaught.state == states.FAILURE
    assert type(uncaught.result).__name__ == "SoftTimeLimitExceeded"
    assert place.noted("start", "uncaught")[0].pid == pid
    assert place.send("quick", "next").get(timeout=30) == pid


def test_terminate_of_what_waits_ends_it_before_it_runs(place: Place) -> None:
    place.worker("-c", "1")
    running = place.send("gated", "running", str(place.gate()))
    place.noted("start", "running")
    waiting = place.send("quick", "waiting")
    waiting.revoke(terminate=True)
    assert waiting.state == states.REVOKED
    place.gate().touch()
    running.get(timeout=30)
    until(lambda: place.broker.find(waiting.id) == (), what="the waiting message is ended")
    assert place.counts("start") == {"running": 1}


def test_a_dead_letter_requeued_after_a_revocation_runs(place: Place) -> None:
    place.worker("-c", "1")
    result = place.send("fail", "again")
    until(result.ready)
    until(lambda: place.app.dead.get(result.id), what="a dead letter")
    result.revoke()
    assert place.app.dead.requeue(result.id)
    place.noted("start", "again", times=2)
    until(lambda: place.app.dead.get(result.id), what="a dead letter again")
    assert result.state == states.FAILURE


def test_what_is_revoked_while_a_worker_puts_it_back_needs_not_wait(place: Place) -> None:
    """A message that travels as Celery's is taken before its time, and goes back until then."""
    place.worker("-c", "1", app="tests.worker.hurried_app")
    place.app.conf.task_eta_in_broker = False
    result = place.send("quick", "later", countdown=3600)
    _assert_revoked(result)
    until(lambda: place.broker.find(result.id) == (), what="the delayed message is ended")
