"""``kombu.entity``."""

from typing import Final

from umbel.compat.missing import guard
from umbel.exchanges import Exchange
from umbel.routing import Queue

__all__ = ["PERSISTENT_DELIVERY_MODE", "TRANSIENT_DELIVERY_MODE", "Exchange", "Queue"]

TRANSIENT_DELIVERY_MODE: Final = 1
PERSISTENT_DELIVERY_MODE: Final = 2

guard(__name__)
