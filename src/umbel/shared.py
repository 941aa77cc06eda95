"""Tasks of libraries, which know no app: each app of the process gets its own task of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Literal,
    ParamSpec,
    TypeVar,
    Unpack,
    overload,
)

from umbel.current import Proxy, get_current_app
from umbel.keywords import TaskKeywords
from umbel.saferepr import safe_repr

if TYPE_CHECKING:
    from umbel.app import Umbel
    from umbel.task import Task

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, eq=False)
class Shared:
    """What every app makes a task of."""

    fun: Callable[..., Any]
    bind: bool
    options: Mapping[str, Any]

    def name_in(self, app: Umbel) -> str:
        given = self.options.get("name")
        return given or app.gen_task_name(self.fun.__name__, self.fun.__module__)

    def add_to(self, app: Umbel) -> None:
        app.add_shared(self.fun, self.bind, dict(self.options))

    def find(self) -> Task[..., Any]:
        """The task of the current app."""
        app = get_current_app()
        return app.tasks[self.name_in(app)]


SHARED: Final[list[Shared]] = []
"""In the order of definition, and only ever longer: an app knows how far it has read."""


@overload
def shared_task(fun: Callable[P, R], /) -> Task[P, R]: ...


@overload
def shared_task(
    fun: None = None, /, *, bind: Literal[True], **options: Unpack[TaskKeywords]
) -> Callable[[Callable[Concatenate[Any, P], R]], Task[P, R]]: ...


@overload
def shared_task(
    fun: None = None, /, *, bind: Literal[False] = False, **options: Unpack[TaskKeywords]
) -> Callable[[Callable[P, R]], Task[P, R]]: ...


def shared_task(
    fun: Callable[..., Any] | None = None, /, *, bind: bool = False, **options: Any
) -> Any:
    """Make a function a task of every app, those made later too; takes what ``app.task`` takes.

    What it returns stands for the task of the current app. Raises `TypeError` for what isn't a
    function, so also where it is applied twice.
    """
    check_filter(options.get("filter"))
    if fun is None:
        return lambda function: _share(function, bind, options)
    return _share(fun, bind, options)


def check_filter(value: object) -> None:
    """Raises `TypeError` for what can't make anything of a task."""
    if not (value is None or callable(value)):
        raise TypeError(f"filter is {safe_repr(value, 80)}; expected a function of the task")


def _share(fun: Callable[..., Any], bind: bool, options: dict[str, Any]) -> Any:
    if type(fun) is Proxy or not callable(fun) or not hasattr(fun, "__code__"):
        raise TypeError(
            f"shared_task got {'a task' if type(fun) is Proxy else repr(fun)[:80]}; "
            "expected a function, once"
        )
    filter = options.pop("filter", None)
    shared = Shared(fun, bind, options)
    SHARED.append(shared)
    task = Proxy(shared.find, fun.__module__)
    return task if filter is None else filter(task)
