"""One write transaction in the making, and what must be rung once it is committed."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from umbel.brokers.sqlite.place import place
from umbel.codec import pack
from umbel.exceptions import Unroutable
from umbel.message import Posting

_QUEUE_ID: Final = "SELECT id FROM queue WHERE name = ?"
_QUEUE_NAMES: Final = "SELECT name FROM queue ORDER BY name"
_LAST_NUMBER: Final = "SELECT max(n) FROM message"
_EARLIEST: Final = "SELECT min(due_at) FROM delayed"
_ADD: Final = "INSERT INTO message (n, id, queue, priority, due_at, blob) VALUES (?, ?, ?, ?, ?, ?)"
_ADD_READY: Final = "INSERT INTO ready (queue, place, n) VALUES (?, ?, ?)"
_ADD_DELAYED: Final = "INSERT INTO delayed (due_at, n, queue) VALUES (?, ?, ?)"

Packed = tuple[Posting, bytes]
"""A posting and its message's blob, made before the file is locked."""


@dataclass(slots=True)
class Rings:
    """Who must be woken: waiters on queue ids, everyone who waits, waiters for results."""

    queues: set[int] = field(default_factory=set)
    everyone: bool = False
    results: list[str] = field(default_factory=list)


class Work:
    """A connection within a transaction, the time that it counts with, and its bookkeeping."""

    __slots__ = ("_last", "_queue_ids", "now", "rings", "tx")

    def __init__(self, tx: sqlite3.Connection, queue_ids: dict[str, int], now: float) -> None:
        self.tx = tx
        self.now = now
        self.rings = Rings()
        self._queue_ids = queue_ids
        self._last: int | None = None

    def number(self) -> int:
        """The next message number: higher than that of every message there is."""
        if self._last is None:
            self._last = int(self.tx.execute(_LAST_NUMBER).fetchone()[0] or 0)
        self._last += 1
        return self._last

    def queue_id(self, name: str) -> int | None:
        """The id of a declared queue."""
        return queue_id(self.tx, self._queue_ids, name)

    def unroutable(self, posting: Posting) -> str | None:
        """Why no queue would take the posting; None where one does."""
        if not posting.exchange and self.queue_id(posting.routing_key) is not None:
            return None
        target = f"queue {posting.routing_key!r}"
        if posting.exchange:
            target = f"exchange {posting.exchange!r} (routing key {posting.routing_key!r})"
        known = ", ".join(repr(row[0]) for row in self.tx.execute(_QUEUE_NAMES)) or "none"
        return (
            f"{target} isn't declared in this broker; declared queues: {known}. "
            "Declare it, or send to one of these."
        )

    def store(self, packed: Iterable[Packed]) -> None:
        """Keep postings; `Unroutable` where one has no queue, and then undo the transaction."""
        messages: list[tuple[int, str, int, int, float | None, bytes]] = []
        ready: list[tuple[int, int, int]] = []
        delayed: list[tuple[float, int, int]] = []
        for posting, blob in packed:
            queue = None if posting.exchange else self.queue_id(posting.routing_key)
            if queue is None:
                raise Unroutable(self.unroutable(posting))
            n, due_at = self.number(), posting.due_at
            if due_at is None or due_at <= self.now:
                due_at = None
                ready.append((queue, place(n, posting.priority), n))
            else:
                delayed.append((due_at, n, queue))
            messages.append((n, posting.message.id, queue, posting.priority, due_at, blob))
        self.tx.executemany(_ADD, messages)
        if ready:
            self.make_ready(ready)
        if delayed:
            self.delay(delayed)

    def make_ready(self, rows: Sequence[tuple[int, int, int]]) -> None:
        """Let messages wait: (queue id, place, number)."""
        self.tx.executemany(_ADD_READY, rows)
        self.rings.queues.update(row[0] for row in rows)

    def delay(self, rows: Sequence[tuple[float, int, int]]) -> None:
        """Let messages wait for their time: (due time, number, queue id)."""
        earliest = self.tx.execute(_EARLIEST).fetchone()[0]
        self.tx.executemany(_ADD_DELAYED, rows)
        if earliest is None or min(row[0] for row in rows) < earliest:
            self.rings.everyone = True  # whoever sleeps until the next due time must look again


def pack_all(postings: Iterable[Posting]) -> list[Packed]:
    """The postings with their blobs."""
    return [(posting, pack(posting.message)) for posting in postings]


def queue_id(tx: sqlite3.Connection, known: dict[str, int], name: str) -> int | None:
    """The id of a declared queue; `known` remembers it, since ids never change in a file."""
    found = known.get(name)
    if found is None:
        row = tx.execute(_QUEUE_ID, (name,)).fetchone()
        if row is None:
            return None
        found = known[name] = row[0]
    return found
