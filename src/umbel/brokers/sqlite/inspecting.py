"""What is where: counts, places, messages by id."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Final

from umbel.brokers.sqlite import dead
from umbel.brokers.sqlite.connection import sought
from umbel.brokers.sqlite.place import LOST_END, place
from umbel.codec import unpack
from umbel.message import Message, Unreadable
from umbel.ports import Delayed, Leased, Location, QueueStats, Ready, SetAside, Stored

_QUEUES: Final = "SELECT id, name, dead_count FROM queue ORDER BY name"
_COUNT_READY: Final = "SELECT count(*) FROM ready WHERE queue = ? AND place >= ?"
_COUNT_LOST: Final = "SELECT count(*) FROM ready WHERE queue = ? AND place < ?"
_COUNT_DELAYED: Final = "SELECT queue, count(*) FROM delayed GROUP BY queue"
_COUNT_LEASED: Final = (
    "SELECT m.queue, count(*) FROM lease l JOIN message m ON m.n = l.n GROUP BY m.queue"
)
_PEEK: Final = (
    "SELECT m.blob FROM ready r JOIN message m ON m.n = r.n"
    " WHERE r.queue = (SELECT id FROM queue WHERE name = ?) AND r.place >= ?"
    " ORDER BY r.place LIMIT ?"
)
_OF_ID: Final = (
    "SELECT m.n, m.queue, q.name, m.priority, m.front, m.due_at, m.unknown_since_at,"
    " m.loss, m.detail, m.blob FROM message m JOIN queue q ON q.id = m.queue"
    " WHERE m.id = ? ORDER BY m.n"
)
_IS_AT: Final = "SELECT 1 FROM ready WHERE queue = ? AND place = ?"
_BEFORE: Final = "SELECT count(*) FROM ready WHERE queue = ? AND place >= ? AND place < ?"
# The few leases there are have no index by message: it would cost every turn.
_HOLDER: Final = (
    "SELECT o.name, l.lease, l.lease <= o.begin FROM lease l JOIN owner o ON o.n = l.owner"
    " WHERE l.n = ?"
)
_PURGE_MESSAGES: Final = (
    "DELETE FROM message WHERE n IN (SELECT n FROM ready WHERE queue = ?1 AND place >= ?2"
    " UNION ALL SELECT n FROM delayed WHERE queue = ?1)"
)
_PURGE_READY: Final = "DELETE FROM ready WHERE queue = ? AND place >= ?"
_PURGE_DELAYED: Final = "DELETE FROM delayed WHERE queue = ?"


def queues(tx: sqlite3.Connection) -> tuple[QueueStats, ...]:
    """All declared queues, by name."""
    delayed: dict[int, int] = dict(tx.execute(_COUNT_DELAYED))
    leased: dict[int, int] = dict(tx.execute(_COUNT_LEASED))
    return tuple(
        QueueStats(
            name,
            ready=tx.execute(_COUNT_READY, (queue, LOST_END)).fetchone()[0],
            delayed=delayed.get(queue, 0),
            leased=leased.get(queue, 0),
            lost=tx.execute(_COUNT_LOST, (queue, LOST_END)).fetchone()[0],
            dead=dead_count,
        )
        for queue, name, dead_count in tx.execute(_QUEUES).fetchall()
    )


def peek(tx: sqlite3.Connection, queue: str, limit: int) -> tuple[Message | Unreadable, ...]:
    """The next messages, without those that await burial."""
    return tuple(unpack(row[0]) for row in tx.execute(_PEEK, (sought(queue), LOST_END, limit)))


def find(tx: sqlite3.Connection, task_id: str) -> Iterator[Location]:
    """Wherever messages of this id are, dead letters last."""
    return (each.place for each in stored(tx, task_id))


def stored(tx: sqlite3.Connection, task_id: str) -> Iterator[Stored]:
    """The same, with the messages."""
    for location, blob in _living(tx, task_id):
        yield Stored(location, blob, unpack(blob))
    yield from dead.stored(tx, task_id)


def _living(tx: sqlite3.Connection, task_id: str) -> Iterator[tuple[Location, bytes]]:
    for row in tx.execute(_OF_ID, (sought(task_id),)).fetchall():
        n, queue, name, priority, front, due_at, unknown_since_at, loss, detail, blob = row
        if due_at is not None:
            yield Delayed(name, due_at, unknown_since_at), blob
            continue
        here = place(n, priority, lost=loss is not None, front=front)
        holder = tx.execute(_HOLDER, (n,)).fetchone()
        if holder is not None:
            owner, lease, begun = holder
            yield Leased(name, owner, lease, bool(begun)), blob
        elif loss is not None:
            yield SetAside(name, loss, detail), blob
        elif tx.execute(_IS_AT, (queue, here)).fetchone():
            yield Ready(name, tx.execute(_BEFORE, (queue, LOST_END, here)).fetchone()[0]), blob


def purge(tx: sqlite3.Connection, queue: int) -> int:
    """Delete what waits or is due later, but nothing that awaits burial; how many."""
    purged = tx.execute(_PURGE_MESSAGES, (queue, LOST_END)).rowcount
    tx.execute(_PURGE_READY, (queue, LOST_END))
    tx.execute(_PURGE_DELAYED, (queue,))
    return purged
