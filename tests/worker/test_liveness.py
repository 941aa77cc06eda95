"""A running task is never taken for a dead one, and a worker that is late can do no harm."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from pathlib import Path

import pytest
from tests.servers import Redis
from tests.worker.harness import Worker, until
from tests.worker.jumping_app import JumpingClock
from tests.worker.living import ON_BOTH, Place

from umbel import states

MakePlace = Callable[[float], Place]
FULL_AT = 64 * 1024
NEW_RUN = "starts again as a new run"


def test_tasks_of_twenty_leases_run_once_each(make_place: MakePlace) -> None:
    place = make_place(0.5)
    workers = [place.worker("-c", "2") for _ in range(2)]
    seconds = 20 * place.lease
    results = [place.send(f"late_{how}", how, seconds) for how in ("nap", "spin", "hold")]
    for result in results:
        result.get(timeout=60)
    assert place.counts("start") == {"nap": 1, "spin": 1, "hold": 1}
    assert place.counts("end") == {"nap": 1, "spin": 1, "hold": 1}
    assert not any(NEW_RUN in worker.text for worker in workers)
    assert [queue.leased + queue.ready for queue in place.broker.queues()] == [0]


@ON_BOTH
def test_a_suspended_worker_loses_its_leases_and_cannot_settle(make_place: MakePlace) -> None:
    place = make_place(1.0)
    gate, held = str(place.gate()), str(place.gate("held"))
    suspended = place.worker("-c", "2")
    late = place.send("late_gated", "late", gate)
    early = place.send("gated", "early", held)
    first = {note.tag: note.pid for note in place.noted("start", times=2)}
    other = place.worker("-c", "2")
    tree = place.pids(suspended.pid)
    assert len(tree) == 4  # supervisor, fork server, two pool processes
    place.freeze(tree)
    frozen_at = time.monotonic()
    second = place.noted("start", "late", times=2)[1]
    assert second.pid in place.pids(other.pid)
    until(early.ready, what="the other worker buries the early task")
    until(lambda: time.monotonic() - frozen_at > 3 * place.lease)
    place.gate().touch()
    assert late.get(timeout=30) == second.pid
    assert late.ready()
    place.gate("held").touch()
    place.thaw(tree)
    until(lambda: NEW_RUN in suspended.text, what=f"a new run; {suspended.text}")
    assert late.get(timeout=5) == second.pid != first["late"]
    assert place.counts("start") == {"late": 2, "early": 1}
    _assert_lost(place, early.id)
    assert other.stop() == 0, other.text
    # As the new run, the worker that was suspended works as before.
    again = place.send("quick", "again")
    assert again.get(timeout=30) in place.pids(suspended.pid)
    assert suspended.stop() == 0, suspended.text
    assert late.get(timeout=5) == second.pid


def _assert_lost(place: Place, task_id: str) -> None:
    result = place.app.AsyncResult(task_id)
    assert result.state == states.FAILURE
    assert type(result.result).__name__ == "WorkerLostError"
    (dead,) = [each for each in place.app.dead.list() if each.id == task_id]
    assert dead.error == "WorkerLostError"
    assert [note.what for note in place.notes(tag=task_id)] == ["task_failure:WorkerLostError"]


@ON_BOTH
def test_the_supervisor_alone_suspended(make_place: MakePlace) -> None:
    place = make_place(1.0)
    gate = place.gate()
    suspended = place.worker("-c", "1")
    late = place.send("late_gated", "late", str(gate))
    first = place.noted("start", "late")[0]
    other = place.worker("-c", "1")
    place.freeze([suspended.pid])
    second = place.noted("start", "late", times=2)[1]
    assert second.pid in place.pids(other.pid)
    gate.touch()
    assert late.get(timeout=30) == second.pid
    # Its pool process has ended, since nothing may go on under a dead run.
    until(lambda: first.pid not in place.pids(), what="the process of the dead run ends")
    assert "The outcome of late_gated" in suspended.text
    assert "is discarded" in suspended.text
    place.thaw([suspended.pid])
    until(lambda: NEW_RUN in suspended.text, what=f"a new run; {suspended.text}")
    assert late.get(timeout=5) == second.pid
    assert other.stop() == 0, other.text
    assert place.send("quick", "again").get(timeout=30) in place.pids(suspended.pid)


@ON_BOTH
def test_a_pool_process_alone_suspended(make_place: MakePlace) -> None:
    place = make_place(1.0)
    gate = place.gate()
    worker = place.worker("-c", "2")
    other = place.worker("-c", "1")
    late = place.send("late_gated", "late", str(gate))
    note = place.noted("start", "late")[0]
    place.freeze([note.pid])
    frozen_at = time.monotonic()
    results = [place.send("quick", f"quick-{n}") for n in range(20)]
    pids = {result.get(timeout=30) for result in results}
    assert note.pid not in pids
    until(lambda: time.monotonic() - frozen_at > 3 * place.lease)
    gate.touch()
    assert not late.ready()
    place.thaw([note.pid])
    assert late.get(timeout=30) == note.pid
    assert place.counts("start")["late"] == 1
    assert NEW_RUN not in worker.text + other.text


@contextlib.contextmanager
def _file_locked(place: Place, _workers: list[Worker]) -> Iterator[None]:
    """Another program holds the file's write lock: every operation blocks."""
    connection = sqlite3.connect(place.file, timeout=30, isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")
    finally:
        connection.close()


@contextlib.contextmanager
def _disk_full(place: Place, workers: list[Worker]) -> Iterator[None]:
    """The workers may not make a file larger than 64 KiB: every write to the broker fails."""
    assert os.path.getsize(f"{place.file}-wal") > FULL_AT
    pids = [pid for worker in workers for pid in place.pids(worker.pid)]
    before = resource.prlimit(pids[0], resource.RLIMIT_FSIZE)
    for pid in pids:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (FULL_AT, before[1]))
    yield
    for pid in pids:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)
    assert all("No heartbeat" in worker.text for worker in workers)


