"""``kombu.utils.objects``."""

from functools import cached_property

from umbel.compat.missing import guard

__all__ = ["cached_property"]

guard(__name__)
