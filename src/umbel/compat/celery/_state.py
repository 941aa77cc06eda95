"""``celery._state``: which app and which task code is in."""

from umbel.compat.missing import guard
from umbel.current import (
    current_app,
    current_task,
    get_current_app,
    get_current_task,
    get_current_worker_task,
    set_default,
)

__all__ = [
    "current_app",
    "current_task",
    "get_current_app",
    "get_current_task",
    "get_current_worker_task",
    "set_default_app",
]

set_default_app = set_default

guard(__name__)
