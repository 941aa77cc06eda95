"""``celery.canvas``: signatures and chains; groups and chords raise when they are called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from umbel.app import Umbel
from umbel.canvas import Signature, chain, chord, chunks, group, signature, xmap, xstarmap
from umbel.compat.missing import guard
from umbel.stamping import StampingVisitor

__all__ = [
    "Signature",
    "StampingVisitor",
    "chain",
    "chord",
    "chunks",
    "group",
    "maybe_signature",
    "signature",
    "subtask",
    "xmap",
    "xstarmap",
]

subtask = signature


def maybe_signature(
    d: Signature | Mapping[str, Any] | None, app: Umbel | None = None, clone: bool = False
) -> Signature | None:
    """The signature of a dict; with `clone`, a copy of one that is a signature already."""
    if d is None or (isinstance(d, Signature) and not clone and app is None):
        return d
    return d.clone() if isinstance(d, Signature) and app is None else signature(d, app=app)


guard(__name__)
