"""A place for the outcome table's tasks, and what a cell says of one of them."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.worker.harness import Worker, board, until
from tests.worker.ledger import count_kills
from tests.worker.living import Place

from umbel import AsyncResult
from umbel.ports import DeadLetter

MODES = ("early", "late", "reject")
CALLED = ("task_prerun", "before_start")
SUCCESS = ("on_success", "task_success", "after_return:SUCCESS", "task_postrun:SUCCESS")


def run(retries: int = 0, redeliveries: int = 0, *, redelivered: bool = False) -> tuple[str, ...]:
    """What is heard of a run up to its own code, with the counts that it sees."""
    return *CALLED, f"run:{retries}:{redeliveries}:{int(redelivered)}"


def failure(error: str) -> tuple[str, ...]:
    """What is heard of a failure where the task's process lives."""
    return (*killed(error), "task_postrun:FAILURE")


def killed(error: str) -> tuple[str, ...]:
    """What is heard of a failure that ended the process, with handlers."""
    return f"on_failure:{error}", f"task_failure:{error}", "after_return:FAILURE"


def retry(error: str) -> tuple[str, ...]:
    return f"on_retry:{error}", "task_retry", "task_postrun:RETRY"


@dataclass(frozen=True)
class Cell:
    """What must have become of one task.

    `heard` is everything in its order, kills of the task's own among it. `dead` is found in the
    dead letter's reason (None: there is none), `counted` its redeliveries. `result` is the stored
    value, for an exception its class and text. `why` is found in the answer to "why".
    """

    state: str
    heard: tuple[str, ...]
    why: str
    result: object = None
    dead: str | None = None
    error: str = ""
    counted: int = 0
    kills: int = 0


def died(
    error: str,
    text: str,
    heard: tuple[str, ...],
    *,
    counted: int = 0,
    kills: int = 0,
    kept: bool = True,
) -> Cell:
    """A cell of FAILURE, with its dead letter unless dead letters are off."""
    return Cell(
        "FAILURE",
        heard,
        rf"dead since .*, from queue '\w+': {error}: {text}"
        if kept
        else f"finished: FAILURE at .*: {error}",
        (error, text),
        f"{error}: {text}" if kept else None,
        error if kept else "",
        counted,
        kills,
    )


class Table(Place):
    """A place with `table_app`."""

    def __init__(self, folder: Path, lease: float) -> None:
        super().__init__(folder, lease)
        self._heard: dict[str, int] = {}

    def start(self, *options: str, ready: bool = True, **env: str) -> Worker:
        return self.worker(*options, app="table_app", env=env, ready=ready)

    def call(self, task: str, *args: object, **options: Any) -> str:
        """The id of a message."""
        return self.send(task, *args, **options).id

    def heard(self, task_id: str) -> tuple[str, ...]:
        return tuple(note.what for note in self.notes(tag=task_id))

    def running(self, task_id: str) -> None:
        """Return once the task's own code has been entered."""
        until(
            lambda: any(what.startswith("run:") for what in self.heard(task_id)),
            what=f"{task_id} runs; {self.logs()}",
        )

    def settled(self, task_id: str) -> tuple[DeadLetter, ...]:
        """The dead letters of a message, once nothing else is left of it."""

        def look() -> bool:
            return all(isinstance(place, DeadLetter) for place in self.broker.find(task_id))

        until(look, what=f"{task_id} is settled: {self.app.why(task_id)}; {self.logs()}")
        return tuple(place for place in self.broker.find(task_id) if isinstance(place, DeadLetter))

    def check(self, cell: Cell, task_id: str, name: str) -> None:
        """Compare what has become of a task with its cell, once it is settled."""
        letters = self.settled(task_id)
        self.hear(cell, task_id)
        result = AsyncResult[Any](task_id, app=self.app)
        assert result.state == cell.state
        stored = result.result
        if isinstance(stored, BaseException):
            assert isinstance(cell.result, tuple)
            error, text = cell.result
            assert type(stored).__name__ == error
            assert re.search(text, str(stored)), str(stored)
        else:
            assert stored == cell.result
        assert re.search(cell.why, str(self.app.why(task_id))), str(self.app.why(task_id))
        assert [letter.error for letter in letters] == ([] if cell.dead is None else [cell.error])
        for letter in letters:
            assert re.search(cell.dead or "", letter.reason), letter.reason
            assert letter.redeliveries == cell.counted
        if cell.kills:
            kills = self.pool_kills(task_id)
            assert kills == cell.kills, self.logs()
            count_kills(name, kills)

    def hear(self, cell: Cell, task_id: str) -> None:
        """Compare what is heard of a task. Where a process has settled a retry, another may have
        started it before the first one announces it: only each one's own order is certain."""
        until(
            lambda: len(self.heard(task_id)) >= len(cell.heard),
            what=f"heard {self.heard(task_id)} of {cell.heard}; {self.logs()}",
        )
        self._heard[task_id] = len(cell.heard)
        if "task_retry" not in cell.heard:
            assert self.heard(task_id) == cell.heard
            return
        assert sorted(self.heard(task_id)) == sorted(cell.heard)
        for pid in {note.pid for note in self.notes(tag=task_id)}:
            rest = iter(cell.heard)
            own = [note.what for note in self.notes(tag=task_id) if note.pid == pid]
            assert all(what in rest for what in own), (own, cell.heard)

    def nothing_more_is_heard(self) -> None:
        """To be asked at the end: no task was heard of again after its check."""
        later = {each: self.heard(each)[count:] for each, count in self._heard.items()}
        assert not any(later.values()), later

    def pool_kills(self, task_id: str) -> int:
        """How many pool processes were ended by SIGKILL while they ran this task, by the wait
        statuses that their supervisors got."""
        how = r"signal 9 \(SIGKILL\)|Hard time limit|Terminated by SIGKILL|stopped cold"
        line = re.compile(rf"Pool process \d+ ended while running \S+\[{task_id}\]: .*({how})")
        return sum(len(line.findall(each.text)) for each in self._workers)

    def info(self, worker: Worker) -> dict[str, Any]:
        """What a worker says of itself in the broker."""
        run_id = worker.run(self.broker)
        found = next(record.info for record in self.broker.runs() if record.run == run_id)
        info: dict[str, Any] = json.loads(found)
        return info

    def hide_board(self, worker: Worker) -> None:
        """Take the scoreboard's name away, as a machine that dies takes the board."""
        Path(self.info(worker)["board"]).unlink()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else writes to the broker's file meanwhile."""
        connection = sqlite3.connect(self.file, timeout=10, isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            connection.execute("ROLLBACK")
            connection.close()

    def all_decided(self, worker_board: Path, *, ended: bool) -> list[int]:
        """Pool processes, once whatever they have started is decided and on the scoreboard.

        `ended`: and it has been announced, so that it counts as ended.
        """
        with board(worker_board) as scoreboard:
            slots = [slot for slot in scoreboard.slots if slot.number and slot.newest()]

            def look() -> bool:
                return all(
                    slot.newest() in dict(slot.decided())
                    and (not ended or not slot.running_leases())
                    for slot in slots
                )

            until(look, what=f"all outcomes are decided; {self.logs()}")
            return [slot.pid for slot in slots]
