"""``celery.utils.dispatch.signal``."""

from umbel.compat.missing import guard
from umbel.signals import Signal

__all__ = ["Signal"]

guard(__name__)
