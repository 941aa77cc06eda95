"""The options of `umbel worker` and the ways in which tasks can be run, with real workers."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from collections.abc import Callable

import pytest
from tests.worker.harness import until
from tests.worker.living import Place

from umbel import AsyncResult, states
from umbel.message import Result
from umbel.stored import encode_meta

POOLS = pytest.mark.parametrize("pool", [("-c", "1"), ("-P", "solo")], ids=["prefork", "solo"])


def _failure(result: AsyncResult[object]) -> str:
    """The class of the error, once the task has failed."""
    until(result.ready, what="the task fails")
    assert result.state == states.FAILURE
    return type(result.result).__name__


def _waiting(place: Place) -> dict[str, int]:
    return {queue.name: queue.ready for queue in place.broker.queues() if queue.ready}


# What is taken, and by whom.


def test_queues(place: Place) -> None:
    worker = place.worker("-c", "1", "-Q", "one,two")
    results = [place.send("quick", queue, queue=queue) for queue in ("one", "two")]
    place.send("quick", "three", queue="three")
    for result in results:
        result.get(timeout=30)
    assert _waiting(place) == {"three": 1}
    assert worker.stop() == 0, worker.text
    assert place.counts("start") == {"one": 1, "two": 1}


def test_exclude_queues(place: Place) -> None:
    place.worker("-c", "1", "-X", "two", env={"QUEUES": "one,two,three"})
    place.send("quick", "two", queue="two")
    place.send("quick", "one", queue="one").get(timeout=30)
    place.send("quick", "three", queue="three").get(timeout=30)
    assert _waiting(place) == {"two": 1}


def test_include(place: Place) -> None:
    place.worker("-c", "1", "--include", "tests.worker.extra_tasks")
    assert place.send("included", "tag").get(timeout=30) == "from extra_tasks"


def test_hostname(place: Place) -> None:
    place.worker("-c", "1", "-n", "shop@%h")
    (record,) = place.broker.runs()
    assert json.loads(record.info)["hostname"] == f"shop@{os.uname().nodename}"


def test_purge(place: Place) -> None:
    place.send("quick", "old")
    place.send("quick", "old-delayed", countdown=0.2)
    place.worker("-c", "1", "--purge")
    place.send("quick", "new").get(timeout=30)
    assert place.counts("start") == {"new": 1}
    (queue,) = place.broker.queues()
    assert (queue.ready, queue.delayed, queue.leased) == (0, 0, 0)


# How processes are replaced and limits are kept.


def test_max_tasks_per_child(place: Place) -> None:
    worker = place.worker("-c", "2", "--max-tasks-per-child", "5")
    results = [place.send("quick", f"task-{n}") for n in range(60)]
    pids = [result.get(timeout=60) for result in results]
    most = max(pids.count(pid) for pid in pids)
    assert most <= 5
    assert len(set(pids)) >= 12
    assert set(place.counts("start").values()) == {1}
    until(lambda: len(place.pids(worker.pid)) == 4, what="the pool has two processes again")
    assert worker.stop() == 0, worker.text


def test_time_limits_of_the_command_line(place: Place) -> None:
    worker = place.worker("-c", "2", "--time-limit", "1.5", "--soft-time-limit", "0.3")
    never = str(place.gate("never"))
    assert place.send("soft", "caught", never).get(timeout=30) == "cleaned up"
    assert _failure(place.send("gated", "uncaught", never)) == "SoftTimeLimitExceeded"
    # The interpreter lock is held, so no signal handler runs: the supervisor ends the process.
    held = place.send("hold", "held", 30.0)
    assert _failure(held) == "TimeLimitExceeded"
    dead = {each.id: each.error for each in place.app.dead.list()}
    assert dead[held.id] == "TimeLimitExceeded"
    assert len(dead) == 2
    assert len(place.noted("task_failure:TimeLimitExceeded", held.id)) == 1
    assert "Hard time limit (1.5s) exceeded" in worker.text
    assert place.send("quick", "next").get(timeout=30)


def test_a_calls_own_limits_win(place: Place) -> None:
    place.worker("-c", "1", "--time-limit", "100")
    never = str(place.gate("never"))
    soft = place.send("soft", "soft", never, soft_time_limit=0.2)
    assert soft.get(timeout=30) == "cleaned up"
    hard = place.send("gated", "hard", never, time_limit=0.3)
    assert _failure(hard) == "TimeLimitExceeded"


def test_a_process_that_dies_is_replaced(place: Place) -> None:
    place.worker("-c", "1")
    result = place.send("prey", "prey", str(place.gate("was-here")))
    first, second = place.noted("start", "prey", times=2)
    assert result.get(timeout=30) == second.pid != first.pid


# What the results say.


def test_track_started(place: Place) -> None:
    worker = place.worker("-c", "1", "-n", "shop@here")
    result = place.send("tracked", "tag", str(place.gate()))
    pid = place.noted("start", "tag")[0].pid
    assert result.state == states.STARTED
    assert result.result == {"pid": pid, "hostname": "shop@here"}
    place.gate().touch()
    assert result.get(timeout=30) == pid
    assert worker.stop() == 0, worker.text


@pytest.mark.setting("worker_deduplicate_successful_tasks")
@pytest.mark.parametrize("on", [True, False], ids=["on", "off"])
def test_deduplication_of_successful_redeliveries(place: Place, on: bool) -> None:
    """A redelivered message whose task had succeeded is not run again, where that is asked for."""
    env = {"UMBEL_WORKER_DEDUPLICATE_SUCCESSFUL_TASKS": "1"} if on else {}
    worker = place.worker("-c", "1", "--prefetch-multiplier", "4", env=env)
    with place.app.batch():
        place.send("gated", "running", str(place.gate()))
        late = place.send("late_nap", "late", 0.0)
        early = place.send("quick", "early")
    place.noted("start", "running")
    until(lambda: sum(queue.leased for queue in place.broker.queues()) == 3, what="all are held")
    _store_success(place, [late.id, early.id])
    # What was held goes back as a redelivery.
    worker.kill()
    place.worker("-c", "1", env=env)
    place.noted("start", "early")
    until(lambda: place.broker.find(late.id) == (), what="the message is settled")
    assert place.counts("start")["late"] == (0 if on else 1)
    assert late.get(timeout=30) == "by an earlier delivery"


def _store_success(place: Place, task_ids: list[str]) -> None:
    store = place.app.store
    assert store is not None
    for task_id in task_ids:
        meta = encode_meta(task_id, states.SUCCESS, "by an earlier delivery")
        store.put([Result(task_id, states.SUCCESS, meta, None)])


# Coroutines.


@POOLS
def test_async_def_tasks(place: Place, pool: tuple[str, ...]) -> None:
    place.worker(*pool)
    place.gate().touch()
    assert place.send("loop_gated", "good", str(place.gate())).get(timeout=30)
    bad = place.send("loop_fail", "bad")
    assert _failure(bad) == "KeyError"
    limited = place.send("loop_gated", "limited", str(place.gate("no")), soft_time_limit=0.3)
    assert _failure(limited) == "SoftTimeLimitExceeded"
    assert len(place.notes("cancelled", "limited")) == 1
    assert place.send("loop_gated", "next", str(place.gate())).get(timeout=30)


# The solo pool.


def test_the_main_cases_in_the_solo_pool(place: Place) -> None:
    worker = place.worker("-P", "solo")
    assert place.send("quick", "good").get(timeout=30) == worker.pid
    failed = place.send("fail", "bad")
    assert _failure(failed) == "KeyError"
    until(lambda: place.app.dead.get(failed.id), what="a dead letter")
    assert place.send("retrying", "again").get(timeout=30) == 2
    soft = place.send("soft", "soft", str(place.gate("never")), soft_time_limit=0.3)
    assert soft.get(timeout=30) == "cleaned up"
    assert place.pids(worker.pid) == [worker.pid]
    assert place.counts("start") == {"good": 1, "bad": 1, "again": 3, "soft": 1}
    assert worker.stop() == 0, worker.text


def test_a_solo_worker_keeps_its_leases(make_place: Callable[[float], Place]) -> None:
    """A task of many leases that lets go of the interpreter runs once beside another worker."""
    place = make_place(0.5)
    solo = place.worker("-P", "solo")
    late = place.send("late_nap", "late", 4.0)
    place.noted("start", "late")
    place.worker("-c", "1")
    assert late.get(timeout=30) == solo.pid
    assert place.counts("start") == {"late": 1}


@pytest.mark.parametrize("options", [("--time-limit", "5"), ()])
def test_the_solo_pool_refuses_a_hard_limit(place: Place, options: tuple[str, ...]) -> None:
    app = "tests.worker.live_app" if options else "tests.worker.limited_app"
    worker = place.worker("-P", "solo", *options, app=app, ready=False)
    assert worker.process.wait(30) == 78
    (line,) = worker.text.splitlines()
    assert "the solo pool can't keep a hard time limit" in line
    assert "prefork" in line


# Options that can't work are refused in one sentence.


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("-c", "0"), "--concurrency 0"),
        (("-P", "gevent"), "greenlets come with a later release"),
        (("-l", "LOUD"), "--loglevel LOUD"),
        (("--time-limit", "1", "--soft-time-limit", "2"), "--soft-time-limit 2"),
        (("-X", "celery"), "celery"),
        (("-B",), "periodic tasks"),
        (("--include", "not_there"), "not_there"),
        (("--wrong",), "--wrong"),
    ],
)
def test_wrong_options(place: Place, options: tuple[str, ...], said: str) -> None:
    worker = place.worker(*options, ready=False)
    assert worker.process.wait(30) not in (0, None)
    (line,) = worker.text.splitlines()
    assert line.startswith(("umbel: ", "umbel worker: "))
    assert said in line


def test_the_same_file_for_many_processes(place: Place) -> None:
    """Three workers and the client write to one file: never `database is locked`."""
    workers = [place.worker("-c", "2") for _ in range(2)] + [place.worker("-P", "solo")]
    results = [place.send("quick", f"task-{n}") for n in range(300)]
    for result in results:
        result.get(timeout=60)
    assert set(place.counts("start").values()) == {1}
    for worker in workers:
        assert worker.stop(signal.SIGTERM) == 0, worker.text
        assert "locked" not in worker.text
    connection = sqlite3.connect(place.file)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
