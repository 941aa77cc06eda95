"""`task_annotations`: changes to tasks' options and handlers, by name, from the settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MethodType
from typing import Any, cast

from umbel.exceptions import ImproperlyConfigured
from umbel.keywords import HANDLERS
from umbel.saferepr import safe_repr
from umbel.task import Task

Changes = Mapping[str, Any]


def annotate(task: Task[..., Any], annotations: Iterable[object]) -> None:
    """Change `task` by each of these: by what is for all (``*``), then by what is for its name.

    A handler is a function whose first parameter is the task. Raises `ImproperlyConfigured`,
    and what assigning the option raises.
    """
    for changes in _changes(task, annotations):
        for name, value in changes.items():
            handler = name in HANDLERS and callable(value)
            setattr(task, name, MethodType(value, task) if handler else value)


def _changes(task: Task[..., Any], annotations: Iterable[object]) -> Iterator[Changes]:
    for each in annotations:
        if isinstance(each, Mapping):
            for key in ("*", task.name):
                changes = each.get(key)
                if changes and not isinstance(changes, Mapping):
                    raise ImproperlyConfigured(
                        f"task_annotations has {safe_repr(changes, 80)} for {key!r}; expected a "
                        "dict of options, such as {'max_retries': 5}"
                    )
                if changes:
                    yield changes
            continue
        found: Any = getattr(each, "annotate", None)
        if not callable(found):
            raise ImproperlyConfigured(
                f"task_annotations has {each!r:.80}; expected a dict of dicts by task name, or an "
                "object with a method annotate(task)"
            )
        method = cast("Callable[[Task[..., Any]], Changes | None]", found)
        if found_changes := method(task):
            yield found_changes
