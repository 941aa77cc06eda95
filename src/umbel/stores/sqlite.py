"""``sqlite:///path`` as result store: the table `result` of a broker file."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Final

from umbel.brokers.sqlite.connection import Database, Synchronous, sought
from umbel.brokers.sqlite.doorbell import ANY, Doorbells, result_tag
from umbel.brokers.sqlite.settling import keep_results
from umbel.brokers.sqlite.work import Work
from umbel.clock import SYSTEM, Clock
from umbel.exceptions import StoreUnavailable
from umbel.message import Result
from umbel.polling import Interrupts
from umbel.states import READY_STATES

_GET: Final = "SELECT task_id, state, meta, expires_at FROM result WHERE task_id = ?"
_FORGET: Final = "DELETE FROM result WHERE task_id = ?"
_PRUNE: Final = (
    "DELETE FROM result WHERE task_id IN"
    " (SELECT task_id FROM result WHERE expires_at <= ? ORDER BY expires_at LIMIT 1000)"
)
# Behind the newest that many. When a task ended stands in its record.
_OVER: Final = (
    "DELETE FROM result WHERE task_id IN (SELECT task_id FROM result WHERE state = 'SUCCESS'"
    " ORDER BY CASE WHEN json_valid(CAST(meta AS TEXT))"
    " THEN julianday(json_extract(CAST(meta AS TEXT), '$.date_done')) END DESC, expires_at DESC"
    " LIMIT 1000 OFFSET ?)"
)
_LOOK_AGAIN: Final = 1.0


class SqliteStore:
    """States and values by task id, for the processes of one machine."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        clock: Clock = SYSTEM,
        synchronous: Synchronous = "normal",
    ) -> None:
        self._clock = clock
        self._database = Database(path, unavailable=StoreUnavailable, synchronous=synchronous)
        self._bells = Doorbells(self._database.path)
        self._interrupts = Interrupts()
        self._closed = True

    @property
    def location(self) -> str:
        return f"sqlite:{self._database.path}"

    @property
    def database(self) -> Database:
        """The open file, for tests and tools that look at its statements."""
        return self._database

    def open(self) -> None:
        self._database.open()
        self._closed = False

    def close(self) -> None:
        self._closed = True
        self._bells.close()
        self._database.close()

    def put(self, results: Sequence[Result]) -> None:
        with self._database.write() as tx:
            keep_results(Work(tx, {}, self._clock.wall()), results)
        self._bells.ring({"r": {result_tag(result.task_id) for result in results}})

    def get(self, task_ids: Sequence[str]) -> list[Result | None]:
        now = self._clock.wall()
        with self._database.read() as tx:
            rows = [tx.execute(_GET, (sought(task_id),)).fetchone() for task_id in task_ids]
        found = [None if row is None else Result(*row) for row in rows]
        return [None if result is None or _expired(result, now) else result for result in found]

    def wait(self, task_ids: Sequence[str], timeout: float) -> None:
        deadline = time.monotonic() + timeout
        before = self.get(task_ids)
        if timeout <= 0 or any(r is not None and r.state in READY_STATES for r in before):
            return
        tag = result_tag(task_ids[0]) if len(task_ids) == 1 else ANY
        with self._bells.waiting("r", tag) as bell:
            while not self._closed and self.get(task_ids) == before:
                left = deadline - time.monotonic()
                if left <= 0 or self._interrupts.take():
                    return
                bell.sleep(min(left, _LOOK_AGAIN))

    def interrupt(self) -> None:
        self._interrupts.add()
        self._bells.ring_own()

    def forget(self, task_ids: Sequence[str]) -> None:
        with self._database.write() as tx:
            tx.executemany(_FORGET, [(sought(task_id),) for task_id in task_ids])

    def prune(self, keep: int | None = None) -> int:
        pruned = self._delete_in_steps(_PRUNE, self._clock.wall())
        return pruned if keep is None else pruned + self._delete_in_steps(_OVER, keep)

    def _delete_in_steps(self, statement: str, bound: float) -> int:
        """In steps, so that nobody waits long for the write lock."""
        deleted = 0
        while True:
            with self._database.write() as tx:
                count = tx.execute(statement, (bound,)).rowcount
            deleted += count
            if not count:
                return deleted


def _expired(result: Result, now: float) -> bool:
    return result.expires_at is not None and result.expires_at <= now
