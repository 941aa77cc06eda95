"""The pools ``threads`` and ``asyncio``: many tasks at once in a process, none of them lost."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from tests.worker.harness import Worker, until
from tests.worker.living import Place

from umbel import AsyncResult, chain, states
from umbel.exceptions import (
    SoftTimeLimitExceeded,
    TaskRevokedError,
    TimeLimitExceeded,
    WorkerLostError,
)

APP = "tests.worker.pools_app"
BOTH = pytest.mark.parametrize(("pool", "task"), [("threads", "threaded"), ("asyncio", "looped")])


def start(place: Place, pool: str, *options: str) -> Worker:
    return place.worker("-P", pool, *options, app=APP)


def _failed(result: AsyncResult[Any], error: type[BaseException]) -> BaseException:
    until(result.ready, what="the task has ended")
    assert isinstance(result.result, error), result.result
    return result.result


@BOTH
def test_as_many_run_at_once_as_it_has_lanes(place: Place, pool: str, task: str) -> None:
    start(place, pool, "-c", "5")
    gate = place.gate()
    results = [place.send(task, str(n), str(gate)) for n in range(8)]
    place.noted("start", times=5)
    until(lambda: sum(q.ready for q in place.broker.queues()) == 3, what="the rest waits")
    assert len(place.notes("start")) == 5
    gate.touch()
    where = [result.get(timeout=30) for result in results]
    assert len({pid for pid, _ in where}) == 1
    assert len({thread for _, thread in where}) == (5 if pool == "threads" else 1)


def test_three_thousand_coroutines_in_one_process(place: Place) -> None:
    start(place, "asyncio", "-c", "3000")
    gate = place.gate()
    with place.app.batch():
        results = [place.send("looped", str(n), str(gate)) for n in range(3000)]
    place.noted("start", times=3000)
    gate.touch()
    until(lambda: all(result.ready() for result in results[::-1]), what="all end")
    assert len({result.get()[0] for result in results}) == 1
    assert place.counts("start") == {str(n): 1 for n in range(3000)}


@pytest.mark.setting("worker_processes")
@pytest.mark.parametrize("by", ["option", "setting"])
def test_processes_of_a_pool(place: Place, by: str) -> None:
    options = ["--processes", "2"] if by == "option" else []
    env = {"UMBEL_WORKER_PROCESSES": "2"} if by == "setting" else {}
    worker = place.worker("-P", "asyncio", "-c", "2", *options, app=APP, env=env)
    gate = place.gate()
    results = [place.send("looped", str(n), str(gate)) for n in range(4)]
    place.noted("start", times=4)
    gate.touch()
    assert len({result.get(timeout=30)[0] for result in results}) == 2
    assert worker.stop() == 0


def test_the_other_kind_of_task_in_each_pool(place: Place) -> None:
    start(place, "asyncio", "-c", "4", "-Q", "loop")
    start(place, "threads", "-c", "4", "-Q", "threads")
    gate = place.gate()
    in_loop = [place.send("threaded", str(n), str(gate), queue="loop") for n in range(3)]
    in_threads = [place.send("looped", str(n), str(gate), queue="threads") for n in range(3)]
    beside = place.send("looped", "beside", str(gate), queue="loop")
    place.noted("start", times=7)
    gate.touch()
    for results in (in_loop, in_threads):
        assert len({result.get(timeout=30)[1] for result in results}) == 3
    assert beside.get(timeout=30)[1] not in {result.get()[1] for result in in_loop}


@pytest.mark.parametrize(("pool", "task"), [("asyncio", "whoami"), ("threads", "threaded_whoami")])
def test_each_task_sees_itself(place: Place, pool: str, task: str) -> None:
    start(place, pool, "-c", "6")
    gate = place.gate()
    results = [place.send(task, str(n), str(gate)) for n in range(6)]
    place.noted("start", times=6)
    gate.touch()
    for n, result in enumerate(results):
        me = result.id
        expected = [me, me, "nothing", me, me, str(n)] if task == "whoami" else [me, me, me, me]
        assert result.get(timeout=30) == expected


@pytest.mark.parametrize("pool", ["prefork", "threads", "asyncio", "solo"])
def test_no_task_sees_context_variables_of_another(place: Place, pool: str) -> None:
    place.worker("-P", pool, "-c", "1", app=APP)
    results = [place.send(task, task) for task in ("marks", "marks", "marks_late", "marks")]
    assert [result.get(timeout=30) for result in results] == ["nothing"] * 4


# Limits and revocations.


@pytest.mark.parametrize(
    ("pool", "task"),
    [("threads", "threaded_soft"), ("asyncio", "looped_soft"), ("asyncio", "threaded_soft")],
)
def test_a_soft_limit_can_be_caught(place: Place, pool: str, task: str) -> None:
    start(place, pool, "-c", "3")
    gate = place.gate()
    neighbour = place.send("looped", "neighbour", str(gate))
    assert place.send(task, "t", soft_time_limit=0.2).get(timeout=30) == "cleaned up"
    gate.touch()
    assert neighbour.get(timeout=30)


@pytest.mark.parametrize(
    ("pool", "task"),
    [
        ("threads", "threaded"),
        ("threads", "looped"),
        ("asyncio", "looped"),
        ("asyncio", "threaded"),
    ],
)
def test_a_soft_limit_that_is_not_caught(place: Place, pool: str, task: str) -> None:
    worker = start(place, pool, "-c", "3")
    gate = place.gate()
    neighbour = place.send("looped", "neighbour", str(gate))
    result = place.send(task, "t", str(place.gate("never")), soft_time_limit=0.2)
    error = _failed(result, SoftTimeLimitExceeded)
    assert error.args == (0.2,)
    gate.touch()
    assert neighbour.get(timeout=30)
    assert len(place.notes("process")) == 1, worker.text


def test_a_hard_limit_of_a_coroutine_ends_it_alone(place: Place) -> None:
    start(place, "asyncio", "-c", "3")
    gate = place.gate()
    neighbour = place.send("looped", "neighbour", str(gate))
    result = place.send("looped_soft", "t", time_limit=0.2)  # it catches what it can
    assert _failed(result, TimeLimitExceeded).args == (0.2,)
    dead = place.broker.dead_find(result.id)
    assert dead is not None
    assert dead.error == "TimeLimitExceeded"
    gate.touch()
    assert neighbour.get(timeout=30)
    assert len(place.notes("process")) == 1


@pytest.mark.parametrize(
    ("pool", "stubborn", "late", "early"),
    [
        ("asyncio", "looped_stubborn", "looped_late", "looped"),
        ("asyncio", "looped_block", "looped_late", "looped"),
        ("threads", "threaded_hold", "threaded_late", "threaded"),
    ],
)
def test_a_hard_limit_that_only_the_end_of_the_process_keeps(
    place: Place, pool: str, stubborn: str, late: str, early: str
) -> None:
    worker = start(place, pool, "-c", "3")
    gate = place.gate()
    ends_with_it = place.send(early, "early", str(gate))
    comes_back = place.send(late, "late", str(gate))
    place.noted("start", times=2)
    arguments = ["stubborn"] if stubborn == "looped_stubborn" else ["stubborn", 20.0]
    result = place.send(stubborn, *arguments, time_limit=0.3)
    _failed(result, TimeLimitExceeded)
    error = _failed(ends_with_it, WorkerLostError)
    assert "another task" in str(error), worker.text
    assert place.broker.dead_find(ends_with_it.id) is not None
    place.noted("start", "late", times=2)
    gate.touch()
    assert comes_back.get(timeout=30)
    assert len(place.notes("process")) == 2


@pytest.mark.parametrize(
    ("pool", "task"),
    [
        ("threads", "threaded"),
        ("threads", "threaded_catch_all"),
        ("threads", "looped"),
        ("asyncio", "looped"),
        ("asyncio", "threaded"),
    ],
)
def test_a_revoked_task_is_ended_alone(place: Place, pool: str, task: str) -> None:
    start(place, pool, "-c", "3")
    gate = place.gate()
    neighbour = place.send("looped", "neighbour", str(gate))
    result = place.send(task, "t", str(place.gate("never")))
    place.noted("start", times=1 if task == "threaded_catch_all" else 2)
    until(lambda: bool(_held(place)), what="it runs")
    place.app.revoke([result.id], terminate=True)
    _failed(result, TaskRevokedError)
    assert result.state == states.REVOKED
    assert place.noted(f"task_revoked:True:{int(signal.SIGTERM)}", result.id)
    gate.touch()
    assert neighbour.get(timeout=30)
    assert len(place.notes("process")) == 1


def _held(place: Place) -> int:
    return sum(queue.leased == 2 for queue in place.broker.queues())


# Stopping and dying.


@BOTH
def test_a_warm_stop_lets_run_what_runs(place: Place, pool: str, task: str) -> None:
    worker = start(place, pool, "-c", "3")
    gate = place.gate()
    running = [place.send(task, str(n), str(gate)) for n in range(3)]
    place.noted("start", times=3)
    waiting = place.send(task, "waiting", str(gate))
    worker.process.send_signal(signal.SIGTERM)
    until(lambda: "Warm shutdown" in worker.text, what="it has heard")
    gate.touch()
    assert worker.stop() == 0
    assert all(result.state == states.SUCCESS for result in running)
    assert waiting.state == states.PENDING
    assert [queue.ready for queue in place.broker.queues()] == [1]


@BOTH
def test_a_cold_stop_buries_what_runs(place: Place, pool: str, task: str) -> None:
    worker = start(place, pool, "-c", "4")
    gate = place.gate()
    early = [place.send(task, f"early{n}", str(gate)) for n in range(2)]
    late = [place.send(f"{task}_late", f"late{n}", str(gate)) for n in range(2)]
    place.noted("start", times=4)
    assert worker.stop(signal.SIGQUIT) == 0
    for result in early:
        _failed(result, WorkerLostError)
        assert place.broker.dead_find(result.id) is not None
    assert [result.state for result in late] == [states.PENDING] * 2
    start(place, pool, "-c", "4")
    gate.touch()
    assert all(result.get(timeout=30) for result in late)


@BOTH
def test_a_killed_process_loses_what_ran_and_nothing_else(
    place: Place, pool: str, task: str
) -> None:
    start(place, pool, "-c", "6")
    gate, other = place.gate(), place.gate("other")
    early = [place.send(task, f"early{n}", str(gate)) for n in range(2)]
    late = [place.send(f"{task}_late", f"late{n}", str(gate)) for n in range(2)]
    done = [place.send(task, f"done{n}", str(other)) for n in range(2)]
    place.noted("start", times=6)
    waiting = place.send(task, "waiting", str(other))
    other.touch()
    assert all(result.get(timeout=30) for result in [*done, waiting])
    os.kill(place.notes("start", "early0")[0].pid, signal.SIGKILL)
    for result in early:
        assert "signal 9" in str(_failed(result, WorkerLostError))
    place.noted("start", "late1", times=2)
    gate.touch()
    assert all(result.get(timeout=30) for result in late)
    assert place.counts("start") == {
        "early0": 1, "early1": 1, "late0": 2, "late1": 2, "done0": 1, "done1": 1, "waiting": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("pool", "late", "early"),
    [("threads", "threaded_counted", "threaded_once"), ("asyncio", "counted", "once")],
)
def test_kills_under_load_lose_nothing(place: Place, pool: str, late: str, early: str) -> None:
    """Late tasks all succeed, early ones run at most once and end as SUCCESS or WorkerLostError."""
    worker = start(place, pool, "-c", "20", "--processes", "2")
    with place.app.batch():
        results = {f"l{n}": place.send(late, f"l{n}") for n in range(400)}
        results |= {f"e{n}": place.send(early, f"e{n}") for n in range(400)}
    killed: set[int] = set()
    for kills in range(1, 7):
        place.noted("start", times=kills * 100)
        pid = until(lambda: next(iter({*worker.pool(place.broker)} - killed), 0), what="it lives")
        os.kill(pid, signal.SIGKILL)
        killed.add(pid)
    until(lambda: all(result.ready() for result in results.values()), 60, what="all have ended")
    starts = place.counts("start")
    assert sum(n > 1 for tag, n in starts.items() if tag[0] == "e") == 0
    lost = [tag for tag, result in results.items() if result.state != states.SUCCESS]
    assert all(tag[0] == "e" for tag in lost), lost
    for tag in lost:
        assert isinstance(results[tag].result, WorkerLostError)
        assert place.broker.dead_find(results[tag].id) is not None
    assert len(place.notes("process")) > 4
    assert worker.stop() == 0
    assert all(queue.leased + queue.ready + queue.lost == 0 for queue in place.broker.queues())


@pytest.mark.parametrize(
    ("pool", "task"), [("threads", "threaded_counted"), ("asyncio", "counted")]
)
def test_processes_are_replaced_after_their_share(place: Place, pool: str, task: str) -> None:
    start(place, pool, "-c", "4", "--max-tasks-per-child", "10")
    results = [place.send(task, str(n)) for n in range(60)]
    assert all(result.get(timeout=30) for result in results)
    assert place.counts("start") == {str(n): 1 for n in range(60)}
    pids = {result.get() for result in results}
    assert len(pids) >= 3


@BOTH
@pytest.mark.parametrize("why", ["its share", "a task that leaves"])
def test_a_process_that_takes_no_more_is_replaced_while_a_long_task_runs(
    place: Place, pool: str, task: str, why: str
) -> None:
    start(place, pool, "-c", "4", *(["--max-tasks-per-child", "10"] if why == "its share" else []))
    gate = place.gate()
    long = place.send(task, "long", str(gate))
    place.noted("start", times=1)
    if why == "a task that leaves":
        _failed(place.send("leaves"), WorkerLostError)
    results = [place.send("nap", 0.01) for _ in range(15)]
    pids = {result.get(timeout=30) for result in results}
    assert not long.ready()
    gate.touch()
    assert long.get(timeout=30)
    assert len(pids) >= (2 if why == "its share" else 1)
    assert place.counts("start") == {"long": 1}


@pytest.mark.parametrize(("pool", "task"), [("threads", "threaded_leaves"), ("asyncio", "leaves")])
def test_a_task_that_leaves(place: Place, pool: str, task: str) -> None:
    start(place, pool, "-c", "3")
    gate = place.gate()
    neighbour = place.send("looped", "neighbour", str(gate))
    place.noted("start", times=1)
    assert "exitcode 3" in str(_failed(place.send(task), WorkerLostError))
    gate.touch()
    assert neighbour.get(timeout=30)
    assert place.send("add", 1, 2).get(timeout=30) == 3


def test_a_task_that_cancels_itself(place: Place) -> None:
    start(place, "asyncio", "-c", "3")
    until(place.send("cancels_itself").failed, what="it fails")
    assert place.send("add", 1, 2).get(timeout=30) == 3


def test_many_of_many_are_revoked_at_once(place: Place) -> None:
    start(place, "asyncio", "-c", "400")
    gate = place.gate()
    results = [place.send("looped", str(n), str(gate)) for n in range(400)]
    place.noted("start", times=400)
    revoked, left = results[:300], results[300:]
    place.app.revoke([result.id for result in revoked], terminate=True)
    until(lambda: all(r.state == states.REVOKED for r in revoked), what="each is ended")
    gate.touch()
    assert all(result.get(timeout=30) for result in left)


# What waits, and what follows.


@pytest.mark.parametrize(
    ("pool", "task"),
    [
        ("asyncio", "looped_block"),
        ("asyncio", "looped_hold"),
        ("threads", "threaded_hold"),
    ],
)
def test_what_waits_behind_a_blocked_process_goes_to_another(
    place: Place, pool: str, task: str
) -> None:
    start(place, pool, "-c", "50")
    blocked = place.send(task, "block", 6.0)
    place.noted("start", "block")
    start(place, pool, "-c", "50")
    others = [place.send("threaded_nap", 0.001) for _ in range(20)]
    first = place.notes("start", "block")[0].pid
    assert all(result.get(timeout=30) != first for result in others)
    assert not place.notes("end", "block")
    blocked.forget()


@BOTH
def test_a_free_lane_elsewhere_takes_what_waits(place: Place, pool: str, task: str) -> None:
    start(place, pool, "-c", "2")
    gate = place.gate()
    full = [place.send(task, str(n), str(gate)) for n in range(2)]
    place.noted("start", times=2)
    waiting = [place.send(task, f"w{n}", str(gate)) for n in range(2)]
    start(place, pool, "-c", "2")
    place.noted("start", times=4)
    gate.touch()
    first = {result.get(timeout=30)[0] for result in full}
    assert first.isdisjoint(result.get(timeout=30)[0] for result in waiting)


@pytest.mark.parametrize("pool", ["threads", "asyncio"])
def test_chains_retries_and_large_results(place: Place, pool: str) -> None:
    start(place, pool, "-c", "10")
    app = place.app
    add = app.signature
    chains = [
        chain(add("add", (n, 1)), add("add", (1,)), add("add", (1,))).apply_async()
        for n in range(20)
    ]
    retried = [place.send("retrying", str(n)) for n in range(10)]
    large = [place.send("large", 100_000) for _ in range(5)]
    assert [result.get(timeout=30) for result in chains] == [n + 3 for n in range(20)]
    assert {result.get(timeout=30) for result in retried} == {2}
    assert {len(result.get(timeout=30)) for result in large} == {100_000}


def test_a_follow_up_that_cannot_be_routed(place: Place) -> None:
    start(place, "asyncio", "-c", "3")
    result = place.send("to_nowhere")
    until(result.failed, what="it fails")
    assert type(result.result).__name__ == "Unroutable"
