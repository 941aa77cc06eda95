"""``kombu.utils.json``: JSON as it travels, with dates, times, `Decimal`, `UUID` and bytes."""

from __future__ import annotations

from typing import Any

from umbel import serialization
from umbel.compat.missing import guard

__all__ = ["dumps", "loads"]


def dumps(s: Any, **_: Any) -> str:
    """A value as JSON text. Raises `EncodeError`, which names what can't be carried."""
    return serialization.dumps(s).decode()


def loads(s: str | bytes | bytearray | memoryview, **_: Any) -> Any:
    """The value of JSON text. Raises `DecodeError`."""
    return serialization.loads(s.encode() if isinstance(s, str) else bytes(s))


guard(__name__)
