"""One write transaction in the making, and what must be rung once it is committed."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from umbel.brokers.sqlite.connection import sought
from umbel.brokers.sqlite.place import place
from umbel.codec import pack
from umbel.exceptions import Unroutable
from umbel.exchanges import Binding, has_own_name, takers, unbound, undeclared
from umbel.message import Posting

_QUEUE_ID: Final = (
    "SELECT q.id, o.queue IS NULL, o.run FROM queue q LEFT JOIN own o ON o.queue = q.id"
    " WHERE q.name = ?"
)
_BINDINGS: Final = (
    "SELECT queue, exchange, type, routing_key, arguments FROM binding WHERE exchange = ?"
    " ORDER BY n"
)
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

    __slots__ = ("_last", "_of_exchange", "_queue_ids", "now", "rings", "tx")

    def __init__(self, tx: sqlite3.Connection, queue_ids: dict[str, int], now: float) -> None:
        self.tx = tx
        self.now = now
        self.rings = Rings()
        self._queue_ids = queue_ids
        self._last: int | None = None
        self._of_exchange: dict[str, list[Binding]] = {}

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
        exchange, key = posting.exchange, posting.routing_key
        if exchange:
            taken = self._takers(posting)
            return None if taken else unbound(exchange, key, self._bindings(exchange))
        if self.queue_id(key) is not None:
            return None
        return undeclared(key, [row[0] for row in self.tx.execute(_QUEUE_NAMES)])

    def store(self, packed: Iterable[Packed]) -> None:
        """Keep postings; `Unroutable` where one has no queue, and then undo the transaction."""
        messages: list[tuple[int, str, int, int, float | None, bytes]] = []
        ready: list[tuple[int, int, int]] = []
        delayed: list[tuple[float, int, int]] = []
        for posting, blob in packed:
            own = None if posting.exchange else self.queue_id(posting.routing_key)
            queues = self._takers(posting) if own is None else (own,)
            if not queues:
                raise Unroutable(self.unroutable(posting))
            for queue in queues:
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

    def _takers(self, posting: Posting) -> tuple[int, ...]:
        """The ids of the queues that a posting to an exchange is stored in."""
        exchange, key = posting.exchange, posting.routing_key
        bindings = self._bindings(exchange)
        names = takers(bindings, key, posting.message.headers)
        if key == exchange and has_own_name(bindings):
            names = tuple(dict.fromkeys((*names, key)))
        ids = [self.queue_id(name) for name in names]
        return tuple(queue for queue in ids if queue is not None)

    def _bindings(self, exchange: str) -> list[Binding]:
        known = self._of_exchange.get(exchange)
        if known is None:
            known = [binding_of(row) for row in self.tx.execute(_BINDINGS, (exchange,))]
            self._of_exchange[exchange] = known
        return known

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


def binding_of(row: tuple[str, str, str, str, str]) -> Binding:
    """From (queue, exchange, type, routing key, arguments as JSON)."""
    queue, exchange, kind, routing_key, text = row
    arguments = tuple((name, value) for name, value in json.loads(text))
    return Binding(queue, exchange, kind, routing_key, arguments)


def queue_id(tx: sqlite3.Connection, known: dict[str, int], name: str) -> int | None:
    """The id of a declared queue; `known` remembers it, since ids don't change in a file.

    But for the queues that end with a run: another may get the id of one that is gone.
    """
    found = known.get(name)
    if found is not None:
        return found
    row = tx.execute(_QUEUE_ID, (sought(name),)).fetchone()
    if row is None:
        return None
    queue: int = row[0]
    is_kept, run = row[1:]
    if is_kept:
        known[name] = queue
    elif run is None:
        return None
    return queue
