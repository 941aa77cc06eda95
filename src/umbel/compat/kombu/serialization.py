"""``kombu.serialization``: the serializers of this process."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from typing import Any, Final

from umbel import serialization
from umbel.compat.missing import guard
from umbel.exceptions import DecodeError
from umbel.serialization import register, unregister

__all__ = ["dumps", "loads", "pickle", "register", "registry", "unregister"]


def dumps(data: Any, serializer: str | None = None) -> tuple[str, str, bytes]:
    """(content type, content encoding, body) of a value; in JSON unless told otherwise.

    Raises `EncodeError`, and `ImproperlyConfigured` for a serializer that isn't known.
    """
    found = serialization.find_serializer(serializer or "json")
    return found.content_type, found.content_encoding, found.dumps(data)


def loads(
    data: bytes | str,
    content_type: str,
    content_encoding: str = "utf-8",
    accept: Iterable[str] | None = None,
    force: bool = False,
) -> Any:
    """The value of a body, which is of a type in `accept`, else of any but pickle.

    Raises `DecodeError`; nothing but `accept` allows pickle.
    """
    found = serialization.find_serializer(content_type)
    if accept is None:
        allowed = found.name != "pickle"
    else:
        allowed = found.name in accept or found.content_type in accept
    if not allowed:
        raise DecodeError(
            f"a body of the type {content_type!r} isn't accepted here; accept=[{found.name!r}] "
            "would allow it"
        )
    return found.loads(data.encode() if isinstance(data, str) else bytes(data))


class SerializerRegistry:
    """The functions of this module as methods, as ``registry.register`` is written."""

    register = staticmethod(register)
    unregister = staticmethod(unregister)
    dumps = staticmethod(dumps)
    loads = staticmethod(loads)


registry: Final = SerializerRegistry()

guard(__name__)
