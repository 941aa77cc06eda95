"""The tasks of an app by name, and how a function or a class becomes one of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from umbel.absent import TASKS, without
from umbel.exceptions import DuplicateTaskNameWarning, NotRegistered
from umbel.task import Task
from umbel.taskclass import class_name
from umbel.warning import warn

if TYPE_CHECKING:
    from umbel.app import Umbel

AnyTask = TypeVar("AnyTask", bound=Task[..., Any])


@without("app.tasks", TASKS)
class TaskRegistry(dict[str, Task[..., Any]]):
    """The tasks of an app by name."""

    def unregister(self, name: str | Task[..., Any]) -> None:
        """Forget a task, given by its name or as itself. Raises `NotRegistered`."""
        del self[self[name if isinstance(name, str) else name.name].name]

    def __missing__(self, name: str) -> Task[..., Any]:
        from difflib import get_close_matches  # only a mistake pays for its import

        near = get_close_matches(str(name), self, n=3)
        question = (
            f"did you mean {' or '.join(map(repr, near))}?"
            if near
            else "import the module that defines it, or name it in include="
        )
        raise NotRegistered(f"task {name!r} isn't known here; {question}")


def task_of_class(app: Umbel, task: AnyTask | type[AnyTask], options: Mapping[str, Any]) -> AnyTask:
    """The task that a class of tasks, or its object, is in `app`; not registered yet."""
    made = task() if isinstance(task, type) else task
    cls = type(made)
    if not isinstance(made, Task) or not callable(getattr(made, "run", None)):
        raise TypeError(
            f"register_task got {task!r:.80}; expected a subclass of umbel.Task with a method "
            "run, or an object of one"
        )
    if made.__dict__.get("app", app) is not app:
        raise TypeError(f"{made!r} is a task of another app; register its class: {cls!r}")
    declared = dict(options)
    name = declared.pop("name", None) or class_name(cls)
    name = name or app.gen_task_name(cls.__name__, cls.__module__)
    made.set_up(app, made.run, name, declared=declared)
    return made


def task_of_function(
    app: Umbel,
    fun: Callable[..., Any],
    name: str,
    base: object,
    bind: bool,
    options: dict[str, Any],
) -> Task[..., Any]:
    """The task that a function is in `app`; not registered yet. Raises `TypeError`."""
    made = checked_base(base)()
    made.set_up(app, fun, name, bind=bind, declared=options)
    return made


def checked_base(base: object) -> type[Task[..., Any]]:
    """`base`, if it is a class of tasks. Raises `TypeError`."""
    if isinstance(base, type) and issubclass(base, Task):
        return base
    raise TypeError(f"base is {base!r:.80}; expected umbel.Task or a class derived from it")


def warn_if_taken(known: Task[..., Any], fun: Callable[..., Any]) -> None:
    """Say that the name of `known` is taken, unless `fun` is its very function."""
    if not _same_function(known.__wrapped__, fun):
        warn(
            f"task name {known.name!r} is taken by {known.__wrapped__!r}, which stays; {fun!r} is "
            "not registered. Give it a name of its own: @app.task(name=...)",
            DuplicateTaskNameWarning,
        )


def _same_function(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """The same, or the same lines of the same file, imported once more."""
    if one is other:
        return True
    places = [
        (code.co_filename, code.co_firstlineno)
        for code in (getattr(each, "__code__", None) for each in (one, other))
        if code is not None
    ]
    return len(places) == 2 and places[0] == places[1]
