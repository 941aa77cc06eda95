"""``kombu.utils.functional``: the part that programs use."""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Generic, TypeVar

from umbel.compat.missing import guard

__all__ = ["LRUCache", "dictfilter", "is_list", "lazy", "maybe_evaluate", "maybe_list", "memoize"]

K = TypeVar("K")
V = TypeVar("V")
R = TypeVar("R")

_SCALARS: Final = (Mapping, str)


class LRUCache(OrderedDict[K, V], Generic[K, V]):
    """A dict of at most `limit` items: the one that wasn't used for longest goes first."""

    def __init__(self, limit: int | None = None) -> None:
        super().__init__()
        self.limit = limit

    def __getitem__(self, key: K) -> V:
        value = super().__getitem__(key)
        self.move_to_end(key)
        return value

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if self.limit is not None and len(self) > self.limit:
            self.popitem(last=False)


class lazy:
    """A call that is made when it is evaluated: ``lazy(f, 1)()`` is ``f(1)``."""

    def __init__(self, fun: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        self._call = functools.partial(fun, *args, **kwargs)

    def __call__(self) -> Any:
        return self._call()

    def evaluate(self) -> Any:
        return self._call()

    def __str__(self) -> str:
        return str(self())

    def __repr__(self) -> str:
        return repr(self())

    def __eq__(self, other: object) -> bool:
        return bool(self() == other)

    def __hash__(self) -> int:
        return hash(self())


def maybe_evaluate(value: Any) -> Any:
    """What a `lazy` gives; anything else as it is."""
    return value.evaluate() if isinstance(value, lazy) else value


def is_list(
    obj: object,
    scalars: tuple[type, ...] = _SCALARS,
    iters: tuple[type, ...] = (Iterable,),
) -> bool:
    """Whether it is something to loop over; texts and dicts aren't."""
    return isinstance(obj, iters) and not isinstance(obj, scalars)


def maybe_list(obj: Any, scalars: tuple[type, ...] = _SCALARS) -> Any:
    """A list of one for a single object; lists and None as they are."""
    return obj if obj is None or is_list(obj, scalars) else [obj]


def dictfilter(d: Mapping[str, V | None] | None = None, /, **kw: V | None) -> dict[str, V]:
    """The items whose value isn't None."""
    return {key: value for key, value in {**(d or {}), **kw}.items() if value is not None}


def memoize(maxsize: int | None = None) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """A decorator that keeps the last `maxsize` results, all of them with None."""
    return functools.lru_cache(maxsize)


guard(__name__)
