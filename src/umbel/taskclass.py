"""Options of a task that are attributes of its class."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final

from umbel.keywords import HANDLERS, TASK_NAMES

_OPTIONS: Final = (TASK_NAMES | {"rate_limit"}) - {"name", *HANDLERS}
_MISSING: Final = object()


class ClassOption:
    """An option in a class's body: the class shows its value, a task what holds for it.

    A plain attribute would hide what the task itself is given, or the settings say.
    """

    __slots__ = ("name", "value")

    def __init__(self, name: str, value: object) -> None:
        self.name = name
        self.value = value

    def __get__(self, task: Any, owner: type) -> Any:
        if task is None or "app" not in task.__dict__:
            return self.value
        return task.__getattr__(self.name)


def wrap_options(cls: type) -> None:
    """Make options of what `cls` and its mixins have under the names of options."""
    for name in _OPTIONS:
        value = _found(cls, name)
        computed = isinstance(value, (ClassOption, property, cached_property))
        if value is not _MISSING and not computed:
            setattr(cls, name, ClassOption(name, value))


def class_options(cls: type) -> dict[str, Any]:
    """The options that `cls` has, by name."""
    found = ((name, _found(cls, name)) for name in _OPTIONS)
    return {name: value.value for name, value in found if isinstance(value, ClassOption)}


def class_name(cls: type) -> str | None:
    """The task name that `cls` has as its attribute, or None."""
    name = _found(cls, "name")
    return name if isinstance(name, str) else None


def _found(cls: type, name: str) -> object:
    return next((vars(each)[name] for each in cls.__mro__ if name in vars(each)), _MISSING)
