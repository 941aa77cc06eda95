"""Callbacks, error callbacks and chains, from the call through real workers to the results."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.worker.harness import until
from tests.worker.living import Place

from umbel import AsyncResult
from umbel.canvas import Signature, chain, signature
from umbel.message import Message, Posting


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("chained"))
    try:
        made.worker("-c", "2", app="tests.worker.chained_app")
        yield made
    finally:
        made.close()


def sig(place: Place, name: str, *args: object, **options: Any) -> Signature:
    return signature(name, args, options=options, app=place.app)


def messages(place: Place, queue: str, number: int = 1) -> list[Message]:
    """What waits in a queue, once it is so many."""

    def look() -> list[Message]:
        found = place.broker.peek(queue, number + 1)
        return [each for each in found if isinstance(each, Message)]

    return until(lambda: found if len(found := look()) == number else [], what=place.logs())


def children(place: Place, result: AsyncResult[Any]) -> list[AsyncResult[Any]]:
    return ended(place, result).children or []


def ended(place: Place, result: AsyncResult[Any]) -> AsyncResult[Any]:
    until(result.ready, what=place.logs())
    return result


def test_each_step_gets_what_the_one_before_has_returned(place: Place) -> None:
    add = [sig(place, "add", n) for n in (1, 10, 100)]
    immutable = signature("add", (7, 7), immutable=True, app=place.app)
    result = (add[0] | add[1] | add[2]).apply_async((5,))
    assert ended(place, result).result == 116
    assert result.parent.result == 16
    assert result.parent.parent.result == 6
    assert result.parent.parent.parent is None
    assert ended(place, (add[0] | immutable | add[1]).delay(1)).result == 24
    assert place.counts("add")[result.parent.parent.id] == 3


def test_the_children_of_a_step_are_its_callbacks_and_the_next_step(place: Place) -> None:
    callback = sig(place, "add", 1)
    first = sig(place, "add", 1, 1)
    first.link(callback)
    result = (first | sig(place, "add", 5)).apply_async()
    ended(place, result)
    called_back, following = children(place, result.parent)
    assert following == result
    assert ended(place, called_back).result == 3
    assert result.children == []
    quiet = place.app.send_task("quiet", link=callback)
    assert ended(place, quiet).children == []


def test_root_and_parent(place: Place) -> None:
    result = (sig(place, "add", 1) | sig(place, "add", 1) | sig(place, "lineage")).delay(1)
    assert ended(place, result).result == [result.parent.parent.id, result.parent.id]


def test_a_chain_as_a_callback(place: Place) -> None:
    callback = sig(place, "add", 1) | sig(place, "add", 2)
    (child,) = children(place, place.app.send_task("add", (1, 1), link=callback))
    assert ended(place, child).result == 3
    (last,) = children(place, child)
    assert ended(place, last).result == 5


def test_a_retry_keeps_what_follows(place: Place) -> None:
    result = (sig(place, "again", 1) | sig(place, "add", 5)).apply_async()
    assert ended(place, result).result == 7
    assert place.counts("again")[result.parent.id] == 1


def test_what_follows_goes_to_its_own_queue(place: Place) -> None:
    result = (sig(place, "add", 1, 1) | sig(place, "add", 5, queue="elsewhere")).apply_async()
    ended(place, result.parent)
    (message,) = messages(place, "elsewhere")
    assert (message.id, message.headers["argsrepr"]) == (result.id, "(2, 5)")
    assert message.properties["delivery_info"]["routing_key"] == "elsewhere"


@pytest.mark.parametrize("kind", ["KeyError", "exit"])
def test_a_failure_ends_the_chain_and_is_told(place: Place, kind: str) -> None:
    failing = signature("fail", (), {"kind": kind}, app=place.app)
    for errback in ("raising", "called", "told"):
        failing.link_error(sig(place, errback))
    failing.link(sig(place, "add", 1))
    later = sig(place, "add", 5)
    later.link_error(sig(place, "told"))
    result = (sig(place, "add", 1, 1) | failing | later | sig(place, "add", 6)).apply_async()
    failed = ended(place, result.parent.parent)
    error = {"KeyError": "KeyError", "exit": "WorkerLostError"}[kind]
    for each in (failed, result.parent, result):
        assert ended(place, each).state == "FAILURE"
        assert type(each.result).__name__ == error
        assert each.traceback == failed.traceback
    assert len(place.noted("told", failed.id)) == 1
    assert len(place.noted(f"called:{error}", failed.id)) == 1
    assert place.counts("add")[result.parent.parent.parent.id] == 1
    assert not place.notes("told", result.parent.id)
    assert "The errback raising of" in place.logs()
    letter = until(lambda: place.app.dead.get(failed.id))
    assert letter is not None
    assert letter.error == error


def test_an_error_callback_in_the_sender_s_arguments(place: Place) -> None:
    immutable = signature("told", ("fixed",), immutable=True, app=place.app)
    place.app.send_task("fail", link_error=[immutable, sig(place, "not-known-here")])
    place.noted("told", "fixed")
    (waiting,) = until(lambda: [each for each in unknown(place) if each == "not-known-here"])
    assert waiting


def unknown(place: Place) -> list[str]:
    """Names that the worker says it doesn't know."""
    return [name for name in ("not-known-here",) if f"isn't known here ('{name}')" in place.logs()]


