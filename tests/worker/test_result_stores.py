"""Result stores of their own, with real workers: away, killed, refusing; what records hold."""

from __future__ import annotations

import json
import socket
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from msgspec.structs import replace
from tests.servers import Memcached, PostgreSQL, Redis, memcached
from tests.worker.harness import Worker, until
from tests.worker.living import Place

from umbel import AsyncResult
from umbel.exceptions import BackendStoreError, StoreUnavailable
from umbel.states import FAILURE, PENDING, STARTED, SUCCESS

__all__ = ["memcached"]

Store = PostgreSQL | Redis


@pytest.fixture(params=[PostgreSQL, Redis])
def server(request: pytest.FixtureRequest) -> Iterator[Store]:
    """A server of this test's own, which it may kill."""
    server: Store = request.param()
    try:
        server.prepare()
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture
def place(make_place: Callable[[float], Place]) -> Place:
    """With a short lease, a quarter of which is the longest pause between attempts to store."""
    return make_place(4.0)


def start(
    place: Place, store: str, *options: str, ready: bool = True, **settings: object
) -> Worker:
    """A worker that keeps its results at `store`; the client of `place` looks there too."""
    place.app.conf.update(result_backend=store, **settings)
    env = {"UMBEL_RESULT_BACKEND": store, "SETTINGS": json.dumps(settings)}
    return place.worker(*options, app="tests.worker.stores_app", env=env, ready=ready)


def wait_for_state(result: AsyncResult[object], *states: str) -> None:
    """Until it is one of these; the store may be away meanwhile."""

    def is_there() -> bool:
        try:
            return result.state in states
        except StoreUnavailable:
            return False

    until(is_there, what=f"{result.id} is {' or '.join(states)}")


def is_settled(place: Place) -> bool:
    return all(
        queue.ready + queue.leased + queue.delayed + queue.lost == 0
        for queue in place.broker.queues()
    )


def leased(place: Place) -> int:
    return sum(queue.leased for queue in place.broker.queues())


@pytest.mark.parametrize("task", ["quick", "late"])
def test_nothing_is_acknowledged_before_it_is_stored(
    place: Place, server: Store, task: str
) -> None:
    """The store is killed under load and comes back: what was executed meanwhile is held, only so
    much is executed, and in the end each task has its result and has run once."""
    worker = start(place, server.results_url, "-c", "2")
    first = [place.send(task, f"a{n}") for n in range(100)]
    for result in first:
        result.get(timeout=30)
    until(lambda: is_settled(place), what="all is settled")
    server.kill()
    with place.app.batch():
        second = [place.send(task, f"b{n}") for n in range(1000)]
    until(lambda: "doesn't answer" in worker.text or "can't be used now" in worker.text)
    place.noted("start", "b0")
    started = until(lambda: _steady(place), what="the buffer is full")
    assert started < 400, "the worker goes on executing what it can't store"
    assert leased(place) >= started
    assert not place.app.dead.list()
    server.start()
    for result in (*first, *second):
        wait_for_state(result, SUCCESS)
    until(lambda: is_settled(place), what="all is settled")
    assert set(place.counts("start").values()) == {1}
    assert len(place.counts("start")) == 1100
    assert worker.stop() == 0


def _steady(place: Place) -> int:
    """How many of the second batch have started; 0 while that still rises."""

    def started() -> int:
        return sum(tag.startswith("b") for tag in place.counts("start"))

    before, until_at = started(), time.monotonic() + 0.7
    while time.monotonic() < until_at:
        if started() != before:
            return 0
        time.sleep(0.02)
    return before


def test_a_worker_killed_while_the_store_is_away_loses_nothing(place: Place, server: Store) -> None:
    worker = start(place, server.results_url, "-c", "1")
    place.send("quick", "warm").get(timeout=30)
    until(lambda: is_settled(place), what="all is settled")
    server.kill()
    with place.app.batch():
        held = [place.send("quick", f"early{n}") for n in range(5)]
    place.noted("start", "early0")
    until(lambda: "can't be used now" in worker.text, what="the store is missed")
    worker.kill()
    server.start()
    start(place, server.results_url, "-c", "1")
    for result in held:
        wait_for_state(result, SUCCESS, FAILURE)
    until(lambda: is_settled(place), what="all is settled")
    # What had ended was decided on the scoreboard, and is stored, not buried and not run again.
    assert [result.state for result in held] == [SUCCESS] * 5
    assert set(place.counts("start").values()) == {1}


def test_a_worker_starts_while_its_store_is_away(place: Place, server: Store) -> None:
    server.kill()
    result = place.send("quick", "a")
    worker = start(place, server.results_url, "-c", "1")
    place.noted("start", "a")
    assert "It is used as soon as it can be." in worker.text
    server.start()
    wait_for_state(result, SUCCESS)
    until(lambda: is_settled(place), what="all is settled")
    assert worker.stop() == 0


@pytest.mark.parametrize("task", ["quick", "late"])
def test_a_stop_while_the_store_is_away_keeps_the_outcome(
    place: Place, server: Store, task: str
) -> None:
    """What may run again goes back; of what may not, a dead letter holds the outcome."""
    worker = start(place, server.results_url, "-c", "1", worker_soft_shutdown_timeout=0.5)
    place.send("quick", "warm").get(timeout=30)
    until(lambda: is_settled(place), what="all is settled")
    server.kill()
    result = place.send(task, "a")
    place.noted("start", "a")
    until(lambda: "can't be used now" in worker.text, what="the store is missed")
    worker.stop()
    server.start()
    if task == "quick":
        letter = place.app.dead.get(result.id)
        assert letter is not None
        assert "SUCCESS, but the result store was away" in letter.reason
        return
    start(place, server.results_url, "-c", "1")
    assert result.get(timeout=30) == "a"
    assert place.counts("start")["a"] == 2, (place.notes("start", "a"), place.logs())


