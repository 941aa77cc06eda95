"""Queues, bindings, and the queues that end with a run: made, taken away, swept up."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from typing import Final

from umbel.brokers.sqlite.dead import bury
from umbel.brokers.sqlite.inspecting import purge
from umbel.brokers.sqlite.place import LOST_END
from umbel.brokers.sqlite.work import Work, binding_of
from umbel.exceptions import ImproperlyConfigured, RunLost
from umbel.exchanges import Binding, clash, taken
from umbel.message import Dead
from umbel.ports import BrokerOptions

ADD_QUEUE: Final = "INSERT OR IGNORE INTO queue (name) VALUES (?)"
ADD_BINDING: Final = (
    "INSERT OR IGNORE INTO binding (exchange, type, queue, routing_key, arguments)"
    " VALUES (?, ?, ?, ?, ?)"
)
_LIVES: Final = "SELECT 1 FROM run WHERE run = ? AND dead = 0"
_OWN: Final = (
    "SELECT o.queue IS NOT NULL, o.run FROM queue q LEFT JOIN own o ON o.queue = q.id"
    " WHERE q.name = ?"
)
_ADD_OWN: Final = (
    "INSERT INTO own (queue, run) SELECT id, ?1 FROM queue WHERE name = ?2"
    " ON CONFLICT (queue) DO UPDATE SET run = ?1"
)
_TYPE: Final = "SELECT exchange, type FROM binding WHERE exchange = ? LIMIT 1"
_UNBIND: Final = (
    "DELETE FROM binding WHERE exchange = ? AND type = ? AND queue = ? AND routing_key = ?"
    " AND arguments = ?"
)
_ALL: Final = (
    "SELECT queue, exchange, type, routing_key, arguments FROM binding ORDER BY exchange, queue, n"
)
_END_BINDINGS: Final = (
    "DELETE FROM binding WHERE queue IN"
    " (SELECT q.name FROM queue q JOIN own o ON o.queue = q.id WHERE o.run = ?)"
)
_END: Final = "UPDATE own SET run = NULL WHERE run = ?"
_ENDED: Final = "SELECT queue FROM own WHERE run IS NULL"
_BEGUN: Final = (
    "SELECT r.n, m.detail FROM ready r JOIN message m ON m.n = r.n"
    " WHERE r.queue = ? AND r.place < ? ORDER BY r.place"
)
_FORGET_READY: Final = "DELETE FROM ready WHERE queue = ?"
_FORGET_MESSAGE: Final = "DELETE FROM message WHERE n = ?"
_IS_USED: Final = (
    "SELECT 1 FROM queue WHERE id = ?1 AND dead_count > 0 UNION ALL"
    " SELECT 1 FROM lease l JOIN message m ON m.n = l.n WHERE m.queue = ?1 LIMIT 1"
)
_FORGET_OWN: Final = "DELETE FROM own WHERE queue = ?"
_FORGET_QUEUE: Final = "DELETE FROM queue WHERE id = ?"

Row = tuple[str, str, str, str, str]


def declare(
    tx: sqlite3.Connection, queues: Sequence[str], bindings: Sequence[Binding], run: str | None
) -> None:
    """See `Broker.declare`. Of a run that is over, the queues stay as they are."""
    names = list(dict.fromkeys([*queues, *(each.queue for each in bindings)]))
    if run is not None:
        _check_own(tx, names, run)
    exchanges = {each.exchange: None for each in bindings}
    types = [tx.execute(_TYPE, (exchange,)).fetchone() for exchange in exchanges]
    if (reason := clash(bindings, dict(filter(None, types)))) is not None:
        raise ImproperlyConfigured(reason)
    tx.executemany(ADD_QUEUE, [(name,) for name in names])
    if bindings:
        tx.executemany(ADD_BINDING, map(row, bindings))
    if run is not None:
        tx.executemany(_ADD_OWN, [(run, name) for name in names])


def unbind(tx: sqlite3.Connection, bindings: Iterable[Binding]) -> int:
    """Forget bindings; how many there were."""
    return sum(tx.execute(_UNBIND, row(each)).rowcount for each in bindings)


def bindings(tx: sqlite3.Connection) -> tuple[Binding, ...]:
    """All of them, by exchange and queue."""
    return tuple(map(binding_of, tx.execute(_ALL)))


def row(binding: Binding) -> Row:
    """A binding as its table has it."""
    arguments = json.dumps(binding.arguments)
    return binding.exchange, binding.type, binding.queue, binding.routing_key, arguments


def end(work: Work, run: str, options: BrokerOptions) -> None:
    """End the queues that are a run's own; it holds nothing any more."""
    work.tx.execute(_END_BINDINGS, (run,))
    if work.tx.execute(_END, (run,)).rowcount:
        sweep(work, options)


def sweep(work: Work, options: BrokerOptions) -> None:
    """Drop what waits in queues that have ended, bury what had begun in them, and forget those
    that hold nothing any more."""
    tx = work.tx
    for (queue,) in tx.execute(_ENDED).fetchall():
        for n, detail in tx.execute(_BEGUN, (queue, LOST_END)).fetchall():
            bury(work, n, Dead(detail, "WorkerLostError"), options)
            tx.execute(_FORGET_MESSAGE, (n,))
        purge(tx, queue)
        tx.execute(_FORGET_READY, (queue,))
        if tx.execute(_IS_USED, (queue,)).fetchone() is None:
            tx.execute(_FORGET_OWN, (queue,))
            tx.execute(_FORGET_QUEUE, (queue,))


def _check_own(tx: sqlite3.Connection, names: Sequence[str], run: str) -> None:
    if tx.execute(_LIVES, (run,)).fetchone() is None:
        raise RunLost(f"run {run!r} is not known to this broker (any more)")
    for name in names:
        known = tx.execute(_OWN, (name,)).fetchone()
        if known not in (None, (1, None), (1, run)):
            raise ImproperlyConfigured(taken(name, run))
