"""Dead letters: written with the settlement that leaves them, kept by count, age and bytes."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any, Final

from umbel.brokers.sqlite.connection import sought
from umbel.brokers.sqlite.work import Packed, Work
from umbel.codec import unpack
from umbel.message import Dead
from umbel.ports import BrokerOptions, DeadLetter, Stored

_DOOMED: Final = "SELECT id, queue, redeliveries, history, blob FROM message WHERE n = ?"
_ADD: Final = (
    "INSERT INTO dead (id, queue, reason, error, died_at, redeliveries, history, size, blob)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_TOTALS: Final = "SELECT dead_count, dead_bytes FROM queue WHERE id = ?"
_OLDEST: Final = "SELECT n, died_at FROM dead WHERE queue = ? ORDER BY n LIMIT 1"
_DELETE: Final = "DELETE FROM dead WHERE n = ?"
_QUEUES_WITH_DEAD: Final = "SELECT id FROM queue WHERE dead_count > 0"
_SELECT: Final = (
    "SELECT d.id, q.name, d.blob, d.reason, d.error, d.died_at, d.redeliveries, d.history"
    " FROM dead d JOIN queue q ON q.id = d.queue"
)
_ALL: Final = f"{_SELECT} ORDER BY d.n LIMIT ?"
_OF_QUEUE: Final = f"{_SELECT} WHERE q.name = ? ORDER BY d.n LIMIT ?"
_OF_ID: Final = f"{_SELECT} WHERE d.id = ? ORDER BY d.n DESC"
_DELETE_ALL: Final = "DELETE FROM dead"
_IN_QUEUE: Final = "queue = (SELECT id FROM queue WHERE name = ?)"
_DELETE_QUEUE: Final = f"DELETE FROM dead WHERE {_IN_QUEUE}"
_DELETE_ID: Final = "DELETE FROM dead WHERE id = ?"
_DELETE_ID_QUEUE: Final = f"DELETE FROM dead WHERE id = ? AND {_IN_QUEUE}"


def bury(work: Work, n: int, dead: Dead, options: BrokerOptions) -> None:
    """Write the dead letter of message `n`, which the caller deletes."""
    task_id, queue, redeliveries, text, blob = work.tx.execute(_DOOMED, (n,)).fetchone()
    history = [*json.loads(text or "[]"), [work.now, dead.reason]]
    work.tx.execute(
        _ADD,
        (
            task_id,
            queue,
            dead.reason,
            dead.error,
            work.now,
            redeliveries,
            json.dumps(history),
            len(blob),
            blob,
        ),
    )
    _retain(work, queue, options)


def retain_all(work: Work, options: BrokerOptions) -> int:
    """Drop what is over the limits in every queue; how many."""
    queues = work.tx.execute(_QUEUES_WITH_DEAD).fetchall()
    return sum(_retain(work, queue, options) for (queue,) in queues)


def _retain(work: Work, queue: int, options: BrokerOptions) -> int:
    """Keep what count, age and bytes allow; the newest is kept however large it is. How many
    were dropped."""
    dropped = 0
    count, size = work.tx.execute(_TOTALS, (queue,)).fetchone()
    while count:
        n, died_at = work.tx.execute(_OLDEST, (queue,)).fetchone()
        too_old = died_at < work.now - options.dead_max_age
        too_many = count > options.dead_max_count
        too_large = count > 1 and size > options.dead_max_bytes
        if not (too_old or too_many or too_large):
            break
        work.tx.execute(_DELETE, (n,))
        dropped += 1
        count, size = work.tx.execute(_TOTALS, (queue,)).fetchone()
    return dropped


def letters(tx: sqlite3.Connection, queue: str | None, limit: int | None) -> tuple[DeadLetter, ...]:
    """Dead letters, oldest first."""
    most = -1 if limit is None else limit
    if queue is None:
        return tuple(map(_letter, tx.execute(_ALL, (most,))))
    return tuple(map(_letter, tx.execute(_OF_QUEUE, (sought(queue), most))))


def of_id(tx: sqlite3.Connection, task_id: str) -> Iterator[DeadLetter]:
    """The dead letters of one task id, newest first."""
    return map(_letter, tx.execute(_OF_ID, (sought(task_id),)))


def stored(tx: sqlite3.Connection, task_id: str) -> Iterator[Stored]:
    """The same, as they are kept."""
    for row in tx.execute(_OF_ID, (sought(task_id),)):
        letter = _letter(row)
        yield Stored(letter, row[2], letter.message)


def requeue(work: Work, task_id: str, packed: Packed) -> bool:
    """Replace the dead letters of an id by a posting; False where there is none."""
    if not task_id or not work.tx.execute(_DELETE_ID, (sought(task_id),)).rowcount:
        return False
    work.store([packed])
    return True


def delete(tx: sqlite3.Connection, task_ids: Sequence[str] | None, queue: str | None) -> int:
    """Delete dead letters by id, by queue, by both, or all; how many."""
    if task_ids is None:
        if queue is None:
            return tx.execute(_DELETE_ALL).rowcount
        return tx.execute(_DELETE_QUEUE, (sought(queue),)).rowcount
    ids = [sought(task_id) for task_id in task_ids]
    if queue is None:
        return sum(tx.execute(_DELETE_ID, (each,)).rowcount for each in ids)
    name = sought(queue)
    return sum(tx.execute(_DELETE_ID_QUEUE, (each, name)).rowcount for each in ids)


def _letter(row: tuple[Any, ...]) -> DeadLetter:
    task_id, queue, blob, reason, error, died_at, redeliveries, history = row
    return DeadLetter(
        id=task_id,
        queue=queue,
        message=unpack(blob),
        reason=reason,
        error=error,
        died_at=died_at,
        redeliveries=redeliveries,
        history=tuple((at, text) for at, text in json.loads(history)),
    )
