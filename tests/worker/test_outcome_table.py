"""The outcome table end to end: every row and column that real workers on SQLite can reach.

What lives through its end shares one worker; what dies with a whole worker has its own.
"""

from __future__ import annotations

import os
import re
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.worker.harness import until
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
from umbel.message import Message, Posting, Unreadable
from umbel.ports import Delayed
from umbel.why import Case

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
        place.nothing_more_is_heard()
    finally:
        place.close()


@pytest.fixture
def places(tmp_path: Path) -> Iterator[Table]:
    """A place of its own, with a short lease, for what ends whole workers."""
    place = Table(tmp_path, SHORT_LEASE)
    try:
        yield place
        place.nothing_more_is_heard()
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
    (*run(), "task_postrun:None", "task_failure:WorkerLostError"),
)
TIMED_OUT = died("TimeLimitExceeded", LIMIT, (*run(), *killed("TimeLimitExceeded")), kills=1)
TIMED_OUT_AGAIN = died(
    "TimeLimitExceeded",
    LIMIT,
    (*run(), *run(0, 1, redelivered=True), *killed("TimeLimitExceeded")),
    counted=1,
    kills=2,
)
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
        (TIMED_OUT, TIMED_OUT_AGAIN, TIMED_OUT_AGAIN),
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
                (
                    *run(), "task_postrun:None",
                    *run(0, 1, redelivered=True), "task_postrun:None", *killed("WorkerLostError"),
                ),
                counted=1,
            ),
        ),
    ),
}  # fmt: skip
CASES = [(name, mode) for name in ALIVE for mode in MODES]


@pytest.mark.option("before_start", "on_success", "on_retry", "on_failure", "after_return")
@pytest.mark.parametrize(("name", "mode"), CASES, ids=lambda value: value)
def test_an_end_that_the_worker_survives(table: Table, name: str, mode: str) -> None:
    task, args, cells = ALIVE[name]
    task_id = table.call(f"{task}.{mode}", *args)
    if name == "retry to a queue that is new":
        until(lambda: table.broker.peek("celery.new", 9), what=f"the retry waits; {table.logs()}")
        until(lambda: len(table.heard(task_id)) == len(cells[0].heard))
        state = AsyncResult[Any](task_id, app=table.app).state
        assert (state, table.heard(task_id)) == ("RETRY", cells[0].heard)
        assert re.search(cells[0].why, str(table.app.why(task_id)))
        return
    table.check(cells[MODES.index(mode)], task_id, f"{name} / {mode}")


@pytest.mark.parametrize("mode", MODES)
def test_a_retry_that_is_due_later_waits_with_its_state(table: Table, mode: str) -> None:
    task_id = table.call(f"retries.{mode}", 3600)
    until(lambda: AsyncResult[Any](task_id, app=table.app).state == "RETRY", what=table.logs())
    table.hear(Cell("RETRY", (*run(), *retry("ValueError")), ""), task_id)
    (place,) = table.broker.find(task_id)
    assert isinstance(place, Delayed)
    assert repr(AsyncResult[Any](task_id, app=table.app).result) == "ValueError('once')"
    why = str(table.app.why(task_id))
    assert re.fullmatch(
        r"delayed until .* in queue 'celery', to be tried again after ValueError\('once'\)", why
    )


REVOKED = ("TaskRevokedError", "revoked")


@pytest.mark.parametrize("mode", MODES)
def test_expired_before_start(table: Table, mode: str) -> None:
    task_id = table.call(f"returns.{mode}", countdown=0.1, expires=0.05)
    cell = Cell(
        "REVOKED",
        ("task_revoked:False:None:True",),
        "^expired at .*; it was not started$",
        ("TaskRevokedError", "expired"),
    )
    table.check(cell, task_id, f"expired / {mode}")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("when", ["delayed", "not yet sent"])
def test_revoked_before_start(table: Table, mode: str, when: str) -> None:
    if when == "delayed":
        task_id = table.call(f"returns.{mode}", countdown=3600)
        table.app.revoke([task_id])
    else:
        task_id = f"revoked-ahead-{mode}"
        table.app.revoke([task_id])
        assert re.match("revoked; the broker has no message", str(table.app.why(task_id)))
        table.call(f"returns.{mode}", task_id=task_id)
    cell = Cell("REVOKED", ("task_revoked:False:None:False",), "^revoked at ", REVOKED)
    table.check(cell, task_id, f"revoked before start / {mode}")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL"])
def test_terminated(table: Table, mode: str, name: str) -> None:
    task_id = table.call(f"waits.{mode}", "never")
    table.running(task_id)
    assert re.match("running in worker umbel@", str(table.app.why(task_id)))
    table.app.revoke([task_id], terminate=True, signal=name)
    cell = Cell(
        "REVOKED",
        (*run(), f"task_revoked:True:{int(signal.Signals[name])}:False"),
        "^terminated at ",
        ("TaskRevokedError", "terminated"),
        kills=int(name == "SIGKILL"),
    )
    table.check(cell, task_id, f"terminated by {name} / {mode}")


def test_a_task_that_nobody_knows_ends_after_its_wait(table: Table) -> None:
    task_id = table.call("nobody.knows.this", 1)
    until(lambda: table.app.why(task_id).case is Case.UNKNOWN_TASK, what=table.logs())
    assert table.heard(task_id) == ()
    cell = died("NotRegistered", "no task named", ("task_unknown:nobody.knows.this",))
    table.check(cell, task_id, "unknown task name")


