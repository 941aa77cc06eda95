"""Runs and owners: made known, kept alive, taken for dead, ended."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from umbel.brokers.sqlite import routing
from umbel.brokers.sqlite.settling import end_leases, settle
from umbel.brokers.sqlite.work import Work
from umbel.exceptions import RunLost
from umbel.message import Loss, Lost, Settlement
from umbel.ports import OUTAGE, Beat, BrokerOptions, RunRecord

_RUN: Final = "SELECT n, dead FROM run WHERE run = ?"
_LIVING_RUN: Final = "SELECT n, info FROM run WHERE run = ? AND dead = 0"
_ADD_RUN: Final = "INSERT INTO run (run, info, seen_at, lease_time) VALUES (?, ?, ?, ?)"
_SEE_RUN: Final = "UPDATE run SET info = ?, seen_at = ?, lease_time = ? WHERE n = ?"
_OWNER_GONE: Final = "SELECT gone FROM owner WHERE name = ?"
_ADD_OWNER: Final = "INSERT OR IGNORE INTO owner (name, run) VALUES (?, ?)"
_OWNER: Final = (
    "SELECT o.n, r.info FROM owner o JOIN run r ON r.n = o.run WHERE o.name = ? AND o.gone = 0"
)
_LAST_BEAT: Final = "SELECT max(beat_at) FROM run"
_SHORTEST_LEASE: Final = "SELECT min(lease_time) FROM run WHERE dead = 0"
_RENEW_ALL: Final = "UPDATE run SET seen_at = ?1 WHERE dead = 0"
_CAP: Final = "UPDATE run SET beat_at = ?1 WHERE beat_at > ?1"
_BEAT: Final = "UPDATE run SET seen_at = ?1, beat_at = ?1 WHERE n = ?2"
_SILENT: Final = (
    "SELECT n, run, info, seen_at FROM run WHERE dead = 0 AND ?1 - seen_at > lease_time ORDER BY n"
)
_FIRST_DEATH: Final = "SELECT min(seen_at + lease_time) FROM run WHERE dead = 0 AND n <> ?"
_OWNERS: Final = "SELECT n, begin FROM owner WHERE run = ? AND gone = 0 ORDER BY n"
_BEGUN: Final = "SELECT lease FROM lease WHERE owner = ? AND lease <= ?"
_GONE: Final = "UPDATE owner SET gone = 1, reply = NULL WHERE n = ?"
_FORGET_OWNERS: Final = "DELETE FROM owner WHERE n <= ? AND gone = 1"
_DELETE_OWNERS: Final = "DELETE FROM owner WHERE run = ?"
_DEAD: Final = "UPDATE run SET dead = 1, info = x'' WHERE n = ?"
_FORGET: Final = "DELETE FROM run WHERE dead = 1 AND seen_at < ?"
_ALIVE: Final = "SELECT run, info, seen_at FROM run WHERE dead = 0 ORDER BY n"

REMEMBERED: Final = 7 * 86_400.0
"""Seconds for which a dead run is still told that it is dead."""
OWNERS_REMEMBERED: Final = 1000
"""Owners since which an abandoned one is still refused when it enlists again."""


def enlist(work: Work, run: str, owner: str | None, info: bytes, options: BrokerOptions) -> None:
    """See `Broker.enlist`."""
    tx = work.tx
    row = tx.execute(_RUN, (run,)).fetchone()
    gone = None if owner is None else tx.execute(_OWNER_GONE, (owner,)).fetchone()
    if (row is not None and row[1]) or (gone is not None and gone[0]):
        raise RunLost(f"{owner or run!r} was ended in this broker; start a new run")
    if row is None:
        key = tx.execute(_ADD_RUN, (run, info, work.now, options.lease_time)).lastrowid
    else:
        key = row[0]
        tx.execute(_SEE_RUN, (info, work.now, options.lease_time, key))
    if owner is not None:
        tx.execute(_ADD_OWNER, (owner, key))


def beat(work: Work, run: str, version: int, options: BrokerOptions) -> Beat:
    """See `Broker.beat`. Each run counts with the lease time that it was enlisted with."""
    tx = work.tx
    row = tx.execute(_RUN, (run,)).fetchone()
    if row is None or row[1]:
        return Beat(alive=False, revocations=version)
    _forgive_an_outage(work)
    tx.execute(_BEAT, (work.now, row[0]))
    reclaimed = 0
    for key, name, info, seen_at in tx.execute(_SILENT, (work.now,)).fetchall():
        detail = f"worker run {name} gave no sign of life for {work.now - seen_at:.0f} s"
        reclaimed += _end_run(work, key, Lost(Loss.WORKER, detail, info))
        routing.end(work, name, options)
    routing.sweep(work, options)
    tx.execute(_FORGET, (work.now - REMEMBERED,))
    peers = tuple(record for record in alive(tx) if record.run != run)
    first = tx.execute(_FIRST_DEATH, (row[0],)).fetchone()[0]
    next_death_in = None if first is None else first - work.now
    return Beat(True, version, peers, reclaimed, next_death_in, _heartbeat(tx))


def abandon(
    work: Work,
    owner: str,
    decided: Sequence[Settlement],
    running: Mapping[int, Lost],
    options: BrokerOptions,
) -> None:
    """See `Broker.abandon`."""
    row = work.tx.execute(_OWNER, (owner,)).fetchone()
    if row is None:
        return
    key, info = row
    _, refused = settle(work, key, decided, options)
    aside = {**running, **{lease: Lost(Loss.PROCESS, sentence) for lease, sentence in refused}}
    end_leases(work, key, {lease: replace(lost, info=info) for lease, lost in aside.items()})
    work.tx.execute(_GONE, (key,))
    work.tx.execute(_FORGET_OWNERS, (key - OWNERS_REMEMBERED,))


def leave(work: Work, run: str, options: BrokerOptions) -> None:
    """See `Broker.leave`."""
    row = work.tx.execute(_LIVING_RUN, (run,)).fetchone()
    if row is not None:
        detail = f"worker run {run} ended without settling this"
        _end_run(work, row[0], Lost(Loss.WORKER, detail, row[1]))
        routing.end(work, run, options)


def alive(tx: sqlite3.Connection) -> tuple[RunRecord, ...]:
    """All runs that are taken for alive, oldest first."""
    return tuple(RunRecord(*row) for row in tx.execute(_ALIVE))


def _forgive_an_outage(work: Work) -> None:
    """Renew all runs where none could beat, or where time itself can't be trusted."""
    tx = work.tx
    last = tx.execute(_LAST_BEAT).fetchone()[0]
    if last is None or work.now < last or work.now - last > OUTAGE * _heartbeat(tx):
        tx.execute(_RENEW_ALL, (work.now,))
        tx.execute(_CAP, (work.now,))


def _heartbeat(tx: sqlite3.Connection) -> float:
    """The shortest of the living runs'; there is one."""
    shortest: float = tx.execute(_SHORTEST_LEASE).fetchone()[0]
    return BrokerOptions(lease_time=shortest).heartbeat


def _end_run(work: Work, key: int, lost: Lost) -> int:
    """What was held goes back, what was begun is set aside; how many leases there were."""
    tx = work.tx
    ended = 0
    for owner, begin in tx.execute(_OWNERS, (key,)).fetchall():
        begun = [row[0] for row in tx.execute(_BEGUN, (owner, begin))]
        ended += end_leases(work, owner, dict.fromkeys(begun, lost))
    tx.execute(_DELETE_OWNERS, (key,))
    tx.execute(_DEAD, (key,))
    return ended
