"""Envelopes: a message as one blob, for brokers whose server has no message format of its own.

The blob is the JSON object that Kombu keeps in Redis: ``body`` (base64), ``content-encoding``,
``content-type``, ``headers`` and ``properties``. What a stranger wrote is read with patience:
whatever can't be a message comes back as `Unreadable`, never as an exception.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from umbel.exceptions import EncodeError
from umbel.message import Message, Unreadable

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Message).decode


def pack(message: Message) -> bytes:
    """The message as one JSON blob. Raises `EncodeError` where a header can't be JSON."""
    try:
        return _encode(message)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return _pack_slowly(message)


def unpack(blob: bytes) -> Message | Unreadable:
    """The message in a blob, or the blob with the reason why it isn't one."""
    try:
        return _decode(blob)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        return _unpack_slowly(blob, str(error))


def _pack_slowly(message: Message) -> bytes:
    """As `pack`, with the integers of more than 64 bits that only the standard library writes."""
    envelope: dict[str, Any] = msgspec.to_builtins(
        Message(
            body=message.body,
            content_encoding=message.content_encoding,
            content_type=message.content_type,
            headers={},
            properties={},
        )
    )
    envelope["headers"] = message.headers
    envelope["properties"] = message.properties
    try:
        return json.dumps(envelope).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise EncodeError(
            f"a header or property of task {message.task!r} can't be sent as JSON: {error}. "
            "Use strings, numbers, booleans, None, lists and dicts with string keys."
        ) from error


def _unpack_slowly(blob: bytes, reason: str) -> Message | Unreadable:
    try:
        envelope = json.loads(blob)
        return msgspec.convert(envelope, Message, strict=True)
    except (ValueError, RecursionError):
        return Unreadable(raw=blob, reason=f"not a message envelope: {reason}")
