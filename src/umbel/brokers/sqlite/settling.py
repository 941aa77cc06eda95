"""The ends of deliveries: settlements, giving back, setting aside."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from umbel.brokers.sqlite.dead import bury
from umbel.brokers.sqlite.place import place
from umbel.brokers.sqlite.work import Work, pack_all
from umbel.message import How, Lost, Result, Settlement
from umbel.ports import BrokerOptions

_HELD: Final = "SELECT lease, n FROM lease WHERE owner = ?"
_END_LEASE: Final = "DELETE FROM lease WHERE owner = ? AND lease = ?"
_END_LEASES: Final = "DELETE FROM lease WHERE owner = ?"
_DELETE: Final = "DELETE FROM message WHERE n = ?"
_STAND: Final = "SELECT queue, priority, front, loss IS NOT NULL FROM message WHERE n = ?"
_HISTORY: Final = "SELECT queue, priority, history FROM message WHERE n = ?"
_REQUEUE: Final = (
    "UPDATE message SET n = ?, due_at = ?, front = 0, redeliveries = redeliveries + 1,"
    " redelivered = 1, loss = NULL, detail = NULL, info = NULL, history = ? WHERE n = ?"
)
_RELEASE_BEGUN: Final = (
    "UPDATE message SET redelivered = 1, loss = NULL, detail = NULL, info = NULL WHERE n = ?"
)
_RELEASE_UNKNOWN: Final = (
    "UPDATE message SET unknown_since_at = coalesce(unknown_since_at, ?) WHERE n = ?"
)
_DELAY: Final = "UPDATE message SET due_at = ? WHERE n = ?"
_REDELIVER: Final = "UPDATE message SET redelivered = 1 WHERE n = ?"
_SET_ASIDE: Final = (
    "UPDATE message SET redelivered = 1, loss = ?, detail = ?, info = ?"
    " WHERE n = ? AND loss IS NULL"
)
_KEEP_RESULT: Final = (
    "INSERT INTO result (task_id, state, meta, expires_at) VALUES (?1, ?2, ?3, ?4)"
    " ON CONFLICT (task_id) DO UPDATE SET state = ?2, meta = ?3, expires_at = ?4"
    " WHERE state <> 'SUCCESS' OR expires_at <= ?5"
)
_HISTORY_LENGTH: Final = 50

Refused = list[tuple[int, str]]


def settle(
    work: Work, owner: int, settlements: Sequence[Settlement], options: BrokerOptions
) -> tuple[list[int], Refused]:
    """Apply what `owner` still holds; (the lost leases, the refused ones with their reason)."""
    held = held_by(work, owner)
    lost: list[int] = []
    refused: Refused = []
    ended: list[tuple[int, int]] = []
    gone: list[tuple[int]] = []
    results: list[Result] = []
    for settlement in settlements:
        n = held.get(settlement.lease)
        if n is None:
            lost.append(settlement.lease)
            continue
        if settlement.follow_ups:
            reasons = filter(None, map(work.unroutable, settlement.follow_ups))
            if (reason := next(reasons, None)) is not None:
                refused.append((settlement.lease, reason))
                continue
            work.store(pack_all(settlement.follow_ups))
        del held[settlement.lease]
        ended.append((owner, settlement.lease))
        results += settlement.results
        if settlement.how is How.REQUEUE:
            _requeue(work, n, settlement)
        elif settlement.how is How.RELEASE:
            _release(work, n, settlement)
        else:
            if settlement.dead is not None:
                bury(work, n, settlement.dead, options)
            gone.append((n,))
    work.tx.executemany(_END_LEASE, ended)
    work.tx.executemany(_DELETE, gone)
    keep_results(work, results)
    return lost, refused


def held_by(work: Work, owner: int) -> dict[int, int]:
    """Message numbers by lease."""
    return dict(work.tx.execute(_HELD, (owner,)))


def keep_results(work: Work, results: Sequence[Result]) -> None:
    """Store results, except over a SUCCESS that has not expired."""
    if results:
        work.tx.executemany(
            _KEEP_RESULT, [(r.task_id, r.state, r.meta, r.expires_at, work.now) for r in results]
        )
        work.rings.results.extend(result.task_id for result in results)


def end_leases(work: Work, owner: int, running: Mapping[int, Lost]) -> int:
    """Set `running` aside, give all others back; how many leases there were."""
    held = held_by(work, owner)
    aside = [
        (lost.loss, lost.detail, lost.info, held[lease])
        for lease, lost in running.items()
        if lease in held
    ]
    work.tx.executemany(_SET_ASIDE, aside)
    work.tx.executemany(_REDELIVER, [(n,) for n in held.values()])
    for n in held.values():
        _put_back(work, n, 0.0)
    work.tx.execute(_END_LEASES, (owner,))
    return len(held)


def _requeue(work: Work, n: int, settlement: Settlement) -> None:
    queue, priority, text = work.tx.execute(_HISTORY, (n,)).fetchone()
    history = json.loads(text or "[]")
    history.append([work.now, settlement.note or "delivered again"])
    due_at = work.now + settlement.delay if settlement.delay > 0 else None
    last = work.number()
    work.tx.execute(_REQUEUE, (last, due_at, json.dumps(history[-_HISTORY_LENGTH:]), n))
    if due_at is None:
        work.make_ready([(queue, place(last, priority), last)])
    else:
        work.delay([(due_at, last, queue)])


def _release(work: Work, n: int, settlement: Settlement) -> None:
    if settlement.redelivered:
        # A burial that decides "run it again, uncounted" ends here. One that is only given
        # back doesn't say `redelivered`, and stays a burial.
        work.tx.execute(_RELEASE_BEGUN, (n,))
    if settlement.unknown:
        work.tx.execute(_RELEASE_UNKNOWN, (work.now, n))
    _put_back(work, n, settlement.delay)


def _put_back(work: Work, n: int, delay: float) -> None:
    """To its old place, or until its time; what awaits burial goes on awaiting it."""
    queue, priority, front, lost = work.tx.execute(_STAND, (n,)).fetchone()
    if delay > 0 and not lost:
        due_at = work.now + delay
        work.tx.execute(_DELAY, (due_at, n))
        work.delay([(due_at, n, queue)])
    else:
        work.make_ready([(queue, place(n, priority, lost=lost, front=front), n)])
