"""The outcome table end to end: every row and column that real workers on SQLite can reach.

What lives through its end shares one worker; what dies with a whole worker has its own.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.worker.harness import Worker, until
from tests.worker.ledger import count_kills
from tests.worker.table import (
    MODES,
    SUCCESS,
    Cell,
    Table,
    died,
    failure,
    killed,
    retry,
    run,
)
from umbel import AsyncResult
from umbel.message import Message, Posting

SHORT_LEASE = 1.5
FINISHED = "finished: SUCCESS at "
Cells = tuple[Cell, Cell, Cell]


def same(cell: Cell) -> Cells:
    return cell, cell, cell


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Table]:
    """One place with one worker, for all that a worker survives."""
    place = Table(tmp_path_factory.mktemp("table"), 30.0)
    try:
        worker = place.start("-c", "2", UMBEL_TASK_UNKNOWN_WAIT="0.5")
        yield place
        board = place.info(worker)["board"]
        assert worker.stop() == 0
        assert not os.path.exists(board)
    finally:
        place.close()


@pytest.fixture
def places(tmp_path: Path) -> Iterator[Table]:
    """A place of its own, with a short lease, for what ends whole workers."""
    place = Table(tmp_path, SHORT_LEASE)
    try:
        yield place
    finally:
        place.close()


# Ends that the worker survives.

LOST_9 = r"Worker exited prematurely: signal 9 \(SIGKILL\)"
LIMIT = "(TimeLimitExceeded.0.2,.|its (soft|hard) time limit of 0.2 s had passed)"
REQUEUED = ("task_postrun:REJECTED",)
RETURNED = Cell("SUCCESS", (*run(), *SUCCESS), FINISHED, 42)
RAISED = died("ValueError", "as planned", (*run(), *failure("ValueError")))
KILLED = died("WorkerLostError", LOST_9, (*run(), "kill", "task_failure:WorkerLostError"), kills=1)
EXITED = died(
    "WorkerLostError",
    "Worker exited prematurely: exitcode 3",
    (*run(), "task_failure:WorkerLostError"),
)
LEFT = died(
    "WorkerLostError",
    "Worker exited prematurely: exitcode 4",
    (*run(), "task_failure:WorkerLostError"),
)
TIMED_OUT = died("TimeLimitExceeded", LIMIT, (*run(), *killed("TimeLimitExceeded")), kills=1)
RETRIED_AFTER_DEATH = died(
    "WorkerLostError",
    LOST_9,
    (
        *run(), "kill", "on_retry:WorkerLostError", "task_retry",
        *run(1), "kill", "task_failure:WorkerLostError",
    ),
    kills=2,
)  # fmt: skip

ALIVE: dict[str, tuple[str, tuple[object, ...], Cells]] = {
    "returned": ("returns", (), same(RETURNED)),
    "returned, too large for the scoreboard": (
        "returns_much",
        (),
        same(Cell("SUCCESS", (*run(), *SUCCESS), FINISHED, "x" * 5000)),
    ),
    "returned what can't be stored": (
        "returns_what_json_lacks",
        (),
        same(died("EncodeError", "return value", (*run(), *failure("EncodeError")))),
    ),
    "retry": (
        "retries",
        (0,),
        same(Cell("SUCCESS", (*run(), *retry("ValueError"), *run(1), *SUCCESS), FINISHED, 1)),
    ),
    "retry to a queue that is new": (
        "retries_elsewhere",
        ("celery.new",),
        same(
            Cell(
                "RETRY",
                (*run(), *retry("Retry")),
                "waiting at place [123] of queue 'celery.new'",
                ("Retry", "Retry in 0s"),
            )
        ),
    ),
    "no retry left": (
        "retries_too_often",
        (),
        same(
            died(
                "ValueError",
                "always",
                (*run(), *retry("ValueError"), *run(1), *failure("ValueError")),
            )
        ),
    ),
    "raised": ("raises", (), same(RAISED)),
    "raised, not acks_on_failure": ("raises_refused", (), same(RAISED)),
    "raised, no dead letters": (
        "raises_unkept",
        (),
        same(died("ValueError", "as planned", (*run(), *failure("ValueError")), kept=False)),
    ),
    "Ignore": (
        "ignores",
        (),
        same(Cell("PENDING", (*run(), "task_postrun:IGNORED"), "never seen: .*ignored")),
    ),
    "Reject(requeue=False)": (
        "rejects",
        (),
        same(
            died("Reject", "unwanted", (*run(), "task_postrun:REJECTED", "task_failure:Reject"))
        ),
    ),
    "Reject(requeue=True), up to the cap": (
        "requeues",
        (),
        same(
            died(
                "Reject",
                "not now",
                (
                    *run(), *REQUEUED,
                    *run(0, 1, redelivered=True), *REQUEUED,
                    *run(0, 2, redelivered=True), *failure("Reject"),
                ),
                counted=2,
            )
        ),
    ),
    "Reject(requeue=True), once": (
        "requeues_once",
        (),
        same(
            Cell(
                "SUCCESS",
                (*run(), *REQUEUED, *run(0, 1, redelivered=True), *SUCCESS),
                FINISHED,
                1,
            )
        ),
    ),
    "soft limit, not caught": (
        "meets_soft_limit",
        (),
        same(died("SoftTimeLimitExceeded", LIMIT, (*run(), *failure("SoftTimeLimitExceeded")))),
    ),
    "hard limit": ("meets_hard_limit", (), same(TIMED_OUT)),
    "hard limit, not acks_on_timeout": (
        "meets_hard_limit_again",
        (),
        (
            TIMED_OUT,
            *(
                died(
                    "TimeLimitExceeded",
                    LIMIT,
                    (*run(), *run(0, 1, redelivered=True), *killed("TimeLimitExceeded")),
                    counted=1,
                    kills=2,
                )
                for _ in ("late", "reject")
            ),
        ),
    ),
    "unroutable: no such queue, and none is made": (
        "retries_to_no_exchange",
        (),
        same(died("Unroutable", "exchange 'nowhere'", (*run(), *failure("Unroutable")))),
    ),
    "unroutable follow-up": (
        "follows_up_to_no_exchange",
        (),
        same(
            died(
                "Unroutable",
                "exchange 'gone'",
                (*run(), *failure("Unroutable")),
            )
        ),
    ),
    "pool process died": (
        "kills",
        (),
        (
            KILLED,
            KILLED,
            died(
                "WorkerLostError",
                LOST_9,
                (
                    *run(), "kill",
                    *run(0, 1, redelivered=True), "kill",
                    *run(0, 2, redelivered=True), "kill", *killed("WorkerLostError"),
                ),
                counted=2,
                kills=3,
            ),
        ),
    ),
    "pool process died, once": (
        "kills_once",
        (),
        (
            KILLED,
            KILLED,
            Cell(
                "SUCCESS",
                (*run(), "kill", *run(0, 1, redelivered=True), *SUCCESS),
                FINISHED,
                1,
                kills=1,
            ),
        ),
    ),
    "pool process died, retry_on_worker_lost": (
        "kills_with_retry",
        (),
        same(RETRIED_AFTER_DEATH),
    ),
    "pool process ended by os._exit": (
        "exits",
        (),
        (
            EXITED,
            EXITED,
            died(
                "WorkerLostError",
                "Worker exited prematurely: exitcode 3",
                (*run(), *run(0, 1, redelivered=True), *killed("WorkerLostError")),
                counted=1,
            ),
        ),
    ),
    "pool process ended by SystemExit": (
        "says_system_exit",
        (),
        (
            LEFT,
            LEFT,
            died(
                "WorkerLostError",
                "Worker exited prematurely: exitcode 4",
                (*run(), *run(0, 1, redelivered=True), *killed("WorkerLostError")),
                counted=1,
            ),
        ),
    ),
}  # fmt: skip
CASES = [(name, mode) for name in ALIVE for mode in MODES]


@pytest.mark.parametrize(("name", "mode"), CASES, ids=lambda value: value)
def test_an_end_that_the_worker_survives(table: Table, name: str, mode: str) -> None:
    task, args, cells = ALIVE[name]
    task_id = table.call(f"{task}.{mode}", *args)
    if name == "retry to a queue that is new":
        until(lambda: table.broker.peek("celery.new", 9), what=f"the retry waits; {table.logs()}")
        until(lambda: len(table.heard(task_id)) == len(cells[0].heard))
        state = AsyncResult[Any](task_id, table.app).state
        assert (state, table.heard(task_id)) == ("RETRY", cells[0].heard)
        assert re.search(cells[0].why, str(table.app.why(task_id)))
        return
    table.check(cells[MODES.index(mode)], task_id, f"{name} / {mode}")
