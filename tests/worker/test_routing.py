"""Real workers on topic, fanout and broadcast queues."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from tests.worker import routed_app
from tests.worker.harness import Worker, until
from tests.worker.living import Place

from umbel import Umbel
from umbel.exceptions import Unroutable
from umbel.ports import DeadLetter

APP = "tests.worker.routed_app"


@pytest.fixture
def app(place: Place) -> Iterator[Umbel]:
    """The workers' app, as a client of theirs."""
    app = routed_app.app
    app.conf.broker_url = place.url
    yield app
    app.close()
    del app.conf.broker_url


def start(place: Place, *options: str, **env: str) -> Worker:
    return place.worker("-c", "1", *options, app=APP, env=env)


def own_queues(place: Place) -> list[str]:
    return [each.name for each in place.broker.queues() if each.name.startswith("bcast.calls.")]


def test_a_worker_makes_the_bindings_of_its_queues(place: Place) -> None:
    worker = start(place, "-Q", "sport,goals")
    # This sender knows nothing of them.
    place.send("where", "both", exchange="news", routing_key="sport.goal")
    place.send("where", "one", exchange="news", routing_key="sport.tennis")
    place.noted("both", times=2)
    assert place.counts("both") == {"sport": 1, "goals": 1}
    place.noted("one")
    assert place.counts("one") == {"sport": 1}
    with pytest.raises(Unroutable, match="takes routing key 'art'"):
        place.send("where", "none", exchange="news", routing_key="art")
    assert worker.stop() == 0, worker.text


def test_a_sender_makes_the_queues_that_it_knows(place: Place, app: Umbel) -> None:
    routed_app.where.apply_async(("early",), exchange="news", routing_key="sport.goal")
    worker = start(place, "-Q", "sport,goals")
    place.noted("early", times=2)
    assert place.counts("early") == {"sport": 1, "goals": 1}
    assert worker.stop() == 0, worker.text


def test_each_worker_runs_what_is_broadcast(place: Place, app: Umbel) -> None:
    workers = [start(place) for _ in "ab"]
    sent = routed_app.where.apply_async(("call",), queue="calls")
    place.noted("call", times=2)
    assert place.counts("call") == Counter(own_queues(place))
    assert sent.get(timeout=30) in own_queues(place)
    assert len({each.pid for each in place.notes("call")}) == 2
    assert workers[0].stop() == 0
    assert len(own_queues(place)) == 1
    routed_app.where.apply_async(("second",), queue="calls")
    place.noted("second")
    assert workers[1].stop() == 0
    assert own_queues(place) == []
    with pytest.raises(Unroutable, match="exchange 'calls'"):
        routed_app.where.apply_async(("third",), queue="calls")
    assert place.counts("second").total() == 1


def test_a_killed_worker_takes_its_broadcasts_with_it(make_place: Callable[[float], Place]) -> None:
    place = make_place(1.5)
    first, second = start(place, "-Q", "calls"), start(place, "-Q", "calls")
    place.send("holds", "held", str(place.gate()), exchange="calls")
    place.noted("held", times=2)
    waiting = place.send("where", "waits", exchange="calls")
    first.kill()
    until(lambda: len(own_queues(place)) <= 2 and _dead(place), what=place.logs())
    (letter,) = _dead(place)
    assert "whole worker died" in letter.reason
    assert letter.error == "WorkerLostError"
    place.gate().touch()
    place.noted("waits")
    assert second.stop() == 0, second.text
    assert place.counts("waits").total() == 1
    assert all(each.dead for each in place.broker.queues() if each.name.startswith("bcast."))
    assert waiting.get(timeout=10).startswith("bcast.calls.")


def _dead(place: Place) -> list[DeadLetter]:
    return [*place.broker.dead()]


def test_a_retry_of_a_broadcast_is_for_its_worker_alone(place: Place) -> None:
    workers = [start(place, "-Q", "calls") for _ in "ab"]
    place.send("once_more", "again", exchange="calls")
    place.noted("again", times=4)
    tries = Counter((each.pid, each.tag) for each in place.notes("again"))
    assert set(tries.values()) == {1}
    assert len({pid for pid, _ in tries}) == 2
    for worker in workers:
        assert worker.stop() == 0, worker.text


def test_a_dead_letter_of_a_broadcast_can_be_sent_again(place: Place) -> None:
    worker = start(place, "-Q", "calls")
    sent = place.send("fails", "broken", exchange="calls")
    until(lambda: place.app.dead.get(sent.id))
    assert worker.stop() == 0, worker.text
    with pytest.raises(Unroutable):
        place.app.dead.requeue(sent.id)
    assert place.app.dead.get(sent.id) is not None
    assert sent.state == "FAILURE"
    with start(place, "-Q", "calls") as other:
        assert place.app.dead.requeue(sent.id)
        place.noted("broken", times=2)
        until(lambda: place.app.dead.get(sent.id))
        assert other.stop() == 0, other.text


def test_a_callback_goes_through_its_exchange(place: Place, app: Umbel) -> None:
    worker = start(place, "-Q", "celery,goals")
    routed_app.where.apply_async(("first",), link=routed_app.follow.s())
    place.noted("follow")
    until(lambda: [q.ready for q in place.broker.queues() if q.name == "sport"] == [1])
    assert worker.stop() == 0, worker.text


def test_why_says_each_place(place: Place, app: Umbel) -> None:
    sent = routed_app.where.apply_async(("both",), exchange="news", routing_key="sport.goal")
    answer = app.why(sent.id)
    for queue in ("sport", "goals"):
        assert f"waiting at place 1 of queue {queue!r}" in answer.sentence
    assert {each["queue"] for each in answer.details["places"]} == {"sport", "goals"}
    worker = start(place, "-Q", "goals")
    assert sent.get(timeout=30) == "goals"
    until(lambda: "'goals'" not in app.why(sent.id).sentence)
    assert worker.stop() == 0, worker.text


@pytest.mark.setting("worker_direct")
def test_a_worker_consumes_a_queue_of_its_own(place: Place) -> None:
    name = "w1@example.com"
    worker = start(place, "-Q", "celery", "-n", name, WORKER_DIRECT="yes")
    place.send("where", "key", exchange="C.dq2", routing_key=name)
    place.send("where", "queue", queue=f"{name}.dq2")
    assert place.noted("key")[0].tag == place.noted("queue")[0].tag == f"{name}.dq2"
    assert worker.stop() == 0, worker.text
    without = start(place, "-Q", "celery", "-n", "w2@example.com")
    with pytest.raises(Unroutable):
        place.send("where", "key", exchange="C.dq2", routing_key="w2@example.com")
    assert without.stop() == 0, without.text


def test_a_binding_of_another_type_stops_the_start(place: Place) -> None:
    from umbel.exchanges import Binding

    place.broker.declare([], [Binding("old", "news", "fanout")])
    worker = place.worker("-c", "1", app=APP, ready=False)
    worker.process.wait(30)
    assert worker.process.returncode
    assert "exchange 'news' is of type 'fanout' in this broker" in worker.text
    assert "Traceback" not in worker.text
