"""``celery.utils.dispatch``."""

from umbel.compat.celery.utils.dispatch.signal import Signal
from umbel.compat.missing import guard

__all__ = ["Signal"]

guard(__name__)
