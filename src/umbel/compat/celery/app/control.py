"""``celery.app.control``."""

from umbel.compat.missing import guard
from umbel.control import Control, Inspect

__all__ = ["Control", "Inspect"]

guard(__name__)