Outage = Callable[[Place, list[Worker]], AbstractContextManager[None]]


@pytest.mark.parametrize("outage", [_file_locked, _disk_full])
def test_an_outage_of_three_leases_under_twenty_running_tasks(
    make_place: MakePlace, outage: Outage
) -> None:
    _outlive(make_place(1.0), outage)


@pytest.mark.parametrize("url", ["redis"], indirect=True)
@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_a_server_that_is_away_for_three_leases_under_twenty_running_tasks(
    make_place: MakePlace, redis: Redis, how: str
) -> None:
    @contextlib.contextmanager
    def away(_: Place, __: list[Worker]) -> Iterator[None]:
        (redis.kill if how == "killed" else redis.freeze)()
        try:
            yield
        finally:
            (redis.start if how == "killed" else redis.thaw)()

    _outlive(make_place(1.0), away, asks=False)


def _outlive(place: Place, outage: Outage, *, asks: bool = True) -> None:
    """Twenty tasks run through an outage, once each. `asks`: results can be asked for meanwhile."""
    workers = [place.worker("-c", "10") for _ in range(2)]
    # Half of them end during the outage, the others after it.
    during, after = place.gate("during"), place.gate("after")
    gates = {f"task-{n}": during if n % 2 else after for n in range(20)}
    results = [place.send("late_gated", tag, str(gate)) for tag, gate in gates.items()]
    place.noted("start", times=20)
    began = time.monotonic()
    with outage(place, workers):
        during.touch()
        place.noted("end", times=10)
        until(lambda: time.monotonic() - began > 3 * place.lease + 0.5)
        assert not asks or not any(result.ready() for result in results)
    after.touch()
    for result in results:
        result.get(timeout=60)
    assert place.counts("start") == dict.fromkeys(gates, 1)
    assert place.counts("end") == dict.fromkeys(gates, 1)
    assert not any(NEW_RUN in worker.text for worker in workers)
    assert place.app.dead.list() == []
    assert [worker.stop() for worker in workers] == [0, 0]


@ON_BOTH
def test_a_worker_frozen_while_idle_is_handed_nothing(place: Place) -> None:
    frozen = place.worker("-c", "2")
    other = place.worker("-c", "1")
    tree, slowest = place.pids(frozen.pid), 0.0
    for turn in range(6):
        # It was woken for the tasks of the last turn; it has to be idle again.
        until(
            lambda: _freezes_idle(place, frozen.pool(place.broker), tree),
            what="the worker is frozen while idle",
        )
        sent_at = time.monotonic()
        tags = [f"{turn}-{n}" for n in range(10)]
        results = [place.send("quick", tag) for tag in tags]
        pids = {result.get(timeout=20) for result in results}
        slowest = max(slowest, max(place.notes("start", tag)[0].at for tag in tags) - sent_at)
        assert pids <= set(place.pids(other.pid))
        place.thaw(tree)
    print(f"slowest of 6 x 10 tasks beside a frozen worker: {slowest * 1000:.0f} ms")
    # Far below the lease of 30 s for which a message handed to the frozen one would be stuck.
    assert slowest < 5


