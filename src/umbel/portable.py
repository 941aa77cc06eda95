"""Apps and tasks as pickles: an app by where it can be imported from, a task by its name."""

from __future__ import annotations

import importlib
import sys
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from umbel.exceptions import NotRegistered

if TYPE_CHECKING:
    from umbel.app import Umbel
    from umbel.task import Task


_places: weakref.WeakKeyDictionary[Umbel, tuple[str, str]] = weakref.WeakKeyDictionary()
"""Where apps were found: looking through all modules takes milliseconds."""


def reduced_app(app: Umbel) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """How `app` is made again: imported, else made anew with its settings and without its tasks."""
    place = _place_of(app)
    if place is not None:
        return _imported, place
    return _made, (type(app), app.main, app.conf.non_defaults())


def reduced_task(task: Task[..., Any]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """How `task` is found again: by its name in its app."""
    return _task_of, (task.app, task.name, getattr(task.__wrapped__, "__module__", None))


def _place_of(app: Umbel) -> tuple[str, str] | None:
    """(module, attribute) of a module that holds the app; the shortest name of several."""
    kept = _places.get(app)
    if kept is not None and getattr(sys.modules.get(kept[0]), kept[1], None) is app:
        return kept
    found = _look_for(app)
    if found is not None:
        _places[app] = found
    return found


def _look_for(app: Umbel) -> tuple[str, str] | None:
    found = [
        (name, attribute)
        for name, module in list(sys.modules.items())
        if name not in ("__main__", "__mp_main__")
        for attribute, value in list(getattr(module, "__dict__", {}).items())
        if value is app and not attribute.startswith("_")  # such as the last app of a process
    ]
    return min(found, key=lambda place: (place[0].count("."), len(place[0]), place), default=None)


def _imported(module: str, attribute: str) -> Umbel:
    found: Umbel = getattr(importlib.import_module(module), attribute)
    return found


def _made(cls: type[Umbel], main: str | None, settings: Mapping[str, object]) -> Umbel:
    return cls(main, set_as_current=False, changes=settings)


def _task_of(app: Umbel, name: str, module: str | None) -> Task[..., Any]:
    try:
        return app.tasks[name]
    except NotRegistered:
        if module is None or module in sys.modules:
            raise
        importlib.import_module(module)
        return app.tasks[name]
