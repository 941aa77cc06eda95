"""``kombu.common``."""

from umbel.compat.kombu.utils.uuid import uuid
from umbel.compat.missing import guard
from umbel.queues import Broadcast

__all__ = ["Broadcast", "uuid"]

guard(__name__)
