"""``kombu.utils.uuid``."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID, uuid4

from umbel.compat.missing import guard

__all__ = ["uuid"]


def uuid(_uuid: Callable[[], UUID] = uuid4) -> str:
    """A new id as text, such as ``'7d1f0c9e-3b52-4c6f-a3de-f2f1c1f0a9b7'``."""
    return str(_uuid())


guard(__name__)
