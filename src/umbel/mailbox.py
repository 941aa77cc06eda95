"""Remote control in Celery's format: commands to all workers, and their answers.

A command is broadcast to the exchange ``<control_exchange>.pidbox``. Its body is a JSON object with
``method``, ``arguments`` and whom it is for; where an answer is wanted, also a ``ticket`` and where
to, and the answer, ``{"<node>": …}``, carries that ticket. Bodies are made by `task_serializer` and
read by `accept_content`, as those of tasks: where these are signed, commands are too.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

import msgspec

from umbel.codec import pack, unpack
from umbel.exceptions import DecodeError
from umbel.message import Message, Unreadable
from umbel.serialization import read
from umbel.serializers import Serializer

SKEW: Final = 60.0
"""Seconds by which clocks may differ before a question counts as too old to be answered."""
_LASTING: Final = ("revoke", "terminate")
_LOGGED: Final = "umbel-logged"
"""The header of what its sender has written to the log of revocations itself."""


class ReplyTo(msgspec.Struct, frozen=True):
    """Where an answer goes: a direct exchange and the key of who asked."""

    exchange: str
    routing_key: str


class _Body(msgspec.Struct, frozen=True):
    method: str
    arguments: dict[str, Any] | None = None
    destination: list[str] | str | None = None
    pattern: str | None = None
    matcher: str | None = None
    ticket: str | None = None
    reply_to: ReplyTo | None = None


@dataclass(frozen=True, slots=True)
class Audience:
    """Whom a command is for: the nodes named, else those whose name fits, else all."""

    destination: Collection[str] | None = None
    pattern: str | None = None
    matcher: str | None = None
    """``glob`` (the default) or ``pcre``, a regular expression."""

    def has(self, node: str) -> bool:
        """Raises `DecodeError` for a pattern that can't be one."""
        if self.destination is not None:
            return node in self.destination
        if self.pattern is None:
            return True
        if self.matcher in (None, "glob"):
            return fnmatchcase(node, self.pattern)
        if self.matcher == "pcre":
            try:
                return re.match(self.pattern, node) is not None
            except re.error as error:
                raise DecodeError(f"the pattern {self.pattern!r:.80}: {error}") from error
        raise DecodeError(f"the matcher {self.matcher!r:.80}; expected 'glob' or 'pcre'")


EVERYBODY: Final = Audience()


class Command(msgspec.Struct, frozen=True):
    """One command, as it was sent."""

    method: str
    arguments: Mapping[str, Any] = {}
    audience: Audience = EVERYBODY
    ticket: str | None = None
    reply_to: ReplyTo | None = None
    expires_at: float | None = None
    """In unix seconds, by the clock of who sent it."""
    is_logged: bool = False
    """Its sender, an Umbel, has written it to the log of revocations."""
    tag: str = ""
    """What no other command has."""

    @property
    def is_lasting(self) -> bool:
        """Whether it counts also when nobody waits for its answer any more."""
        return self.method in _LASTING

    def is_late(self, now: float) -> bool:
        """Whether nobody waits for an answer any more, whatever the clocks say."""
        return self.expires_at is not None and now > self.expires_at + SKEW


def channel(exchange: str) -> str:
    """The exchange that commands are broadcast to; `exchange` is `control_exchange`."""
    return f"{exchange}.pidbox"


def answers(exchange: str) -> str:
    """The exchange that answers go through."""
    return f"reply.{exchange}.pidbox"


def pack_command(command: Command, exchange: str, serializer: Serializer) -> bytes:
    """The envelope of a command; `exchange` is `control_exchange`."""
    audience = command.audience
    body: dict[str, Any] = {
        "method": command.method,
        "arguments": dict(command.arguments),
        "destination": None if audience.destination is None else list(audience.destination),
        "pattern": audience.pattern,
        "matcher": audience.matcher,
    }
    if command.reply_to is not None:
        body["ticket"] = command.ticket
        body["reply_to"] = msgspec.to_builtins(command.reply_to)
    headers: dict[str, Any] = {"clock": 0, "expires": command.expires_at or 0}
    if command.is_logged:
        headers[_LOGGED] = True
    properties = _properties(channel(exchange), "", command.tag, delivery_mode=2)
    return _pack(body, headers, properties, serializer)


def read_command(payload: bytes, accepted: Mapping[str, Serializer]) -> Command:
    """The command in an envelope. Raises `DecodeError`, and what reading a body raises."""
    message, content = _read(payload, accepted)
    try:
        body = msgspec.convert(content, _Body)
    except (msgspec.ValidationError, RecursionError) as error:
        raise DecodeError(f"it isn't a command: {error}") from error
    expires = message.headers.get("expires")
    tag = message.properties.get("delivery_tag")
    named = [body.destination] if isinstance(body.destination, str) else body.destination
    return Command(
        method=body.method,
        arguments=body.arguments or {},
        audience=Audience(named, body.pattern, body.matcher),
        ticket=body.ticket,
        reply_to=body.reply_to,
        expires_at=expires if isinstance(expires, int | float) and expires > 0 else None,
        is_logged=message.headers.get(_LOGGED) is True,
        tag=tag if isinstance(tag, str) and tag else hashlib.sha256(payload).hexdigest(),
    )


def pack_answer(
    node: str, answer: object, ticket: str | None, to: ReplyTo, tag: str, serializer: Serializer
) -> bytes:
    """The envelope of a node's answer."""
    headers = {"ticket": ticket, "clock": 0}
    properties = _properties(to.exchange, to.routing_key, tag, delivery_mode=1)
    return _pack({node: answer}, headers, properties, serializer)


def read_answer(
    payload: bytes, ticket: str, accepted: Mapping[str, Serializer]
) -> dict[str, Any] | None:
    """``{node: answer}`` from an envelope; None where it answers something else."""
    message, content = _read(payload, accepted)
    if message.headers.get("ticket") != ticket or not isinstance(content, dict):
        return None
    return content


def _properties(exchange: str, key: str, tag: str, *, delivery_mode: int) -> dict[str, Any]:
    return {
        "delivery_mode": delivery_mode,
        "delivery_info": {"exchange": exchange, "routing_key": key},
        "priority": 0,
        "body_encoding": "base64",
        "delivery_tag": tag,
    }


def _pack(
    body: object, headers: dict[str, Any], properties: dict[str, Any], serializer: Serializer
) -> bytes:
    content = serializer.dumps(body)
    kind, encoding = serializer.content_type, serializer.content_encoding
    return pack(Message(content, encoding, kind, headers, properties))


def _read(payload: bytes, accepted: Mapping[str, Serializer]) -> tuple[Message, Any]:
    message = unpack(payload)
    if isinstance(message, Unreadable):
        raise DecodeError(message.reason)
    return message, read(message.body, message.content_type, message.content_encoding, accepted)
