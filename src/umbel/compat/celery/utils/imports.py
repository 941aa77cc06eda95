"""``celery.utils.imports``."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from umbel.compat.kombu.utils.imports import symbol_by_name
from umbel.compat.missing import guard

__all__ = [
    "cwd_in_path",
    "gen_task_name",
    "import_from_cwd",
    "instantiate",
    "qualname",
    "symbol_by_name",
]


def qualname(obj: Any) -> str:
    """Where an object, or the class of one, is defined: ``'proj.tasks.Order'``."""
    named = obj if hasattr(obj, "__name__") else type(obj)
    name: str = getattr(named, "__qualname__", named.__name__)
    return name if isinstance(named, ModuleType) else f"{named.__module__}.{name}"


def instantiate(name: Any, *args: Any, **kwargs: Any) -> Any:
    """An object of the class ``"proj.module:Class"``."""
    return symbol_by_name(name)(*args, **kwargs)


@contextmanager
def cwd_in_path() -> Iterator[None]:
    """For as long as the block takes, the working directory can be imported from."""
    folder = os.getcwd()
    if folder in sys.path:
        yield
        return
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        if folder in sys.path:
            sys.path.remove(folder)


def import_from_cwd(
    module: str, imp: Callable[..., Any] | None = None, package: str | None = None
) -> Any:
    """A module, also one that lies in the working directory."""
    with cwd_in_path():
        return (imp or importlib.import_module)(module, package=package)


def gen_task_name(app: Any, name: str, module_name: str) -> str:
    """The name that `app` gives a task."""
    return str(app.gen_task_name(name, module_name))


guard(__name__)
