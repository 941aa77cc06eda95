"""Queues that Celery's workers use too: giving back what their dead held, and what our keys hold.

Celery's workers keep what they hold in ``unacked``. What has lain there for longer than the
visibility timeout goes back to the front of its queue, under the mutex that they use for it.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from umbel.brokers.redis import forms
from umbel.brokers.redis.routing import Router
from umbel.brokers.redis.server import Server
from umbel.codec import pack, unpack
from umbel.exceptions import Unroutable
from umbel.message import MAX_PRIORITY, Message, Posting
from umbel.redisconnecting import Argument

logger = logging.getLogger("umbel.worker")

LOOK: Final = 10.0
"""Seconds between two looks for what dead workers of Celery's held."""
MUTEX_KEPT: Final = 30.0
"""Seconds that the mutex outlives whoever died with it."""
CHUNK: Final = 100
"""Messages that one script moves, so that nobody waits long."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """What stands in ``unacked`` under a tag: an envelope, and where it goes. An empty envelope
    stands for none."""

    tag: bytes
    envelope: bytes = b""
    lists: Sequence[str] = ()


class Restorer:
    """Looks after ``unacked``. What can't be put back stays there, and is told of once."""

    def __init__(self, server: Server, router: Router) -> None:
        self._server = server
        self._router = router
        self._told: set[bytes] = set()

    def restore(self) -> int:
        """Put back what has been held for too long; how many messages."""
        server, names = self._server, self._server.keys.unacked
        mutex = server.keys.prefix + names.mutex
        before = server.clock.wall() - names.visibility_timeout
        if not self._overdue(before, 0):
            return 0
        token = uuid.uuid4().hex
        if not server.call("SET", mutex, token, "NX", "PX", int(MUTEX_KEPT * 1000)):
            return 0
        try:
            return self._restore(mutex, token, before)
        finally:
            server.run(server.scripts.unlock, mutex, token)

    def _overdue(self, before: float, skip: int) -> Sequence[bytes]:
        index = self._server.keys.prefix + self._server.keys.unacked.index
        # The newest first, so that the oldest is the next to be served.
        tags: Sequence[bytes] = self._server.call(
            "ZREVRANGEBYSCORE", index, repr(before), "-inf", "LIMIT", skip, CHUNK
        )
        return tags

    def _restore(self, mutex: str, token: str, before: float) -> int:
        server, names = self._server, self._server.keys.unacked
        messages, index = server.keys.prefix + names.messages, server.keys.prefix + names.index
        restored, stuck = 0, 0
        while tags := self._overdue(before, stuck):
            stored = server.call("HMGET", messages, *tags)
            entries = [self._entry(*each) for each in zip(tags, stored, strict=True)]
            able = [each for each in entries if each is not None]
            stuck += len(entries) - len(able)
            arguments: list[Argument] = [token, mutex, messages, index, repr(before)]
            for each in able:
                arguments += [each.tag, each.envelope, len(each.lists), *each.lists]
            done = server.run(server.scripts.restore, *arguments)
            if done < 0:
                break
            restored += done
        if restored:
            logger.warning(
                "Put back %d messages that workers of Celery's had held for longer than the "
                "visibility timeout of %g s.",
                restored,
                names.visibility_timeout,
            )
        return restored

    def _entry(self, tag: bytes, stored: bytes | None) -> _Entry | None:
        """None for what can't be put back."""
        if stored is None:
            return _Entry(tag)
        try:
            envelope, exchange, routing_key = json.loads(stored)
            message = unpack(json.dumps(envelope).encode())
            if not isinstance(message, Message):
                raise ValueError(message.reason)
            envelope["headers"]["redelivered"] = True
            envelope["properties"].setdefault("delivery_info", {})["redelivered"] = True
            lists = self._lists(message, exchange or "", routing_key or "")
        except (ValueError, TypeError, KeyError, AttributeError, Unroutable) as error:
            self._tell(tag, error)
            return None
        return _Entry(tag, json.dumps(envelope).encode(), lists)

    def _lists(self, message: Message, exchange: str, routing_key: str) -> Sequence[str]:
        """Where Kombu puts it. It needs no declaration for a queue that is named by itself."""
        keys = self._server.keys
        step = keys.step(_priority(message))
        if not exchange:
            return [keys.list(routing_key, step)]
        posting = Posting(message, routing_key, exchange)
        led = self._router.routed(lambda known: self._router.lead(known, posting, b"", 0.0))
        if any(each < 0 for _, each, *_ in led):
            raise Unroutable(
                f"it was that worker's own copy of what was published to the fanout exchange "
                f"{exchange!r}"
            )
        return [keys.list(queue, step) for queue, *_ in led]

    def _tell(self, tag: bytes, error: Exception) -> None:
        if tag not in self._told:
            self._told.add(tag)
            logger.error(
                "What a worker of Celery's holds under the tag %r stays there; it can't be put "
                "back: %s",
                tag.decode("utf-8", "replace"),
                error,
            )


def hand_back_delayed(server: Server) -> int:
    """Put what is due later among what waits, with its time as `eta`; how many messages."""
    moved = 0
    for queue in server.queue_names():
        due = server.keys.side(queue, "due")
        while found := server.call("ZRANGE", due, 0, CHUNK - 1, "WITHSCORES"):
            arguments: list[Argument] = []
            for record, score in zip(found[::2], found[1::2], strict=True):
                _, state, raw = forms.parts(record)
                step = state.words[1].decode()
                arguments += [queue, record, step, _with_eta(raw, float(score))]
            moved += server.run(server.scripts.hand_back, *arguments)
    return moved


def _with_eta(raw: bytes, due_at: float) -> bytes:
    """The envelope of a message that Celery's workers are to run at `due_at`, where it doesn't say
    so itself."""
    message = unpack(raw)
    if not isinstance(message, Message) or message.headers.get("eta"):
        return raw
    eta = datetime.fromtimestamp(due_at, UTC).isoformat()
    return pack(
        Message(
            message.body,
            message.content_encoding,
            message.content_type,
            {**message.headers, "eta": eta},
            message.properties,
        )
    )


def _priority(message: Message) -> int:
    value: Any = message.properties.get("priority")
    return min(max(value, 0), MAX_PRIORITY) if isinstance(value, int) else 0
