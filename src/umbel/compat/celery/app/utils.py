"""``celery.app.utils``."""

from umbel.compat.missing import guard
from umbel.settings import Settings

__all__ = ["Settings"]

guard(__name__)
