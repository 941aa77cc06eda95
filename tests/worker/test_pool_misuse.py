"""Tasks that harm their pool: whatever they do, each ends, and every lane goes on."""

from __future__ import annotations

import pytest
from tests.worker.harness import Worker, until
from tests.worker.living import Place

from umbel import states
from umbel.exceptions import SoftTimeLimitExceeded

KINDS = ("CancelledError", "GeneratorExit", "KeyboardInterrupt", "BaseException")
POOLS = pytest.mark.parametrize("pool", ["prefork", "threads", "asyncio"])


def start(place: Place, pool: str, *options: str) -> Worker:
    return place.worker("-P", pool, *options, app="tests.worker.misuse_app")


def goes_on(place: Place, lanes: int) -> None:
    """All lanes take tasks."""
    results = [place.send("add", n, 1) for n in range(2 * lanes)]
    assert [result.get(timeout=30) for result in results] == [n + 1 for n in range(2 * lanes)]


@POOLS
def test_no_code_of_a_task_ends_a_lane(place: Place, pool: str) -> None:
    """An exception's text, a value's encoder and a handler raise what isn't an `Exception`."""
    worker = start(place, pool, "-c", "2")
    tasks = [f"{loop}{name}" for loop in ("", "looped_") for name in ("raises", "returns")]
    ended = [place.send(name, kind) for name in tasks for kind in KINDS]
    until(lambda: all(r.state == states.FAILURE for r in ended), what="each ends, and fails")
    handled = [place.send(name, kind) for name in ("handled", "looped_handled") for kind in KINDS]
    assert [result.get(timeout=30) for result in handled] == [*KINDS, *KINDS]
    goes_on(place, 2)
    assert "failed" not in worker.text


@pytest.mark.parametrize("pool", ["threads", "asyncio"])
@pytest.mark.parametrize("task", ["unloggable", "looped_unloggable"])
def test_a_lane_that_fails_ends_its_process(place: Place, pool: str, task: str) -> None:
    """What had been decided is settled from the scoreboard, and another process takes over."""
    worker = start(place, pool, "-c", "2")
    assert place.send(task).get(timeout=30) == "unloggable"
    goes_on(place, 2)
    assert "A lane of process" in worker.text


@POOLS
def test_what_tasks_leave_running_keeps_no_process(place: Place, pool: str) -> None:
    worker = start(place, pool, "-c", "1")
    place.send("leaves_behind").get(timeout=30)
    assert worker.stop() == 0
    assert "left behind" in worker.text


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_task_that_stops_its_loop(place: Place, pool: str) -> None:
    """It isn't told to end in place of what runs after it, nor goes on beside that."""
    start(place, pool, "-c", "1")
    assert "stopped" in str(place.send("stops_its_loop").get(timeout=30, propagate=False))
    soft = place.app.send_task("endless", soft_time_limit=0.1)
    assert isinstance(soft.get(timeout=30, propagate=False), SoftTimeLimitExceeded)
    goes_on(place, 1)


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_task_that_closes_the_current_loop(place: Place, pool: str) -> None:
    start(place, pool, "-c", "1")
    goes_on(place, 1)
    place.send("closes_the_current_loop").get(timeout=30, propagate=False)
    goes_on(place, 1)


def test_a_coroutine_that_is_cancelled_in_its_last_step(place: Place) -> None:
    worker = start(place, "asyncio", "-c", "2")
    for size in (1, 100_000):
        assert len(str(place.send("cancelled_at_the_end", size).get(timeout=30))) == size
    goes_on(place, 2)
    assert worker.stop() == 0
    assert "failed" not in worker.text


def test_a_task_that_fills_the_executor_of_the_loop(place: Place) -> None:
    start(place, "asyncio", "-c", "2")
    gate = place.gate()
    place.send("fills_the_executor", str(gate)).get(timeout=30)
    assert place.send("tracked").get(timeout=30) == "tracked"
    gate.touch()
