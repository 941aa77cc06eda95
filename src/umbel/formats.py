"""How the arguments of calls, and stored results, become bytes: serialized, then compressed.

What reads them goes by what a message says of itself; a stored result says it in its first bytes::

    00 "celery-compressed" 00 content type 00 data     compressed (`result_compression`)
    {…                                                 JSON, whatever the settings say
    all else                                           as `result_serializer` says
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from msgspec.structs import replace

from umbel.compression import BOMB_FACTOR, Compression, find_compression, inflate
from umbel.exceptions import DecodeError, MessageTooLarge, SecurityError
from umbel.message import Message
from umbel.serialization import (
    CALL_NAMES,
    JSON,
    Call,
    accepted_serializer,
    as_call,
    dumps,
    dumps_call,
    find_serializer,
    loads,
    loads_call,
    read,
    readers,
)
from umbel.serializers import Serializer

_MARK: Final = b"\0celery-compressed\0"

Serializers = Mapping[str, Serializer]


@dataclass(frozen=True, slots=True)
class CallFormat:
    """How the body of a message is made, where that isn't plain JSON."""

    serializer: Serializer
    compression: Compression | None = None

    @classmethod
    def find(
        cls, serializer: str | None, compression: str | None, own: Serializers
    ) -> CallFormat | None:
        """The one of these names; None for plain JSON. `own` are those of an app alone.

        Raises `ImproperlyConfigured` for a name that isn't known.
        """
        chosen = JSON
        if serializer is not None:
            # Options may be anything, also what can't be a key.
            known = own.get(serializer) if isinstance(serializer, str) else None
            chosen = known or find_serializer(serializer)
        if chosen is JSON and compression is None:
            return None
        return cls(chosen, None if compression is None else find_compression(compression))

    def body(
        self,
        args: list[Any] | tuple[Any, ...],
        kwargs: Mapping[str, Any],
        embed: Mapping[str, Any],
        max_size: int,
    ) -> bytes:
        """The encoded call. Raises `EncodeError`, and `MessageTooLarge` for what nobody reads."""
        if self.serializer is JSON:
            data = dumps_call(args, kwargs, embed)
        else:
            call = (args, dict(kwargs), dict(embed))
            data = self.serializer.dumps(call, names=CALL_NAMES)
        if self.compression is None:
            return data
        if len(data) > BOMB_FACTOR * max_size:
            raise MessageTooLarge(
                f"the arguments have {len(data)} bytes before they are compressed; no worker reads "
                f"more than {BOMB_FACTOR} times task_max_message_size ({max_size}). Send a "
                "reference to the data (a path, an id) in its place"
            )
        return self.compression.deflate(data)

    def marked(self, message: Message) -> Message:
        """`message`, saying that its body is of this format."""
        headers = message.headers
        if self.compression is not None:
            headers = {**headers, "compression": self.compression.content_type}
        return replace(
            message,
            content_type=self.serializer.content_type,
            content_encoding=self.serializer.content_encoding,
            headers=headers,
        )


def encode_call(
    args: list[Any] | tuple[Any, ...],
    kwargs: Mapping[str, Any],
    embed: Mapping[str, Any],
    form: CallFormat | None,
    max_size: int,
) -> bytes:
    """The body of a message, of this format; of plain JSON where it is None."""
    if form is None:
        return dumps_call(args, kwargs, embed)
    return form.body(args, kwargs, embed, max_size)


def format_of(message: Message, own: Serializers) -> CallFormat | None:
    """How the body of a message was made that is to be sent from here; None: plain JSON."""
    compression = message.headers.get("compression")
    if message.content_type == JSON.content_type and compression is None:
        return None
    kinds = {each.content_type: each for each in own.values()}
    return CallFormat(
        kinds.get(message.content_type) or find_serializer(message.content_type),
        None if compression is None else find_compression(compression),
    )


def sent_call(message: Message, own: Serializers, max_size: int) -> Call | bytes:
    """What a message holds that was just sent here; its bytes, if we sign for others alone."""
    form = format_of(message, own)
    if form is None:
        return loads_call(message.body)
    reader = CallReader({form.serializer.content_type: form.serializer}, BOMB_FACTOR * max_size)
    try:
        return reader.call(message)
    except SecurityError:
        return message.body


@dataclass(frozen=True, slots=True)
class CallReader:
    """Reads the bodies of messages, of the accepted content types alone."""

    accepted: Mapping[str, Serializer]
    limit: int
    """Bytes that a compressed body may stand for."""

    @classmethod
    def accepting(cls, names: Iterable[str], own: Serializers, max_size: int) -> CallReader:
        """For `accept_content` and `task_max_message_size`. Raises `ImproperlyConfigured`."""
        return cls(readers(names, own), BOMB_FACTOR * max_size)

    def call(self, message: Message) -> Call:
        """What the body holds. DecodeError where it can't be read, SecurityError where it mustn't.

        Whether it is accepted is looked at before anything is decompressed.
        """
        body = message.body
        compression = message.headers.get("compression")
        if compression:
            accepted_serializer(message.content_type, self.accepted)
            body = inflate(body, compression, self.limit)
        return as_call(read(body, message.content_type, message.content_encoding, self.accepted))


@dataclass(frozen=True, slots=True)
class ResultFormat:
    """How results are stored and read."""

    serializer: Serializer
    compression: Compression | None
    accepted: Mapping[str, Serializer]
    limit: int

    @classmethod
    def find(
        cls,
        serializer: str,
        compression: str | None,
        accept: Iterable[str],
        own: Serializers,
        max_size: int,
    ) -> ResultFormat:
        """For the settings of results. Raises `ImproperlyConfigured`."""
        return cls(
            own.get(serializer) or find_serializer(serializer),
            None if compression is None else find_compression(compression),
            readers(accept, own),
            BOMB_FACTOR * max_size,
        )

    @property
    def is_plain(self) -> bool:
        """JSON, and nothing else."""
        return self.serializer is JSON and self.compression is None

    @property
    def keeps_exceptions(self) -> bool:
        """An exception is stored as the object that it is."""
        return self.serializer.name == "pickle"

    def dumps(self, record: Mapping[str, Any], place: str, names: Mapping[str, str]) -> bytes:
        """A record as bytes. Raises `EncodeError`."""
        if self.serializer is JSON:
            data = dumps(record, place=place, names=names)
        else:
            data = self.serializer.dumps(record, place, names)
        if self.compression is None:
            return data
        kind = self.compression.content_type.encode()
        return _MARK + kind + b"\0" + self.compression.deflate(data)

    def loads(self, data: bytes) -> Any:
        """The record of these bytes. DecodeError, SecurityError: as in `CallReader.call`."""
        if data.startswith(_MARK):
            kind, _, packed = data[len(_MARK) :].partition(b"\0")
            data = inflate(packed, kind.decode("ascii", "replace"), self.limit)
        if data.startswith(b"{"):
            return self._read(data, JSON)
        return self._read(data, self.serializer)

    def _read(self, data: bytes, serializer: Serializer) -> Any:
        if serializer.content_type not in self.accepted:
            raise DecodeError(
                f"it is stored as {serializer.name}, which isn't accepted here; add "
                f"{serializer.name!r} to result_accept_content"
            )
        return loads(data) if serializer is JSON else serializer.loads(data)


JSON_RESULTS: Final = ResultFormat(JSON, None, readers(("json",)), BOMB_FACTOR * 16 * 2**20)
