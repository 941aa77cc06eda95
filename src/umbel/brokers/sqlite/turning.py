"""A turn: settle, mark as begun, take what is due, lease; and the cheap turn that does nothing."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from typing import Any, Final

from umbel.brokers.sqlite.place import LOST_END, place
from umbel.brokers.sqlite.settling import settle
from umbel.brokers.sqlite.work import Work, queue_id
from umbel.codec import unpack
from umbel.message import Delivery, Loss, Lost, Settlement
from umbel.ports import BrokerOptions, Turn

VERSION: Final = "(SELECT seq FROM sqlite_sequence WHERE name = 'revocation')"
_OWNER: Final = (
    f"SELECT n, begin, last_lease, turn, reply, coalesce({VERSION}, 0)"
    " FROM owner WHERE name = ? AND gone = 0"
)
_END_TURN: Final = "UPDATE owner SET begin = ?, last_lease = ?, turn = ?, reply = ? WHERE n = ?"

_IS_DUE: Final = "SELECT 1 FROM delayed WHERE due_at <= ? LIMIT 1"
_IS_READY: Final = "SELECT 1 FROM ready WHERE queue = ? AND place < ? LIMIT 1"
_DUE: Final = (
    "SELECT d.due_at, d.n, d.queue, m.priority, m.front, m.loss IS NOT NULL"
    " FROM delayed d JOIN message m ON m.n = d.n WHERE d.due_at <= ? ORDER BY d.due_at, d.n LIMIT ?"
)
_RENUMBER: Final = "UPDATE message SET n = ?, due_at = NULL WHERE n = ?"
_DELETE_DELAYED: Final = "DELETE FROM delayed WHERE due_at = ? AND n = ?"
_DUE_AT_ONCE: Final = 1000

_NEXT: Final = (
    "SELECT place, n, queue FROM ready WHERE queue = ? AND place < ? ORDER BY place LIMIT ?"
)
_TAKE: Final = "DELETE FROM ready WHERE queue = ? AND place <= ?"
_LEASE: Final = "INSERT INTO lease (owner, lease, n) VALUES (?, ?, ?)"
_HANDED_OUT: Final = (
    "SELECT l.lease, q.name, m.blob, m.redeliveries, m.redelivered, m.unknown_since_at,"
    " m.loss, m.detail, m.info"
    " FROM lease l JOIN message m ON m.n = l.n JOIN queue q ON q.id = m.queue"
    " WHERE l.owner = ? AND l.lease >= ? ORDER BY l.lease"
)

_PLACES_END: Final = 2**62
"""Above every place."""

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Request:
    """The arguments of `Broker.turn`."""

    owner: str
    number: int
    queues: Sequence[str]
    settlements: Sequence[Settlement]
    begin: int
    limit: int
    lost_only: bool

    @property
    def places_end(self) -> int:
        return LOST_END if self.lost_only else _PLACES_END


@dataclass(slots=True)
class Reply:
    """A turn whose messages are still blobs, so that they are read after the commit."""

    rows: list[Row]
    lost: Sequence[int]
    refused: Iterable[tuple[int, str]]
    version: int

    def turn(self) -> Turn:
        return Turn(
            deliveries=tuple([_delivery(row) for row in self.rows]),
            lost=frozenset(self.lost),
            refused=tuple((lease, reason) for lease, reason in self.refused),
            revocations=self.version,
        )


class OwnerUnknown(Exception):
    """No living owner has this name."""


def check_owner(tx: sqlite3.Connection, request: Request) -> None:
    """Raise `OwnerUnknown` where the owner isn't alive."""
    _owner(tx, request)


def idle(
    tx: sqlite3.Connection, queue_ids: dict[str, int], request: Request, now: float
) -> Turn | None:
    """The reply, where the turn would change nothing; None where it needs the write lock.

    Such a turn isn't written down.
    """
    _, begin, _, last, _, version = _owner(tx, request)
    if request.begin > begin or 0 < request.number <= last:
        return None
    if request.limit > 0 and (
        is_due(tx, now) or is_ready(tx, queue_ids, request.queues, request.places_end)
    ):
        return None
    return Turn(revocations=version)


