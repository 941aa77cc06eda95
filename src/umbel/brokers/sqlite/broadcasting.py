"""Broadcasts: a table of the last minute, read by whoever subscribed before."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from typing import Final

from umbel.brokers.sqlite.connection import Database
from umbel.brokers.sqlite.doorbell import ANY, Doorbells

KEPT: Final = 60.0
"""Seconds after which a subscriber that didn't listen has missed a broadcast."""

_ADD: Final = "INSERT INTO broadcast (channel, payload, sent_at) VALUES (?, ?, ?)"
_PRUNE: Final = "DELETE FROM broadcast WHERE n <= ? AND sent_at < ?"
_LAST: Final = "SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'broadcast'), 0)"
_NEXT: Final = "SELECT n, channel, payload FROM broadcast WHERE n > ? ORDER BY n"
_PRUNE_EVERY: Final = 64
_LOOK_AGAIN: Final = 1.0


def tell(tx: sqlite3.Connection, channel: str, payload: bytes, now: float) -> None:
    """Keep a broadcast for the present subscribers."""
    n = tx.execute(_ADD, (channel, payload, now)).lastrowid or 0
    if n % _PRUNE_EVERY == 0:
        tx.execute(_PRUNE, (n - _PRUNE_EVERY, now - KEPT))


class SqliteSubscription:
    """A listener to some channels; see `umbel.ports.Subscription`."""

    def __init__(self, database: Database, bells: Doorbells, channels: Sequence[str]) -> None:
        self._database = database
        self._bells = bells
        self._channels = frozenset(channels)
        self._closed = False
        with database.read() as tx:
            self._last: int = tx.execute(_LAST).fetchone()[0]

    def get(self, timeout: float) -> tuple[str, bytes] | None:
        deadline = time.monotonic() + timeout
        found = self._next()
        if found is not None or timeout <= 0:
            return found
        with self._bells.waiting("s", ANY) as bell:
            while not self._closed:
                found = self._next()
                left = deadline - time.monotonic()
                if found is not None or left <= 0:
                    return found
                bell.sleep(min(left, _LOOK_AGAIN))
        return None

    def close(self) -> None:
        self._closed = True
        self._bells.ring_own()

    def _next(self) -> tuple[str, bytes] | None:
        if self._closed:
            return None
        with self._database.read() as tx:
            for n, channel, payload in tx.execute(_NEXT, (self._last,)):
                self._last = n
                if channel in self._channels:
                    return channel, payload
        return None
