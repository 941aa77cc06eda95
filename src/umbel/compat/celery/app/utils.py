"""``celery.app.utils``."""

from __future__ import annotations

from umbel.app import Umbel
from umbel.compat.missing import guard
from umbel.settings import Settings

__all__ = ["Settings", "bugreport"]


def bugreport(app: Umbel) -> str:
    """What a report of a mistake should tell of this machine and of `app`, as text."""
    return app.bugreport()


guard(__name__)
