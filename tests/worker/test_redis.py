"""Real workers on a Redis server: tasks, waking, deaths, and a server that goes and comes back."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.servers import Redis, redis
from tests.worker.harness import until
from tests.worker.living import Place

__all__ = ["redis"]


@pytest.fixture
def place(redis: Redis, tmp_path: Path) -> Iterator[Place]:
    redis.flush()
    made = Place(tmp_path, lease=3.0, url=redis.url)
    try:
        yield made
    finally:
        made.close()


def test_tasks_run_once_each_and_nothing_is_left(place: Place) -> None:
    place.worker("-c", "2")
    for n in range(200):
        place.send("quick", f"t{n}")
    until(lambda: len(place.notes("start")) >= 200, what=place.logs())
    assert set(place.counts("start").values()) == {1}
    until(lambda: sum(q.ready + q.leased + q.delayed for q in place.broker.queues()) == 0)


def test_an_idle_worker_is_woken_by_the_server(place: Place) -> None:
    place.worker("-c", "1")
    took = []
    for n in range(10):
        sent = place.send("quick", f"w{n}")
        (note,) = place.noted("start", f"w{n}")
        took.append(note)
        assert sent.id
    # Each comes alone, to a worker that waits: with polling this would be seconds.
    assert took[-1].at - took[0].at < 5.0


def test_what_is_due_later_runs_on_time(place: Place) -> None:
    place.worker("-c", "1")
    place.send("quick", "now")
    (before,) = place.noted("start", "now")
    place.app.send_task("quick", ["later"], countdown=1.0)
    (after,) = place.noted("start", "later")
    assert 0.9 < after.at - before.at < 3.0


def test_a_killed_workers_tasks_go_to_another(place: Place) -> None:
    first = place.worker("-c", "1")
    gate = place.gate()
    place.send("gated", "held", str(gate))
    place.noted("start", "held")
    place.send("quick", "waits")
    for pid in place.pids(first.pid):
        os.kill(pid, signal.SIGKILL)
    place.worker("-c", "1")
    place.noted("start", "waits")
    until(lambda: [each.id for each in place.broker.dead()], what=place.logs())
    assert place.counts("start") == {"held": 1, "waits": 1}


def test_a_server_that_is_killed_and_started_again_is_consumed_from_again(
    place: Place, redis: Redis
) -> None:
    place.worker("-c", "2")
    place.send("quick", "before")
    place.noted("start", "before")
    redis.kill()
    redis.start()
    place.send("quick", "after")
    place.noted("start", "after")
    assert set(place.counts("start").values()) == {1}


def test_kills_of_processes_workers_and_the_server_lose_nothing(place: Place, redis: Redis) -> None:
    """Early tasks run at most once, every task ends, and what failed is a dead letter."""
    chance = random.Random(20)
    workers = [place.worker("-c", "2"), place.worker("-c", "2")]
    early = [f"e{n}" for n in range(150)]
    late = [f"l{n}" for n in range(150)]
    results = []
    for one, other in zip(early, late, strict=True):
        results.append(place.send("quick", one))
        results.append(place.send("late_nap", other, 0.03))

    for step in range(1, 8):
        place.noted("start", times=30 * step)
        victim = chance.randrange(2)
        if step == 4:
            redis.kill()
            redis.start()
        elif step == 6:
            for pid in place.pids(workers[victim].pid):
                os.kill(pid, signal.SIGKILL)
            workers[victim] = place.worker("-c", "2")
        elif pool := workers[victim].pool(place.broker):
            os.kill(chance.choice(pool), signal.SIGKILL)

    until(lambda: all(each.ready() for each in results), 60.0, place.logs())
    until(lambda: sum(q.ready + q.leased + q.lost for q in place.broker.queues()) == 0)
    starts = place.counts("start")
    assert {tag for tag in early if starts[tag] > 1} == set()
    assert {tag for tag in late if starts[tag] == 0} == set()
    failed = {each.id for each in results if each.state != "SUCCESS"}
    assert {letter.id for letter in place.broker.dead()} == failed
    assert {repr(each.result).partition("(")[0] for each in results if each.id in failed} <= {
        "WorkerLostError"
    }