def is_ready(
    tx: sqlite3.Connection,
    queue_ids: dict[str, int],
    queues: Sequence[str],
    places_end: int = _PLACES_END,
) -> bool:
    """Whether something waits in one of the queues."""
    for name in queues:
        queue = queue_id(tx, queue_ids, name)
        if queue is not None and tx.execute(_IS_READY, (queue, places_end)).fetchone():
            return True
    return False


def is_due(tx: sqlite3.Connection, now: float) -> bool:
    """Whether a delayed message's time has come."""
    return tx.execute(_IS_DUE, (now,)).fetchone() is not None


def turn(work: Work, request: Request, options: BrokerOptions) -> Reply:
    """One whole turn within a transaction. Raises `OwnerUnknown`."""
    tx = work.tx
    owner, begin, last_lease, last, text, version = _owner(tx, request)
    if 0 < request.number <= last:
        return _again(tx, owner, request, last, text, version)
    lost: list[int] = []
    refused: list[tuple[int, str]] = []
    if request.settlements:
        lost, refused = settle(work, owner, request.settlements, options)
    first = last_lease + 1
    if request.limit > 0:
        promote(work)
        last_lease = _lease(work, owner, last_lease, request)
    rows = tx.execute(_HANDED_OUT, (owner, first)).fetchall() if last_lease >= first else []
    if request.number:
        last, text = request.number, json.dumps([first, lost, refused])
    tx.execute(_END_TURN, (max(begin, request.begin), last_lease, last, text, owner))
    return Reply(rows, lost, refused, version)


def promote(work: Work) -> None:
    """Move what has fallen due to the back of its queue, in the order of due times."""
    if not is_due(work.tx, work.now):
        return
    due = work.tx.execute(_DUE, (work.now, _DUE_AT_ONCE)).fetchall()
    numbers = [work.number() for _ in due]
    work.tx.executemany(_DELETE_DELAYED, [(row[0], row[1]) for row in due])
    work.tx.executemany(_RENUMBER, [(n, row[1]) for n, row in zip(numbers, due, strict=True)])
    work.make_ready(
        [
            (queue, place(n, priority, lost=lost, front=front), n)
            for n, (_, _, queue, priority, front, lost) in zip(numbers, due, strict=True)
        ]
    )


def _owner(tx: sqlite3.Connection, request: Request) -> Row:
    row: Row | None = tx.execute(_OWNER, (request.owner,)).fetchone()
    if row is None:
        raise OwnerUnknown
    return row


def _again(
    tx: sqlite3.Connection, owner: int, request: Request, last: int, text: str, version: int
) -> Reply:
    """The last turn's reply once more."""
    if request.number < last:
        raise ValueError(
            f"turn {request.number} of owner {request.owner!r} came after turn {last}; "
            "the number of each new turn must be higher than the last one's"
        )
    first, lost, refused = json.loads(text)
    return Reply(tx.execute(_HANDED_OUT, (owner, first)).fetchall(), lost, refused, version)


def _lease(work: Work, owner: int, last_lease: int, request: Request) -> int:
    """Lease the next messages of the queues taken together; the last lease's number."""
    ids = {work.queue_id(name) for name in request.queues} - {None}
    waiting: list[list[tuple[int, int, int]]] = [
        work.tx.execute(_NEXT, (queue, request.places_end, request.limit)).fetchall()
        for queue in ids
    ]
    taken = list(islice(merge(*waiting), request.limit))
    if not taken:
        return last_lease
    # What was taken from one queue is a run of its first places.
    work.tx.executemany(_TAKE, {queue: (queue, last) for last, _, queue in taken}.values())
    work.tx.executemany(
        _LEASE, [(owner, lease, row[1]) for lease, row in enumerate(taken, last_lease + 1)]
    )
    return last_lease + len(taken)


def _delivery(row: Row) -> Delivery:
    lease, queue, blob, redeliveries, redelivered, unknown_since_at, loss, detail, info = row
    return Delivery(
        lease=lease,
        queue=queue,
        message=unpack(blob),
        redeliveries=redeliveries,
        redelivered=bool(redelivered),
        unknown_since_at=unknown_since_at,
        lost=None if loss is None else Lost(Loss(loss), detail, info),
    )
