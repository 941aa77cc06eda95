"""``celery.utils.functional``: the part that programs use."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

from umbel.compat.kombu.utils.functional import (
    LRUCache,
    dictfilter,
    is_list,
    lazy,
    maybe_evaluate,
    maybe_list,
    memoize,
)
from umbel.compat.missing import guard

__all__ = [
    "LRUCache",
    "chunks",
    "dictfilter",
    "first",
    "fun_accepts_kwargs",
    "is_list",
    "lazy",
    "maybe",
    "maybe_evaluate",
    "maybe_list",
    "memoize",
    "noop",
    "padlist",
    "uniq",
]

T = TypeVar("T")


def chunks(it: Iterable[T], n: int) -> Iterator[list[T]]:
    """Lists of `n` items; the last one may be shorter."""
    items = iter(it)
    while part := list(islice(items, n)):
        yield part


def first(predicate: Callable[[T], object] | None, it: Iterable[T]) -> T | None:
    """The first item for which `predicate` holds, or that isn't None; else None."""
    holds = predicate or (lambda item: item is not None)
    return next((item for item in it if holds(item)), None)


def uniq(it: Iterable[T]) -> Iterator[T]:
    """The items without their repetitions, in order."""
    return iter(dict.fromkeys(it))


def maybe(typ: Callable[[Any], T], val: Any) -> T | None:
    """``typ(val)``; None stays None."""
    return None if val is None else typ(val)


def noop(*args: Any, **kwargs: Any) -> None:
    """Does nothing."""


def padlist(container: Iterable[Any], size: int, default: Any = None) -> list[Any]:
    """`size` items: those that there are, then `default`."""
    items = list(islice(container, size))
    return items + [default] * (size - len(items))


def fun_accepts_kwargs(fun: Callable[..., Any]) -> bool:
    """Whether a function has a parameter ``**kwargs``."""
    return any(each.kind is each.VAR_KEYWORD for each in inspect.signature(fun).parameters.values())


guard(__name__)
