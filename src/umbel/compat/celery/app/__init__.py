"""``celery.app``."""

from __future__ import annotations

from umbel.app import Umbel
from umbel.compat.celery.app.base import Celery
from umbel.compat.missing import guard
from umbel.current import current_app as default_app
from umbel.current import get_current_app
from umbel.shared import shared_task

__all__ = ["Celery", "app_or_default", "bugreport", "default_app", "shared_task"]


def app_or_default(app: Umbel | None = None) -> Umbel:
    """`app`, else the current one. Raises `ImproperlyConfigured` where there is none."""
    return get_current_app() if app is None else app


def bugreport(app: Umbel | None = None) -> str:
    """What a report of a mistake should tell of this machine and of an app, as text."""
    return app_or_default(app).bugreport()


guard(__name__)