def test_a_result_that_the_store_refuses_is_a_failure_with_a_dead_letter(
    place: Place, memcached: Memcached
) -> None:
    worker = start(place, f"cache+memcached://127.0.0.1:{memcached.port}/", "-c", "1")
    small, large = place.send("large", 10), place.send("large", 3_000_000)
    after = place.send("quick", "after")
    assert small.get(timeout=30) == "x" * 10
    assert after.get(timeout=30) == "after"
    with pytest.raises(BackendStoreError, match="more than the memcached server takes"):
        large.get(timeout=30)
    until(lambda: is_settled(place), what="all is settled")
    letter = place.app.dead.get(large.id)
    assert letter is not None
    assert letter.error == "BackendStoreError"
    assert "more than the memcached server takes" in letter.reason
    assert worker.stop() == 0


def test_of_a_retry_only_the_record_is_refused(place: Place, memcached: Memcached) -> None:
    start(place, f"cache+memcached://127.0.0.1:{memcached.port}/", "-c", "1")
    assert place.send("retried", 3_000_000).get(timeout=30) == 1
    until(lambda: is_settled(place), what="all is settled")
    assert not place.app.dead.list()


URLS = ["sqlite:///{}/results.db", "db+sqlite:///{}/results.db", "file://{}/results"]


@pytest.mark.setting("result_extended")
@pytest.mark.parametrize("backend", URLS)
def test_result_extended(place: Place, backend: str) -> None:
    start(place, backend.format(place.folder), "-c", "1", "-n", "one@here", "-Q", "other",
          result_extended=True)  # fmt: skip
    result = place.app.send_task("retried", (3,), {"tag": "a"}, queue="other")
    result.get(timeout=30)
    found = (result.name, result.args, result.kwargs, result.worker, result.retries, result.queue)
    assert found == ("retried", [3], {"tag": "a"}, "one@here", 1, "other")


def test_result_extended_is_off_by_default(place: Place) -> None:
    start(place, f"file://{place.folder}/results", "-c", "1")
    result = place.send("quick", "a")
    result.get(timeout=30)
    [record] = (place.folder / "results").glob("celery-task-meta-*")
    assert list(json.loads(record.read_bytes())) == [
        "status", "result", "traceback", "children", "date_done", "task_id",
    ]  # fmt: skip


def test_the_keys_of_an_extended_record_stand_in_celery_s_order(place: Place) -> None:
    start(place, f"file://{place.folder}/results", "-c", "1", result_extended=True)
    app, stamps = place.app, {"stamped_headers": ["tenant"], "stamps": {"tenant": ["a"]}}
    posting = app.publisher.build(app.plan("quick", {}, None), ("a",), {}, "an-id")
    stamped = replace(posting.message, headers={**posting.message.headers, **stamps})
    place.broker.publish([replace(posting, message=stamped)])
    app.AsyncResult("an-id").get(timeout=30)
    [record] = (place.folder / "results").glob("celery-task-meta-*")
    assert list(json.loads(record.read_bytes())) == [
        "status", "result", "traceback", "children", "date_done", "name", "args", "kwargs",
        "worker", "retries", "queue", "stamped_headers", "tenant", "task_id",
    ]  # fmt: skip


def test_arguments_that_the_task_has_spoiled_are_kept_as_text(place: Place) -> None:
    start(place, f"file://{place.folder}/results", "-c", "1", result_extended=True)
    result = place.app.send_task("spoils_its_arguments", ([1],), {"name": "x"})
    assert result.get(timeout=30) == "x"
    assert (result.args, result.kwargs) == ("([1],)", {"name": "x"})


@pytest.mark.parametrize("backend", URLS)
def test_task_track_started(place: Place, backend: str) -> None:
    worker = start(place, backend.format(place.folder), "-c", "1", task_track_started=True)
    gate = place.gate()
    result = place.send("gated", "a", str(gate))
    until(lambda: result.state == STARTED, what="it is STARTED")
    assert result.info == {"pid": place.noted("start")[0].pid, "hostname": _name(worker)}
    gate.touch()
    assert result.get(timeout=30) == "a"


def _name(worker: Worker) -> str:
    return f"umbel@{socket.gethostname()}"


def test_a_task_that_is_not_tracked_has_no_state_before_its_end(place: Place) -> None:
    start(place, f"file://{place.folder}/results", "-c", "1")
    gate = place.gate()
    result = place.send("gated", "a", str(gate))
    place.noted("start", "a")
    assert result.state == PENDING
    gate.touch()
    assert result.get(timeout=30) == "a"


@pytest.mark.setting("result_failure_expires")
def test_a_failure_may_live_for_another_time(place: Place) -> None:
    start(
        place, f"db+sqlite:///{place.folder}/results.db", "-c", "1",
        result_expires=100, result_failure_expires=5000,
    )  # fmt: skip
    good, bad = place.send("quick", "a"), place.send("fail", "b")
    good.get(timeout=30)
    bad.get(timeout=30, propagate=False)
    with closing(sqlite3.connect(place.folder / "results.db")) as db:
        lives = dict(db.execute("SELECT status, expires_at FROM celery_taskmeta").fetchall())
    assert 4800 < lives[FAILURE] - lives[SUCCESS] < 5000


@pytest.mark.parametrize("backend", ["memory://", "cache+memory://"])
def test_a_store_inside_one_process_is_refused(place: Place, backend: str) -> None:
    worker = start(place, backend, ready=False)
    assert worker.process.wait(20) == 78
    assert "lives inside one process" in worker.text
