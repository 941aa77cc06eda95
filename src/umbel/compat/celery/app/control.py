"""``celery.app.control``."""

from umbel.compat.missing import guard
from umbel.control import Control

__all__ = ["Control"]

guard(__name__)
