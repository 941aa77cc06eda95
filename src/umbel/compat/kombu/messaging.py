"""``kombu.messaging``."""

from umbel.compat.kombu.entity import Exchange, Queue
from umbel.compat.missing import guard

__all__ = ["Exchange", "Queue"]

guard(__name__)
