"""What strangers publish to fanout exchanges: heard on Kombu's channels, stored in our queues.

Kombu has no queue for it: whoever listens at that moment hears it. Each of our workers listens for
the queues that it consumes, so a queue that several consume is told by several; the first of them
stores.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Final

from umbel.brokers.redis.routing import Router
from umbel.brokers.redis.server import Server
from umbel.brokers.redis.waiting import RedisSubscription
from umbel.codec import unpack
from umbel.message import Unreadable
from umbel.ports import Subscription
from umbel.protocol import priority_of

REMEMBERED: Final = 600.0
"""Seconds by which two workers may hear the same."""
_OURS: Final = b'{"umbel":'


def subscription(server: Server, exchanges: Sequence[str]) -> RedisSubscription:
    """Hears what is published to fanout exchanges, by whichever key."""
    database = server.link.place.options.db
    names = {
        pattern: exchange
        for exchange in exchanges
        for pattern in server.keys.patterns(database, exchange)
    }
    return RedisSubscription(server.link, names)


def relay(server: Server, router: Router, queues: Sequence[str]) -> RedisRelay | None:
    """See `Broker.relay`."""
    led: dict[str, list[str]] = {}
    for each in router.bindings():
        if each.type == "fanout" and each.queue in queues:
            led.setdefault(each.exchange, []).append(each.queue)
    return RedisRelay(server, led, subscription(server, list(led))) if led else None


class RedisRelay:
    """See `umbel.ports.Relay`."""

    def __init__(
        self, server: Server, led: Mapping[str, Sequence[str]], heard: Subscription
    ) -> None:
        self._server = server
        self._led = led
        self._subscription = heard
        self._pending: tuple[str, bytes] | None = None

    def carry(self, timeout: float) -> None:
        if self._pending is None:
            self._pending = self._subscription.get(timeout)
        if self._pending is not None:
            # If this fails, the next call tries it again: nobody tells us twice.
            self._store(*self._pending)
            self._pending = None

    def _store(self, exchange: str, raw: bytes) -> None:
        if raw.startswith(_OURS):
            return  # it was stored when it was published
        message = unpack(raw)
        priority = 0 if isinstance(message, Unreadable) else priority_of(message)
        self._server.run(
            self._server.scripts.relay,
            hashlib.sha256(raw).hexdigest(),
            int(REMEMBERED * 1000),
            self._server.keys.step(priority),
            raw,
            *dict.fromkeys(self._led[exchange]),
        )

    def close(self) -> None:
        self._subscription.close()
