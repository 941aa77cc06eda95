"""Warm, soft, cold and hard stops: what runs, what goes back, exit codes, signals, traces."""

from __future__ import annotations

import os
import resource
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.worker.harness import Worker, until
from tests.worker.living import Place

from umbel import states

POOLS = pytest.mark.parametrize("pool", [("-c", "2"), ("-P", "solo")], ids=["prefork", "solo"])


def _assert_nothing_is_left(place: Place, boards: set[str]) -> None:
    """No process, no scoreboard, no row of a run, an owner or a lease."""
    assert boards
    assert [board for board in boards if os.path.exists(board)] == []
    assert place.pids() == []
    connection = sqlite3.connect(place.file)
    try:
        for table in ("run", "owner", "lease"):
            living = "WHERE NOT dead" if table == "run" else ""
            (count,) = connection.execute(f"SELECT count(*) FROM {table} {living}").fetchone()
            assert count == 0, table
    finally:
        connection.close()


def _ended(worker: Worker, timeout: float = 30.0) -> int:
    return worker.process.wait(timeout)


@POOLS
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 1)])
def test_a_warm_stop(place: Place, pool: tuple[str, ...], number: int, code: int) -> None:
    worker = place.worker(*pool)
    boards = place.boards()
    running = place.send("gated", "running", str(place.gate()))
    place.noted("start", "running")
    worker.process.send_signal(number)
    name = signal.Signals(number).name
    place.noted("worker_shutting_down", f"{name}:Warm:{code}")
    until(lambda: len(place.pids(worker.pid)) <= 3, what="the idle process has ended")
    # Nothing is taken any more, although a process still runs.
    waiting = place.send("quick", "waiting")
    assert worker.process.poll() is None
    place.gate().touch()
    assert _ended(worker) == code
    assert running.get(timeout=5)
    assert place.counts("start") == {"running": 1}
    assert [queue.ready for queue in place.broker.queues()] == [1]
    _assert_nothing_is_left(place, boards)
    place.worker("-c", "1")
    waiting.get(timeout=30)


def test_a_warm_stop_returns_at_once_what_was_prefetched(place: Place) -> None:
    first = place.worker("-c", "1", "--prefetch-multiplier", "9")
    with place.app.batch():
        running = place.send("gated", "running", str(place.gate()))
        results = [place.send("quick", f"waiting-{n}") for n in range(8)]
    place.noted("start", "running")
    assert [queue.leased for queue in place.broker.queues()] == [9]
    first.process.send_signal(signal.SIGTERM)
    until(
        lambda: sum(queue.ready for queue in place.broker.queues()) == 8,
        what="all that had not begun is back while the task still runs",
    )
    assert first.process.poll() is None
    place.worker("-c", "1")
    for result in results:
        result.get(timeout=30)
    assert not running.ready()
    place.gate().touch()
    assert _ended(first) == 0
    assert running.get(timeout=5)
    assert set(place.counts("start").values()) == {1}


@pytest.mark.parametrize(
    "numbers", [(signal.SIGQUIT,), (signal.SIGINT, signal.SIGINT)], ids=["SIGQUIT", "SIGINT x 2"]
)
@POOLS
def test_a_cold_stop(place: Place, pool: tuple[str, ...], numbers: tuple[int, ...]) -> None:
    solo = "solo" in pool
    worker = place.worker(*pool)
    boards = place.boards()
    never = str(place.gate("never"))
    tasks = ["gated"] if solo else ["gated", "late_gated"]
    results = [place.send(task, task, never) for task in tasks]
    place.noted("start", times=len(tasks))
    for times, number in enumerate(numbers, 1):
        worker.process.send_signal(number)
        place.noted("worker_shutting_down", times=times)
    assert _ended(worker) == 0
    # Before the worker has ended, what may not run again is a failure and a dead letter.
    early = results[0]
    assert early.state == states.FAILURE
    assert type(early.result).__name__ == "WorkerLostError"
    assert [dead.id for dead in place.app.dead.list()] == [early.id]
    assert len(place.notes("task_failure:WorkerLostError", early.id)) == 1
    _assert_nothing_is_left(place, boards)
    if not solo:
        assert results[1].state == states.PENDING
        assert [queue.ready for queue in place.broker.queues()] == [1]
        place.gate("never").touch()
        place.worker("-c", "1")
        assert results[1].get(timeout=30)
    assert place.counts("start") == {"gated": 1} | ({} if solo else {"late_gated": 2})


