"""The outcome table where a whole worker dies, stops cold, or is taken for dead.

One kill of a worker meets several tasks at once, each of which is a cell of its own.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.worker.harness import Worker, until
from tests.worker.ledger import count_kills
from tests.worker.table import MODES, SUCCESS, Cell, Table, died, failure, killed, run

from umbel import AsyncResult
from umbel.ports import Leased, Ready

SHORT_LEASE = 1.5
FINISHED = "finished: SUCCESS at "
LOST = ("task_failure:WorkerLostError",)
LOST_RETRY = ("on_retry:WorkerLostError", "task_retry")
SEEN_DEAD = "Worker exited prematurely: the whole worker died"
SILENT = r"worker run \w+ gave no sign of life for \d+ s"


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Table]:
    place = Table(tmp_path, SHORT_LEASE)
    try:
        yield place
        place.nothing_more_is_heard()
    finally:
        place.close()


def kill(table: Table, worker: Worker, *, hidden: bool) -> None:
    """SIGKILL to the supervisor; `hidden` takes the scoreboard away first."""
    if hidden:
        table.hide_board(worker)
    worker.kill()
    assert worker.process.returncode == -signal.SIGKILL
    until(lambda: not table.pids(), what="the pool dies with its supervisor")


@pytest.mark.parametrize("hidden", [False, True], ids=["scoreboard", "no scoreboard"])
def test_the_whole_worker_dies_with_tasks_begun(table: Table, hidden: bool) -> None:
    gate = table.gate()
    names = ("parks", "parks_at_the_cap", "parks_with_retry", "parks_without_retries")
    calls = {
        (name, mode): table.call(f"{name}.{mode}", str(gate)) for name in names for mode in MODES
    }
    first = table.start("-c", str(len(calls)))
    for task_id in calls.values():
        table.running(task_id)
        assert re.match("running in worker umbel@", str(table.app.why(task_id)))
    board = table.info(first)["board"]
    kill(table, first, hidden=hidden)
    assert os.path.exists(board) != hidden
    assert all(isinstance(table.broker.find(each)[0], Leased) for each in calls.values())
    second = table.start("-c", "2")
    why = SILENT if hidden else SEEN_DEAD
    heirs = table.pids(second.pid)
    for (name, mode), task_id in calls.items():
        table.settled(task_id)
        lost = died("WorkerLostError", why, (*run(), *LOST))
        heir = table.notes(tag=task_id)[-1].pid
        again = Cell("SUCCESS", (*run(), *run(0, 1, redelivered=True), *SUCCESS), FINISHED, heir)
        retried = Cell("SUCCESS", (*run(), *LOST_RETRY, *run(1), *SUCCESS), FINISHED, 1)
        capped = died("WorkerLostError", why, (*run(), *killed("WorkerLostError")))
        cell = {
            "parks": lost if mode == "early" else again,
            "parks_at_the_cap": lost if mode == "early" else capped,
            "parks_with_retry": retried,
            "parks_without_retries": lost,
        }[name]
        where = "without its scoreboard" if hidden else "with its scoreboard"
        table.check(cell, task_id, f"{name} / {mode}")
        assert heir in heirs
        count_kills(f"whole worker died {where}: {name} / {mode}", 1)
    assert ("Took over" in second.text) == (not hidden)
    assert not os.path.exists(board)


NO_BOARD = "worker without a scoreboard"
ASSASSIN = {
    "process": r"signal 9 \(SIGKILL\)",
    "worker": SEEN_DEAD,
    NO_BOARD: SILENT,
}


def bystander(mode: str, *, begun: bool) -> Cell:
    """One that never started: it runs once, uncounted. Where it must be taken for begun, it is
    treated as any task that began."""
    if begun and mode == "early":
        return died("WorkerLostError", SILENT, LOST)
    return Cell("SUCCESS", (*run(0, int(begun), redelivered=True), *SUCCESS), FINISHED)


@pytest.mark.parametrize("whom", ASSASSIN)
def test_what_stands_behind_a_death(table: Table, whom: str, tmp_path: Path) -> None:
    """Marked but never started, and held: neither has any part in the death of its process.

    Rounds are played until each column has been met in both; without the scoreboard what was
    marked counts as begun.
    """
    fates: dict[tuple[str, bool], list[str]] = {}
    rounds = 0
    while len(fates) < 2 * len(MODES):
        rounds += 1
        assert rounds < 12, f"only these were behind a death: {sorted(fates)}"
        report = tmp_path / f"report-{rounds}.json"
        for _ in range(30):
            table.call("quick")
        assassin = table.call("assassin", whom, str(report))
        others = {table.call(f"stands_by.{mode}"): mode for mode in MODES * 20}
        worker = table.start("-c", "1", ready=whom == "process")
        if whom != "process":
            assert worker.process.wait(30) == -signal.SIGKILL
            worker = table.start("-c", "1")
        for task_id in [assassin, *others]:
            table.settled(task_id)
        (letter,) = table.settled(assassin)
        assert re.search(ASSASSIN[whom], letter.reason), letter.reason
        assert table.heard(assassin) == ("task_prerun", "kill", *LOST)
        for task_id, marked in json.loads(report.read_text()).items():
            fates.setdefault((others[task_id], marked), []).append(task_id)
        assert worker.stop() == 0
    for (mode, marked), task_ids in fates.items():
        for task_id in task_ids:
            table.check(bystander(mode, begun=marked and whom == NO_BOARD), task_id, mode)
        kind = "marked but never started" if marked else "held"
        count_kills(f"{whom} died: {kind} / {mode}", rounds)


# An outcome that was decided before the death.

DECIDED = {
    "return": Cell("SUCCESS", (*run(), *SUCCESS), FINISHED, 42),
    "raise": died("ValueError", "decided", (*run(), *failure("ValueError"))),
}
# A retry is announced once it is settled, and that was not to be.
DECIDED_RETRY = {"retry": Cell("SUCCESS", (*run(), *run(1), *SUCCESS), FINISHED, 1)}


@pytest.mark.parametrize("cells", [DECIDED, DECIDED_RETRY], ids=["ends", "retries"])
@pytest.mark.parametrize("whom", ["process", "worker"])
def test_a_decided_outcome_is_applied(table: Table, whom: str, cells: dict[str, Cell]) -> None:
    """Tasks end while the broker's file is locked, so no turn settles them before the kill."""
    gate = table.gate()
    calls = {
        (how, mode): table.call(f"decides.{mode}", str(gate), how)
        for how in cells
        for mode in MODES
    }
    worker = table.start("-c", str(len(calls)))
    for task_id in calls.values():
        table.running(task_id)
    with table.locked():
        gate.touch()
        pids = table.all_decided(Path(table.info(worker)["board"]), ended=cells is DECIDED)
        assert len(pids) == len(calls)
        if whom == "process":
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            until(lambda: not set(pids) & set(table.pids()), what="the processes are dead")
        else:
            kill(table, worker, hidden=False)
        assert all(isinstance(table.broker.find(each)[0], Leased) for each in calls.values())
        assert all(
            AsyncResult[Any](each, app=table.app).state == "PENDING" for each in calls.values()
        )
    if whom == "worker":
        table.start("-c", "1")
    for (how, mode), task_id in calls.items():
        table.check(cells[how], task_id, f"{how} / {mode}")
        count_kills(f"{whom} died, outcome decided: {how} / {mode}", 1)


