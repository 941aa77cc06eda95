"""``kombu.utils.encoding``: UTF-8 in and out."""

from __future__ import annotations

from typing import Any

from umbel.compat.missing import guard
from umbel.saferepr import safe_repr as _safe_repr

__all__ = [
    "bytes_to_str",
    "default_encode",
    "default_encoding",
    "ensure_bytes",
    "from_utf8",
    "safe_repr",
    "safe_str",
    "str_to_bytes",
]


def str_to_bytes(s: Any) -> Any:
    """A text as bytes; anything else as it is."""
    return s.encode() if isinstance(s, str) else s


ensure_bytes = str_to_bytes


def bytes_to_str(s: Any) -> Any:
    """Bytes as a text, with what isn't UTF-8 replaced; anything else as it is."""
    return s.decode(errors="replace") if isinstance(s, bytes) else s


def from_utf8(s: Any) -> Any:
    """As it is: texts are Unicode."""
    return s


default_encode = from_utf8


def default_encoding() -> str:
    return "utf-8"


def safe_str(s: Any, errors: str = "replace") -> str:
    """Anything as a text, whatever is in it."""
    if isinstance(s, bytes):
        return s.decode(errors=errors)
    try:
        return s if isinstance(s, str) else str(s)
    except Exception:  # __str__ is the caller's
        return safe_repr(s)


def safe_repr(o: Any, errors: str = "replace") -> str:
    """``repr(o)``, also where that would raise."""
    return _safe_repr(o)


guard(__name__)