def test_a_cold_stop_of_a_late_task_in_the_solo_pool(place: Place) -> None:
    worker = place.worker("-P", "solo")
    late = place.send("late_gated", "late", str(place.gate()))
    place.noted("start", "late")
    worker.process.send_signal(signal.SIGQUIT)
    assert _ended(worker) == 0
    assert late.state == states.PENDING
    assert [queue.ready for queue in place.broker.queues()] == [1]
    assert place.app.dead.list() == []


def test_a_soft_stop_lets_tasks_end_within_its_time(place: Place) -> None:
    worker = place.worker("-c", "2", env={"UMBEL_WORKER_SOFT_SHUTDOWN_TIMEOUT": "3"})
    ends = place.send("gated", "ends", str(place.gate()))
    never = place.send("gated", "never", str(place.gate("never")))
    place.noted("start", times=2)
    worker.process.send_signal(signal.SIGQUIT)
    place.noted("worker_shutting_down", "SIGQUIT:Cold:0")
    place.gate().touch()
    assert ends.get(timeout=30)
    assert worker.process.poll() is None
    assert not never.ready()
    assert _ended(worker) == 0
    assert never.state == states.FAILURE
    assert [dead.id for dead in place.app.dead.list()] == [never.id]


def test_a_soft_stop_ends_with_its_last_task(place: Place) -> None:
    worker = place.worker("-c", "2", env={"UMBEL_WORKER_SOFT_SHUTDOWN_TIMEOUT": "100"})
    ends = place.send("gated", "ends", str(place.gate()))
    place.noted("start", "ends")
    worker.process.send_signal(signal.SIGQUIT)
    place.noted("worker_shutting_down", "SIGQUIT:Cold:0")
    place.gate().touch()
    assert _ended(worker) == 0
    assert ends.get(timeout=5)
    assert place.app.dead.list() == []


def test_another_signal_ends_the_soft_wait(place: Place) -> None:
    worker = place.worker("-c", "1", env={"UMBEL_WORKER_SOFT_SHUTDOWN_TIMEOUT": "100"})
    early = place.send("gated", "early", str(place.gate("never")))
    place.noted("start", "early")
    worker.process.send_signal(signal.SIGQUIT)
    place.noted("worker_shutting_down", "SIGQUIT:Cold:0")
    worker.process.send_signal(signal.SIGINT)
    assert _ended(worker) == 0
    assert early.state == states.FAILURE
    assert [dead.id for dead in place.app.dead.list()] == [early.id]


