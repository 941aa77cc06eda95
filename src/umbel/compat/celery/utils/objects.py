"""``celery.utils.objects``."""

from types import SimpleNamespace

from umbel.compat.missing import guard

__all__ = ["Bunch"]


class Bunch(SimpleNamespace):
    """An object with these attributes."""


guard(__name__)
