"""``kombu``: the part of Celery's messaging library that programs with tasks use."""

from typing import Final

from umbel.compat.kombu import exceptions, serialization
from umbel.compat.kombu.entity import Exchange, Queue, binding
from umbel.compat.kombu.utils.url import parse_url
from umbel.compat.kombu.utils.uuid import uuid
from umbel.compat.missing import guard

__all__ = [
    "VERSION",
    "Exchange",
    "Queue",
    "__version__",
    "binding",
    "exceptions",
    "parse_url",
    "serialization",
    "uuid",
]

VERSION: Final = (5, 7, 0)
"""That of the Kombu whose API this is."""
__version__: Final = "5.7.0"

guard(__name__)
