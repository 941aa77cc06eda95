"""What a pool process asks of its pool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from umbel.worker.lanes import Lane


class Pool(Protocol):
    """Runs what the desk hands out."""

    @property
    def lanes(self) -> Sequence[Lane]:
        """By index; signal handlers of the main thread end tasks there."""
        ...

    def work(self) -> None:
        """In the main thread: start what is handed out, until nothing more is and all has ended."""
        ...
