"""``kombu.entity``."""

from typing import Final

from umbel.compat.missing import guard
from umbel.exchanges import Exchange
from umbel.queues import Queue, binding

__all__ = ["PERSISTENT_DELIVERY_MODE", "TRANSIENT_DELIVERY_MODE", "Exchange", "Queue", "binding"]

TRANSIENT_DELIVERY_MODE: Final = 1
PERSISTENT_DELIVERY_MODE: Final = 2

guard(__name__)