def test_a_rejection_ends_the_chain_without_error_callbacks(place: Place) -> None:
    failing = signature("fail", (), {"kind": "reject"}, app=place.app)
    failing.link_error(sig(place, "called"))
    failing.link_error(sig(place, "told"))
    result = (failing | sig(place, "add", 6)).apply_async()
    assert ended(place, result).state == "FAILURE"
    assert place.notes(tag=result.parent.id)
    assert not place.notes("told", result.parent.id)
    assert not place.notes("called:Reject", result.parent.id)


def test_ignore_leaves_the_rest_pending(place: Place) -> None:
    result = (
        signature("fail", (), {"kind": "ignore"}, app=place.app) | sig(place, "add", 6)
    ).delay()
    place.noted("fail", result.parent.id)
    until(lambda: not place.broker.find(result.parent.id))
    assert (result.parent.state, result.state) == ("PENDING", "PENDING")


def test_a_revoked_step_revokes_those_behind_it(place: Place) -> None:
    result = chain(sig(place, "add", 1), sig(place, "add", 5)).apply_async((1,), countdown=3600)
    result.parent.revoke()
    assert ended(place, result).state == "REVOKED"


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"priority": 99}, "priority is 99"), ({"exchange": "nowhere"}, "nowhere")],
)
def test_a_callback_that_cannot_be_sent_makes_its_task_a_failure(
    place: Place, options: dict[str, object], reason: str
) -> None:
    bad = signature("add", (1,), options=options, app=place.app)
    result = place.app.send_task("add", (1, 1), link=bad, link_error=sig(place, "told"))
    assert ended(place, result).state == "FAILURE"
    assert reason in str(result.result)
    place.noted("told", result.id)
    assert until(lambda: place.app.dead.get(result.id))


def test_an_error_callback_that_cannot_be_sent_is_said(place: Place) -> None:
    bad = signature("told", options={"priority": 99}, app=place.app)
    result = place.app.send_task("fail", link_error=[bad, sig(place, "told")])
    place.noted("told", result.id)
    assert f"An errback of task fail[{result.id}] can't be sent." in place.logs()


def test_a_duplicate_of_a_step_sends_what_follows_under_the_same_ids(place: Place) -> None:
    """As after a crash: what is ended twice is followed by the same messages."""
    link = dict(sig(place, "add", 1, queue="twice"))
    with place.app.batch():
        place.app.send_task("add", (1, 1), link=link, queue="copied")
    (message,) = messages(place, "copied")
    place.broker.publish([Posting(message, "celery"), Posting(message, "celery")])
    one, other = messages(place, "twice", 2)
    assert one.id == other.id


def test_a_step_that_its_arguments_do_not_fit_fails_itself(place: Place) -> None:
    result = (sig(place, "add", 1, 1) | sig(place, "add", 2, 3) | sig(place, "add", 1)).delay()
    assert ended(place, result).state == "FAILURE"
    assert result.parent.parent.result == 2
    assert isinstance(result.parent.result, TypeError)


def test_what_follows_from_a_result_that_the_store_refuses(tmp_path: Path) -> None:
    """The task is a failure then: no next step, an error callback, a dead letter."""
    made = Place(tmp_path)
    try:
        results = f"sqlite:///{tmp_path}/results.db"
        made.worker(
            "-c",
            "1",
            app="tests.worker.chained_app",
            env={"UMBEL_RESULT_BACKEND": results, "REFUSE_RESULT": "2"},
        )
        made.app.conf.result_backend = results
        first = sig(made, "add", 1, 1)
        first.link_error(sig(made, "told"))
        result = (first | sig(made, "add", 1)).delay()
        assert ended(made, result).state == "FAILURE"
        assert type(result.result).__name__ == "BackendStoreError"
        made.noted("told", result.parent.id)
        assert made.counts("add")[result.parent.id] == 1
        letter = until(lambda: made.app.dead.get(result.parent.id))
        assert letter is not None
        assert letter.error == "BackendStoreError"
    finally:
        made.close()


def test_a_callback_that_no_queue_takes_with_a_result_store_of_its_own(tmp_path: Path) -> None:
    """No SUCCESS is stored before it is known that what follows can be sent."""
    made = Place(tmp_path)
    try:
        results = f"sqlite:///{tmp_path}/results.db"
        made.worker(
            "-c", "1", app="tests.worker.chained_app", env={"UMBEL_RESULT_BACKEND": results}
        )
        made.app.conf.result_backend = results
        options = {"exchange": "nowhere", "routing_key": "nobody"}
        bad = signature("add", (1,), options=options, app=made.app)
        result = made.app.send_task("add", (1, 1), link=bad, link_error=sig(made, "told"))
        assert ended(made, result).state == "FAILURE"
        assert type(result.result).__name__ == "Unroutable"
        made.noted("told", result.id)
        letter = until(lambda: made.app.dead.get(result.id))
        assert letter is not None
        assert letter.error == "Unroutable"
    finally:
        made.close()