@pytest.mark.parametrize("countdown", [None, 3600])
def test_revoked_or_expired_comes_before_unknown(table: Table, countdown: float | None) -> None:
    task_id = f"unknown-revoked-{countdown}"
    table.app.revoke([task_id])
    table.call("nobody.knows.this", task_id=task_id, countdown=countdown)
    if countdown:
        assert table.app.why(task_id).case is Case.REVOKED
        table.app.revoke([task_id])
    cell = Cell("REVOKED", ("task_revoked:False:None:False",), "^revoked at ", REVOKED)
    table.check(cell, task_id, "revoked, unknown task name")


@pytest.mark.parametrize("mode", MODES)
def test_a_task_waits_for_a_worker_that_knows_it(places: Table, mode: str) -> None:
    task_id = places.call(f"known_later.{mode}", queue="foreign")
    ignorant = places.start("-c", "1", "-Q", "foreign")
    until(lambda: places.app.why(task_id).case is Case.UNKNOWN_TASK, what=places.logs())
    assert ignorant.stop() == 0
    places.start("-c", "1", "-Q", "foreign", TABLE_KNOWS_MORE="1")
    places.check(RETURNED, task_id, f"unknown task name, known in time / {mode}")


@pytest.mark.parametrize("mode", MODES)
def test_a_retry_to_a_queue_that_may_not_be_made(places: Table, mode: str) -> None:
    places.start("-c", "1", UMBEL_TASK_CREATE_MISSING_QUEUES="false")
    task_id = places.call(f"retries_to_no_queue.{mode}")
    cell = died("QueueNotFound", "queue 'nowhere'", (*run(), *failure("QueueNotFound")))
    places.check(cell, task_id, f"retry to a queue that may not be made / {mode}")


# Unreadable messages: no state, a dead letter with the reason, and task_rejected.


def test_a_blob_that_is_no_message(table: Table) -> None:
    task_id = table.call("returns.early", countdown=0.3)
    with sqlite3.connect(table.file, timeout=10) as broker:
        found = broker.execute(
            "UPDATE message SET blob = ? WHERE id = ?", (b"garbage " + task_id.encode(), task_id)
        )
        assert found.rowcount == 1
    broker.close()
    (letter,) = table.settled(task_id)
    assert isinstance(letter.message, Unreadable)
    assert letter.message.raw == b"garbage " + task_id.encode()
    assert letter.error == "InvalidTaskError"
    assert re.search("not a message envelope", letter.reason)
    assert table.heard(f"garbage_{task_id}") == ("task_rejected:InvalidTaskError",)
    assert AsyncResult[Any](task_id, app=table.app).state == "PENDING"
    assert re.search("dead since .*not a message", str(table.app.why(task_id)))


UNREADABLE: dict[str, tuple[dict[str, object], str, str]] = {
    "content type": (
        {"content_type": "application/x-python-serialize"},
        "DecodeError|InvalidTaskError",
        "application/x-python-serialize",
    ),
    "encoding": ({"content_encoding": "rot13"}, "DecodeError|InvalidTaskError", "rot13"),
    "body that is no JSON": ({"body": b"{"}, "DecodeError", "."),
    "body of another shape": ({"body": b'{"args": []}'}, "DecodeError", "positional arguments"),
    "protocol 1": (
        {"headers": {}, "body": b'{"task": "returns.early", "id": "1", "args": []}'},
        "InvalidTaskError",
        "no header 'task'.*protocol 2",
    ),
    "header of another type": ({"retries": "many"}, "InvalidTaskError", "retries"),
    "eta that is no time": ({"expires": "tomorrow"}, "InvalidTaskError", "'expires'.*ISO-8601"),
    "compressed": ({"compression": "zlib"}, "DecodeError", "isn't compressed by zlib"),
    "compressed somehow": ({"compression": "rar"}, "DecodeError", "'rar', which isn't known"),
    "no signature": (
        {"body": b'[[], {}, {"callbacks": null, "errbacks": null, "chain": [{}], "chord": null}]'},
        "InvalidTaskError",
        "chain in the body: {} is no signature",
    ),
    "chord": (
        {"body": b'[[], {}, {"callbacks": null, "chain": null, "chord": {"task": "t"}}]'},
        "InvalidTaskError",
        "carries 'chord', which this release doesn't run",
    ),
    "group in its chain": (
        {"body": b'[[], {}, {"chain": [{"task": "celery.group", "subtask_type": "group"}]}]'},
        "InvalidTaskError",
        "carries a group in its chain, which this release doesn't run",
    ),
}


@pytest.mark.parametrize("what", UNREADABLE)
def test_an_unreadable_message(table: Table, what: str) -> None:
    changes, error, reason = UNREADABLE[what]
    fields = ("body", "content_type", "content_encoding", "headers")
    task_id = "" if what == "protocol 1" else f"unreadable {what}".replace(" ", "-")
    headers = {"task": "returns.early", "id": task_id, "lang": "py"}
    envelope: dict[str, Any] = {
        "body": b"[[], {}, {}]",
        "content_type": "application/json",
        "content_encoding": "utf-8",
        "headers": headers | {key: value for key, value in changes.items() if key not in fields},
        "properties": {},
    }
    envelope |= {key: value for key, value in changes.items() if key in fields}
    table.broker.publish([Posting(Message(**envelope), "celery")])
    until(lambda: table.broker.dead_find(task_id), what=f"the dead letter; {table.logs()}")
    (letter,) = table.settled(task_id)
    assert re.fullmatch(error, letter.error)
    assert re.search(reason, letter.reason), letter.reason
    assert table.heard(task_id or "no-id") == (f"task_rejected:{letter.error}",)
    if task_id:
        assert AsyncResult[Any](task_id, app=table.app).state == "PENDING"
        assert re.search("dead since .*", str(table.app.why(task_id)))
