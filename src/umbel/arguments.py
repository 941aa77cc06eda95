"""The arguments and the id of a call: what can be one, and whether they fit the function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from umbel.saferepr import safe_repr
from umbel.typed import Args, signature_of


def checked_id(task_id: object) -> str:
    """`task_id`, if it can be one. Raises `TypeError`."""
    if isinstance(task_id, str) and task_id and (task_id.isascii() or is_unicode(task_id)):
        return task_id
    raise TypeError(
        f"task_id is {task_id!r:.80}; expected a text that isn't empty, in Unicode: str(value)"
    )


def checked_state(state: object, where: str) -> str:
    """`state`, if it can be stored as one. Raises `TypeError`."""
    if isinstance(state, str) and state and is_unicode(state):
        return state
    raise TypeError(
        f"{where} got the state {safe_repr(state, 80)}; expected a text such as 'PROGRESS'"
    )


def listed(value: object, where: str, expected: str) -> list[Any]:
    """The items of `value`. Raises `TypeError` for a text, and for what can't have any."""
    if isinstance(value, Iterable) and not isinstance(value, str):
        return list(value)
    raise TypeError(f"{where} got {safe_repr(value, 80)}; expected {expected}")


def text_id(task_id: object) -> str:
    """`task_id`, to ask of it: any text. Raises `TypeError`."""
    if isinstance(task_id, str):
        return task_id
    raise TypeError(f"task_id is {safe_repr(task_id, 80)}; expected the text that delay() gave")


def is_unicode(text: str) -> bool:
    """Whether there is no half of a surrogate pair in it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def positional_arguments(args: object, name: str) -> Args:
    """`args` as given to a call, () for None. Raises `TypeError`."""
    if args is None:
        return ()
    if isinstance(args, (tuple, list)):
        return args
    raise TypeError(
        f"args of task {name!r} is {args!r:.80}; expected a tuple or list, such as (name,)"
    )


def named_arguments(kwargs: object, name: str) -> Mapping[str, Any]:
    """`kwargs` as given to a call, {} for None. Raises `TypeError`."""
    if kwargs is None:
        return {}
    if not isinstance(kwargs, dict):
        raise TypeError(f"kwargs of task {name!r} is {safe_repr(kwargs, 80)}; expected a dict")
    for key in kwargs:
        if type(key) is not str and not isinstance(key, str):
            raise TypeError(
                f"kwargs of task {name!r} is {safe_repr(kwargs, 80)}, with the key "
                f"{safe_repr(key, 40)}; expected names of parameters, which are text"
            )
    return kwargs


def argument_check(fun: Callable[..., object], name: str) -> Callable[..., object]:
    """A function that does nothing, with the parameters of `fun`: calling it checks arguments.

    The interpreter's own check takes 0.1 µs; `inspect.Signature.bind` takes 5.
    """
    try:
        signature = signature_of(fun)
    except (TypeError, ValueError):
        return _anything  # written in C without a signature: the worker finds out
    plain = [
        each.replace(
            annotation=each.empty, default=each.empty if each.default is each.empty else None
        )
        for each in signature.parameters.values()
    ]
    text = str(inspect.Signature(plain))[1:-1]
    check: Callable[..., object] = eval(f"lambda {text}: None")
    check.__name__ = check.__qualname__ = name
    return check


def _anything(*_: object, **__: object) -> None:
    """Takes whatever there is."""


def positional_names(fun: Callable[..., object]) -> tuple[str, ...]:
    """The parameters of `fun` that can be given by position, in order."""
    try:
        parameters = signature_of(fun).parameters.values()
    except (TypeError, ValueError):
        return ()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(each.name for each in parameters if each.kind in kinds)