@pytest.mark.parametrize("mode", MODES)
def test_a_result_that_was_final_stays(table: Table, mode: str) -> None:
    """The result lies in a store of its own; the whole machine dies before the broker is told."""
    store = f"sqlite:///{table.folder}/results.db"
    table.app.conf.result_backend = store
    gate = table.gate()
    calls = {how: table.call(f"decides.{mode}", str(gate), how) for how in DECIDED}
    worker = table.start("-c", str(len(calls)), UMBEL_RESULT_BACKEND=store)
    for task_id in calls.values():
        table.running(task_id)
    with table.locked():
        gate.touch()
        for task_id in calls.values():
            until(
                AsyncResult[Any](task_id, app=table.app).ready, what=f"it is stored; {table.logs()}"
            )
        kill(table, worker, hidden=True)
    before = {each: AsyncResult[Any](each, app=table.app).date_done for each in calls.values()}
    table.start("-c", "1", UMBEL_RESULT_BACKEND=store)
    table.check(DECIDED["return"], calls["return"], mode)
    (letter,) = table.settled(calls["raise"])
    assert letter.reason == "the task had ended in a stored FAILURE when its worker died"
    assert re.search("dead since .* stored FAILURE", str(table.app.why(calls["raise"])))
    table.hear(DECIDED["raise"], calls["raise"])
    result = AsyncResult[Any](calls["raise"], app=table.app)
    assert (result.state, repr(result.result)) == ("FAILURE", "ValueError('decided')")
    for how, task_id in calls.items():
        assert AsyncResult[Any](task_id, app=table.app).date_done == before[task_id]
        count_kills(f"died, result already final: {how} / {mode}", 1)


