"""``celery.local``: objects that stand for others."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from umbel import current
from umbel.compat.missing import guard

__all__ = ["PromiseProxy", "Proxy", "maybe_evaluate", "try_import"]


class Proxy(current.Proxy):
    # Stands for what `local(*args, **kwargs)` returns, asked anew at each use.

    __slots__ = ()
    __doc__ = vars(current.Proxy)["__doc__"]  # pyright: ignore[reportIncompatibleMethodOverride]

    def __init__(
        self,
        local: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        name: str | None = None,
        **_: Any,
    ) -> None:
        super().__init__(functools.partial(local, *(args or ()), **(kwargs or {})))


class PromiseProxy(Proxy):
    # Asks once, at its first use.

    __slots__ = ()
    __doc__ = vars(current.Proxy)["__doc__"]

    def __init__(
        self,
        fun: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        name: str | None = None,
        **_: Any,
    ) -> None:
        call = functools.partial(fun, *(args or ()), **(kwargs or {}))
        super().__init__(functools.cache(lambda: call()))


def maybe_evaluate(obj: Any) -> Any:
    """What a `PromiseProxy` stands for; anything else as it is."""
    return obj._get_current_object() if type(obj) is PromiseProxy else obj


def try_import(module: str, default: Any = None) -> Any:
    """The module, or `default` where it can't be imported."""
    try:
        return importlib.import_module(module)
    except ImportError:
        return default


guard(__name__)
