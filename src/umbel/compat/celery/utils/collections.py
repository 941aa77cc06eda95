"""``celery.utils.collections``."""

from __future__ import annotations

from collections import ChainMap, OrderedDict
from typing import Any

from umbel.compat.missing import guard

__all__ = ["AttributeDict", "ChainMap", "OrderedDict"]


class AttributeDict(dict[str, Any]):
    """A dict whose items are attributes too."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"{type(self).__name__!r} object has no key {name!r}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


guard(__name__)
