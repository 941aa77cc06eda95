"""``celery.app.registry``."""

from umbel.compat.missing import guard
from umbel.exceptions import NotRegistered
from umbel.registry import TaskRegistry

__all__ = ["NotRegistered", "TaskRegistry"]

guard(__name__)
