"""Which app and which task code is in, where it doesn't hold one itself.

The current app is the first that there is of:

1. the app of the task that runs here, so that several apps in one process don't mix;
2. the app that this thread made or set last (`Umbel.set_current`);
3. the default of all threads (`Umbel.set_default`; a worker sets its own app);
4. the app that any thread made last.

A result, a shared task and the two proxies below ask for it; nothing deeper does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, cast

from umbel.exceptions import ImproperlyConfigured
from umbel.request import current_request, executing

if TYPE_CHECKING:
    from umbel.app import Umbel
    from umbel.task import Task


class _Here(threading.local):
    app: Umbel | None = None


_here: Final = _Here()
_default: Umbel | None = None
_last: Umbel | None = None


def set_current(app: Umbel) -> None:
    """Make `app` this thread's current one, and the last resort of threads that have none."""
    global _last
    _here.app = _last = app


def set_default(app: Umbel) -> None:
    """Make `app` the one of all threads that have none of their own."""
    global _default
    _default = app


def get_current_app() -> Umbel:
    """The current app. Raises `ImproperlyConfigured` where there is none."""
    running = current_request.get()
    app = (running and getattr(running.task, "app", None)) or _here.app or _default or _last
    if app is None:
        raise ImproperlyConfigured(
            "there is no app in this process; make one first: app = Umbel('name', broker=...)"
        )
    return app


def get_current_task() -> Task[..., Any] | None:
    """The task that runs here, the innermost; None outside tasks."""
    running = current_request.get()
    return None if running is None else cast("Task[..., Any]", running.task)


def get_current_worker_task() -> Task[..., Any] | None:
    """The task that a worker executes here; None in tasks that are called like functions."""
    running = executing()
    return None if running is None else cast("Task[..., Any]", running.task)


class Proxy:
    """Stands for an object that is looked up anew at each use.

    `home` is the name of the module that it belongs to.
    """

    __slots__ = ("__find", "__home", "__weakref__")

    def __init__(self, find: Callable[[], Any], home: str = __name__) -> None:
        object.__setattr__(self, "_Proxy__find", find)
        object.__setattr__(self, "_Proxy__home", home)

    def _get_current_object(self) -> Any:
        """What it stands for now."""
        return self.__find()

    @property  # type: ignore[misc]  # isinstance() may see what it stands for
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return type(self.__find())

    @property
    def __module__(self) -> Any:  # type: ignore[override]  # known without an app
        return self.__home

    @property
    def __doc__(self) -> Any:  # type: ignore[override]  # that of what it stands for
        return self.__find().__doc__

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__find(), name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self.__find(), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.__find(), name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__find()(*args, **kwargs)

    def __getitem__(self, key: Any) -> Any:
        return self.__find()[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.__find())

    def __or__(self, other: Any) -> Any:
        return self.__find() | other

    def __dir__(self) -> list[str]:
        return dir(self.__find())

    def __bool__(self) -> bool:
        try:
            return bool(self.__find())
        except ImproperlyConfigured:
            return False

    def __eq__(self, other: object) -> bool:
        if type(other) is Proxy:
            other = other._get_current_object()
        return bool(self.__find() == other)

    def __hash__(self) -> int:
        return hash(self.__find())

    def __repr__(self) -> str:
        return repr(self.__find())


current_app: Final = cast("Umbel", Proxy(get_current_app))
"""The current app, looked up at each use. Using it raises `ImproperlyConfigured` without one."""

current_task: Final = cast("Task[..., Any]", Proxy(get_current_task))
"""The task that runs here; false outside tasks."""
