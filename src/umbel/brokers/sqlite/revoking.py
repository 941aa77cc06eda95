"""The log of revocations, and putting revoked messages first."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Final

from umbel.brokers.sqlite.connection import sought
from umbel.brokers.sqlite.place import place
from umbel.brokers.sqlite.turning import VERSION
from umbel.brokers.sqlite.work import Work
from umbel.ports import Revocation

KEPT: Final = 3 * 3600.0
"""Seconds that an entry is kept at least."""
HEARD_KEPT: Final = 3600.0
"""Seconds for which a command that was heard isn't carried out again."""

_VERSION: Final = f"SELECT coalesce({VERSION}, 0)"
_ADD: Final = "INSERT INTO revocation (task_id, terminate, signal, revoked_at) VALUES (?, ?, ?, ?)"
_FORGET_HEARD: Final = "DELETE FROM heard WHERE heard_at <= ?"
_HEAR: Final = "INSERT OR IGNORE INTO heard (name, heard_at) VALUES (?, ?)"
_SINCE: Final = (
    "SELECT task_id, terminate, signal FROM revocation WHERE version > ? ORDER BY version"
)
_DELETE: Final = "DELETE FROM revocation WHERE task_id = ?"
_RAISE_VERSION: Final = "UPDATE sqlite_sequence SET seq = seq + 1 WHERE name = 'revocation'"
_WAITING: Final = (
    "SELECT n, queue, priority, front, due_at FROM message WHERE id = ? AND loss IS NULL ORDER BY n"
)
_TAKE_READY: Final = "DELETE FROM ready WHERE queue = ? AND place = ?"
_TAKE_DELAYED: Final = "DELETE FROM delayed WHERE due_at = ? AND n = ?"
_FRONT: Final = "UPDATE message SET front = 1, due_at = NULL WHERE n = ?"
_PRUNE: Final = (
    "DELETE FROM revocation WHERE revoked_at < ?"
    " AND NOT EXISTS (SELECT 1 FROM message WHERE message.id = revocation.task_id)"
)


def version(tx: sqlite3.Connection) -> int:
    """The version of the log."""
    found: int = tx.execute(_VERSION).fetchone()[0]
    return found


def revoke(work: Work, revocations: Sequence[Revocation], once: str) -> frozenset[str]:
    """See `Coordinator.revoke`."""
    if once and not _is_first(work, once):
        return frozenset()
    work.tx.executemany(_ADD, [(r.task_id, r.terminate, r.signal, work.now) for r in revocations])
    work.rings.everyone = True
    ids = dict.fromkeys(revocation.task_id for revocation in revocations)
    return frozenset(task_id for task_id in ids if _expedite(work, task_id))


def since(tx: sqlite3.Connection, known: int) -> tuple[Revocation, ...]:
    """The entries that were added after version `known`, oldest first."""
    rows = tx.execute(_SINCE, (known,))
    return tuple(Revocation(task_id, bool(stop), signal) for task_id, stop, signal in rows)


def unrevoke(work: Work, task_ids: Iterable[str]) -> None:
    """Take ids out of the log. The version rises, so that its readers read again."""
    if work.tx.executemany(_DELETE, [(sought(task_id),) for task_id in task_ids]).rowcount > 0:
        work.tx.execute(_RAISE_VERSION)


def prune(work: Work) -> None:
    """Forget what is old and can't be met any more."""
    work.tx.execute(_PRUNE, (work.now - KEPT,))


def _is_first(work: Work, once: str) -> bool:
    """Whether nobody has come with this name before."""
    work.tx.execute(_FORGET_HEARD, (work.now - HEARD_KEPT,))
    return work.tx.execute(_HEAR, (once, work.now)).rowcount > 0


def _expedite(work: Work, task_id: str) -> bool:
    """Put what waits or is due later first in its queue; whether there was any."""
    found = False
    for n, queue, priority, front, due_at in work.tx.execute(_WAITING, (task_id,)).fetchall():
        if due_at is not None:
            taken = work.tx.execute(_TAKE_DELAYED, (due_at, n)).rowcount
        else:
            old = place(n, priority, front=front)
            taken = work.tx.execute(_TAKE_READY, (queue, old)).rowcount
        if taken:
            found = True
            work.tx.execute(_FRONT, (n,))
            work.make_ready([(queue, place(n, priority, front=True), n)])
    return found
