"""``kombu.common``."""

from umbel.compat.kombu.utils.uuid import uuid
from umbel.compat.missing import guard

__all__ = ["uuid"]

guard(__name__)