def _freezes_idle(place: Place, pool: list[int], tree: list[int]) -> bool:
    """Freeze a worker that rests. One whose supervisor was just writing a heartbeat, and so holds
    the file's lock for as long as it is frozen, was not idle: it goes on, and False."""
    if not _rests(pool):
        return False
    place.freeze(tree)
    if not place.file.exists():  # on a server nothing is locked
        return True
    with closing(sqlite3.connect(place.file, timeout=0.5, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
        except sqlite3.OperationalError:
            place.thaw(tree)
            return False
    return True


def _rests(pids: list[int]) -> bool:
    """Whether no thread of these processes has run for a while."""

    def switches() -> int:
        texts = [
            path.read_text() for pid in pids for path in Path(f"/proc/{pid}").glob("task/*/status")
        ]
        return sum(
            int(number) for text in texts for number in re.findall(r"switches:\s(\d+)", text)
        )

    before = switches()
    time.sleep(0.1)
    return switches() == before


@ON_BOTH
@pytest.mark.parametrize("readable", [True, False], ids=["board", "no board"])
def test_an_early_task_of_a_killed_worker_fails_in_time(
    make_place: MakePlace, readable: bool
) -> None:
    place = make_place(2.0)
    killed = place.worker("-c", "1")
    early = place.send("gated", "early", str(place.gate()))
    place.noted("start", "early")
    place.worker("-c", "1")
    boards = place.boards()
    if not readable:  # as if the worker had been on another machine
        (board,) = boards & _boards_of(killed, place)
        place.folder.joinpath(board).unlink()
    killed.kill()
    killed_at = time.monotonic()
    place.noted("task_failure:WorkerLostError", early.id)
    until(lambda: place.app.dead.get(early.id) and early.ready(), what="a dead letter")
    took = time.monotonic() - killed_at
    print(f"FAILURE {took:.2f} s after the kill, lease {place.lease} s, board {readable}")
    assert took < place.lease + 2
    _assert_lost(place, early.id)
    assert place.counts("start") == {"early": 1}


def _boards_of(worker: Worker, place: Place) -> set[str]:
    text = "".join(
        place.folder.joinpath(f"/proc/{pid}/maps").read_text() for pid in place.pids(worker.pid)
    )
    return {path for path in place.boards() if path in text}


@pytest.mark.parametrize("jump", [7200.0, -7200.0], ids=["forward", "back"])
def test_a_clock_jump_of_two_hours(tmp_path: Path, jump: float) -> None:
    clock = JumpingClock(tmp_path / "clock")
    clock.jump(0.0)
    place = Place(tmp_path, 0.6, clock)
    with closing(place):
        env = {"CLOCK": str(tmp_path / "clock")}
        workers = [
            place.worker("-c", "3", app="tests.worker.jumping_app", env=env) for _ in range(2)
        ]
        running = [place.send("late_gated", f"run-{n}", str(place.gate())) for n in range(5)]
        place.noted("start", times=5)
        delayed = [place.send("quick", f"delayed-{n}", countdown=3600.0) for n in range(5)]
        soon = []
        for turn, seconds in enumerate((jump, 0.0, jump)):
            clock.jump(seconds)
            place.send("quick", f"now-{turn}").get(timeout=30)
            soon.append(place.send("quick", f"soon-{turn}", countdown=1.0))
            _let_pass(3 * place.lease)
        place.gate().touch()
        for result in running:
            result.get(timeout=30)
        clock.jump(7200.0)
        for result in (*delayed, *soon):
            result.get(timeout=30)
        assert len(place.counts("start")) == 5 + 5 + 3 + 3
        assert set(place.counts("start").values()) == {1}
        assert not any(NEW_RUN in worker.text for worker in workers)
        assert place.app.dead.list() == []
        assert [worker.stop() for worker in workers] == [0, 0]


def _let_pass(seconds: float) -> None:
    """Time itself is what is tested: heartbeats must have had the chance to find fault."""
    until_at = time.monotonic() + seconds
    until(lambda: time.monotonic() > until_at, seconds + 10)


@ON_BOTH
def test_the_fork_server_killed(make_place: MakePlace) -> None:
    """With it the pool dies: what ran is settled for, and the worker goes on as a new run."""
    place = make_place(2.0)
    worker = place.worker("-c", "1")
    late = place.send("late_gated", "late", str(place.gate()))
    pool = place.noted("start", "late")[0].pid
    (server,) = [pid for pid in place.pids(worker.pid) if pid not in (worker.pid, pool)]
    os.kill(server, signal.SIGKILL)
    until(late.ready, what="the task that ran is buried")
    _assert_lost(place, late.id)
    until(lambda: NEW_RUN in worker.text, what=worker.text)
    assert place.send("quick", "next").get(timeout=30) in place.pids(worker.pid)
    assert place.counts("start") == {"late": 1, "next": 1}


def test_a_worker_that_starts_again_purges_nothing(make_place: MakePlace) -> None:
    place = make_place(0.6)
    worker = place.worker("-c", "1", "--purge")
    running = place.send("late_gated", "running", str(place.gate()))
    place.noted("start", "running")
    tree = place.pids(worker.pid)
    place.freeze(tree)
    beating = place.app.broker
    beating.enlist("other", None, b"{}")
    until(lambda: (beating.beat("other"), len(beating.runs()) == 1)[1], what="it is taken for dead")
    waiting = [place.send("quick", str(n)) for n in range(5)]
    place.gate().touch()
    place.thaw(tree)
    assert all(result.get(timeout=30) for result in [running, *waiting])
    assert NEW_RUN in worker.text
    beating.leave("other")
