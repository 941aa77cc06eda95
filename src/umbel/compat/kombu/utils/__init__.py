"""``kombu.utils``."""

from umbel.compat.kombu.utils.functional import maybe_list
from umbel.compat.kombu.utils.imports import symbol_by_name
from umbel.compat.kombu.utils.objects import cached_property
from umbel.compat.kombu.utils.uuid import uuid
from umbel.compat.missing import guard

__all__ = ["cached_property", "maybe_list", "symbol_by_name", "uuid"]

guard(__name__)
