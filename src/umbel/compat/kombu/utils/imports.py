"""``kombu.utils.imports``."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from umbel.compat.missing import guard

__all__ = ["symbol_by_name"]


def symbol_by_name(
    name: Any,
    aliases: Mapping[str, str] | None = None,
    imp: Callable[..., Any] | None = None,
    package: str | None = None,
    sep: str = ".",
    default: Any = None,
    **kwargs: Any,
) -> Any:
    """The object of ``"proj.module:name"`` or ``"proj.module.name"``; what isn't text as it is.

    Without a name, ``"proj.module:"``, the module. `default`, if it isn't None, stands for what
    can't be imported or isn't there.
    """
    if not isinstance(name, str):
        return name
    name = (aliases or {}).get(name, name)
    module, colon, attribute = name.rpartition(":" if ":" in name else sep)
    if not colon:
        module, attribute = (package or name), (attribute if package else "")
    try:
        found = (imp or importlib.import_module)(module, package=package, **kwargs)
        return getattr(found, attribute) if attribute else found
    except (ImportError, AttributeError):
        if default is not None:
            return default
        raise


guard(__name__)
