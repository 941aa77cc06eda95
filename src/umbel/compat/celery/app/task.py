"""``celery.app.task``."""

from umbel.compat.missing import guard
from umbel.request import Context
from umbel.task import Task

__all__ = ["Context", "Task"]

guard(__name__)