def test_a_cold_stop(table: Table) -> None:
    """Early tasks are lost, with what follows from it before the worker has gone; late ones go
    back, uncounted, and run elsewhere."""
    gate = table.gate()
    calls = {mode: table.call(f"parks.{mode}", str(gate)) for mode in MODES}
    first = table.start("-c", str(len(calls)))
    for task_id in calls.values():
        table.running(task_id)
    assert first.stop(signal.SIGQUIT) == 0
    lost = died(
        "WorkerLostError",
        "The worker was stopped cold while the task ran",
        (*run(), *LOST),
        kills=1,
    )
    table.check(lost, calls["early"], "cold stop / early")
    for mode in ("late", "reject"):
        (place,) = table.broker.find(calls[mode])
        assert isinstance(place, Ready)
        assert re.match(
            "waiting at place [12] of queue 'celery'; no worker is running",
            str(table.app.why(calls[mode])),
        )
        count_kills(f"cold stop / {mode}", table.pool_kills(calls[mode]))
    second = table.start("-c", "1")
    for mode in ("late", "reject"):
        table.settled(calls[mode])
        pid = table.notes(tag=calls[mode])[-1].pid
        assert pid in table.pids(second.pid)
        heard = (*run(), *run(redelivered=True), *SUCCESS)
        table.check(Cell("SUCCESS", heard, FINISHED, pid), calls[mode], "")


def test_a_lease_that_was_lost_while_the_task_ran(table: Table) -> None:
    """A worker that stood still for longer than its lease finishes what is another's by now."""
    gate = table.gate()
    calls = {mode: table.call(f"parks.{mode}", str(gate)) for mode in MODES}
    first = table.start("-c", str(len(calls)))
    for task_id in calls.values():
        table.running(task_id)
    frozen = table.pids(first.pid)
    run_id = first.run(table.broker)
    table.freeze(frozen)
    try:
        second = table.start("-c", "1")
        for task_id in calls.values():
            table.settled(task_id)
        heirs = {mode: table.notes(tag=calls[mode])[-1].pid for mode in MODES}
        assert set(heirs.values()) <= set(table.pids(second.pid))
        gate.touch()
    finally:
        table.thaw(frozen)
    until(lambda: "starts again as a new run" in first.text, what=first.text)
    until(lambda: first.run(table.broker) != run_id, what="the first worker is enlisted anew")
    for mode, task_id in calls.items():
        assert re.search(rf"{re.escape(task_id)}\] is discarded", first.text), first.text
        late = (*run(), *run(0, 1, redelivered=True), *SUCCESS)
        lost = died("WorkerLostError", SILENT, (*run(), *LOST))
        cell = lost if mode == "early" else Cell("SUCCESS", late, FINISHED, heirs[mode])
        table.check(cell, task_id, mode)
    after = table.call("returns.early")
    assert second.stop() == 0
    table.check(Cell("SUCCESS", (*run(), *SUCCESS), FINISHED, 42), after, "")
    assert first.stop() == 0
