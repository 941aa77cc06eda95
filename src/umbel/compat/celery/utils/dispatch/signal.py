"""``celery.utils.dispatch.signal``."""

from __future__ import annotations

from collections.abc import Collection

from umbel import signals
from umbel.compat.missing import guard

__all__ = ["Signal"]


class Signal(signals.Signal):
    """A signal of a program's own, made as Celery makes them.

    Those of `umbel.signals` are of the class that this derives from.
    """

    __slots__ = ()

    def __init__(
        self,
        providing_args: Collection[str] | None = None,
        use_caching: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(name or "of the program", providing_args or ())


guard(__name__)
