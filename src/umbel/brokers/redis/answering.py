"""Answers: lists that Kombu's bindings lead to, each of one listener, who may be a stranger.

A listener is bound as Celery's clients bind their queues of replies, so that workers of both kinds
answer both. What lies in such a list goes by itself, should its listener be gone.
"""

from __future__ import annotations

import time
from typing import Final

from umbel.brokers.redis import routes
from umbel.brokers.redis.server import Server
from umbel.brokers.redis.waiting import Waiters
from umbel.exchanges import Binding

LONGEST: Final = 3600.0
"""Seconds after which a listener that wasn't closed is cleared away by the next one."""
KEPT: Final = 60.0
"""Seconds for which an answer waits for its listener."""


def answer(server: Server, exchange: str, routing_key: str, payload: bytes) -> None:
    """See `Broker.answer`."""
    script = server.scripts.answer
    server.run(script, exchange, routing_key, payload, int(KEPT * 1000))


class RedisListener:
    """A listener to answers; see `umbel.ports.Subscription`."""

    def __init__(self, server: Server, waiters: Waiters, exchange: str, routing_key: str) -> None:
        self._server = server
        self._waiters = waiters
        self._key = routing_key
        queue = f"{routing_key}.{exchange}"
        self._list = server.keys.list(queue, 0)
        member = routes.kombu_member(server.keys, Binding(queue, exchange, "direct", routing_key))
        self._bound = exchange, member
        self._closed = False
        until = repr(server.clock.wall() + LONGEST)
        server.run(server.scripts.listen, server.now, until, *self._bound)

    def get(self, timeout: float) -> tuple[str, bytes] | None:
        deadline = time.monotonic() + timeout
        while not self._closed:
            payload = self._server.call("RPOP", self._list)
            left = deadline - time.monotonic()
            if payload is not None:
                return self._key, payload
            if left <= 0:
                break
            self._waiters.wait_for(self._list, left)
        return None

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._server.run(self._server.scripts.unlisten, *self._bound, self._list)
