"""``celery.utils.saferepr``."""

from __future__ import annotations

from typing import Any

from umbel.compat.missing import guard
from umbel.saferepr import safe_repr

__all__ = ["saferepr"]


def saferepr(o: Any, maxlen: int | None = None, maxlevels: int = 3, seen: object = None) -> str:
    """``repr(o)``, cut after `maxlen` characters and `maxlevels` levels."""
    return safe_repr(o, 1_000_000 if maxlen is None else maxlen, maxlevels)


guard(__name__)