@contextmanager
def _broker_away(place: Place) -> Iterator[None]:
    """Another program holds the file's write lock."""
    connection = sqlite3.connect(place.file, timeout=30, isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")
    finally:
        connection.close()


def test_one_more_signal_ends_the_worker_at_once(place: Place) -> None:
    """Even while the broker is away; what is left, the next worker takes from the scoreboard."""
    worker = place.worker("-c", "2")
    never = str(place.gate("never"))
    early, late = (place.send(name, name, never) for name in ("gated", "late_gated"))
    place.noted("start", times=2)
    with _broker_away(place):
        worker.process.send_signal(signal.SIGQUIT)
        until(lambda: len(place.pids(worker.pid)) == 2, what="the pool is gone")
        assert worker.process.poll() is None
        worker.process.send_signal(signal.SIGQUIT)
        assert _ended(worker, 5) == 1
    place.gate("never").touch()
    place.worker("-c", "2")
    assert late.get(timeout=30)
    until(early.ready, what="the early task is buried")
    assert early.state == states.FAILURE
    assert [dead.id for dead in place.app.dead.list()] == [early.id]
    assert place.counts("start") == {"gated": 1, "late_gated": 2}


def test_a_warm_stop_while_the_broker_is_away(place: Place) -> None:
    """It doesn't wait for ever; what was decided is on the scoreboard for the next worker."""
    worker = place.worker("-c", "2", env={"UMBEL_WORKER_SOFT_SHUTDOWN_TIMEOUT": "0.5"})
    results = [place.send(name, name, str(place.gate())) for name in ("gated", "late_gated")]
    place.noted("start", times=2)
    tree = place.pids(worker.pid)
    before = resource.prlimit(tree[0], resource.RLIMIT_FSIZE)
    full = os.path.getsize(f"{place.file}-wal") // 2
    for pid in tree:  # the disk is full for them
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (full, before[1]))
    place.gate().touch()
    place.noted("end", times=2)
    assert worker.stop() == 74, worker.text
    assert not any(result.ready() for result in results)
    place.worker("-c", "2")
    for result in results:
        result.get(timeout=30)
    assert place.counts("start") == {"gated": 1, "late_gated": 1}
    assert place.app.dead.list() == []


def test_sigterm_can_be_remapped_to_a_cold_stop(place: Place) -> None:
    worker = place.worker("-c", "1", env={"REMAP_SIGTERM": "SIGQUIT"})
    early = place.send("gated", "early", str(place.gate("never")))
    place.noted("start", "early")
    assert worker.stop(signal.SIGTERM) == 0, worker.text
    assert early.state == states.FAILURE


def test_a_signal_to_the_whole_group_is_one_stop(place: Place) -> None:
    """Ctrl-C and service managers signal every process; only the supervisor decides."""
    worker = place.worker("-c", "2")
    running = place.send("gated", "running", str(place.gate()))
    place.noted("start", "running")
    for pid in reversed(place.pids(worker.pid)):
        os.kill(pid, signal.SIGTERM)
    place.noted("worker_shutting_down", "SIGTERM:Warm:0")
    place.gate().touch()
    assert _ended(worker) == 0
    assert running.get(timeout=5)


def test_the_signals_of_a_workers_life_come_in_celerys_order(place: Place) -> None:
    worker = place.worker("-c", "1")
    assert worker.stop() == 0, worker.text
    life = (
        "import_modules",
        "celeryd_init",
        "worker_init",
        "celeryd_after_setup",
        "worker_before_create_process",
        "worker_process_init",
        "worker_ready",
        "worker_shutting_down",
        "worker_process_shutdown",
        "worker_shutdown",
    )
    notes = [note for note in place.notes() if note.what in life]
    assert [note.what for note in notes] == list(life)
    child = [note.what for note in notes if note.pid != worker.pid]
    assert child == ["worker_process_init", "worker_process_shutdown"]
    assert notes[7].tag == "SIGTERM:Warm:0"


def test_the_signals_of_the_solo_pool(place: Place) -> None:
    worker = place.worker("-P", "solo")
    assert worker.stop() == 0, worker.text
    named = [note.what for note in place.notes() if note.what.startswith("worker")]
    assert named == [
        "worker_init",
        "worker_process_init",
        "worker_ready",
        "worker_shutting_down",
        "worker_process_shutdown",
        "worker_shutdown",
    ]


def test_a_warm_stop_during_the_start(place: Place) -> None:
    """Processes that are just starting hear of it too."""
    worker = place.worker("-c", "4", ready=False)
    place.noted("worker_before_create_process")
    assert worker.stop() == 0, worker.text
    _assert_nothing_is_left(place, {str(Path("/dev/shm/umbel-none.board"))})
