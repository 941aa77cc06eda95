"""Names of Celery and Kombu that aren't here: each raises an error that says what to use.

``celery.nope`` asks the module's ``__getattr__``, ``import celery.nope`` the finder below. So does
``from celery import nope``, but only where the module has a ``__path__``; else Python itself raises
an `ImportError` that knows nothing. So each module here has one, if need be an empty one.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

from umbel.compat.names import MODULES, NAMES
from umbel.exceptions import NotProvided

HOME: Final = "umbel.compat."
ROOTS: Final = ("celery", "kombu")
_NAMED_IN_ERRORS: Final = 12


class MissingImport(ModuleNotFoundError):
    """A name or a module that can't be imported from here."""


def public(name: str) -> str:
    """The module's name in Celery: ``umbel.compat.celery.app`` is ``celery.app``."""
    return name.removeprefix(HOME)


def guard(name: str) -> None:
    """Make the names that the module `name` lacks raise errors that say what to use."""
    module = sys.modules[name]
    if not hasattr(module, "__path__"):
        module.__path__ = []
    module.__getattr__ = partial(_look_up, name)  # type: ignore[method-assign]  # PEP 562


def _look_up(module: str, name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    try:
        return importlib.import_module(f"{module}.{name}")
    except MissingImport as error:
        raise NotProvided(str(error)) from None


def why_missing(name: str) -> str:
    """What to say of ``celery.schedules.crontab``, or of a name that Celery doesn't have either."""
    advice = NAMES.get(name) or MODULES.get(name) or MODULES.get(name.rpartition(".")[0])
    if advice is not None:
        return f"{name} isn't in Umbel: {advice}"
    module, _, last = name.rpartition(".")
    known = _names_of(module)
    near = difflib.get_close_matches(last, known, n=3)
    question = (
        f"did you mean {' or '.join(map(repr, near))}?"
        if near
        else f"it has: {', '.join(known)}"
        if 0 < len(known) <= _NAMED_IN_ERRORS
        else "docs/celery.md lists what there is"
    )
    return f"Umbel's {module} has no {last!r}; {question}"


def _names_of(module: str) -> list[str]:
    loaded = sys.modules.get(HOME + module)
    return sorted(getattr(loaded, "__all__", ()))


class _Finder(MetaPathFinder, Loader):
    """Asked last, so for what has no file."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        name = public(fullname)
        if name == fullname or name.partition(".")[0] not in ROOTS:
            return None
        if name.rpartition(".")[2].startswith("__"):
            return None
        if name in MODULES:
            return ModuleSpec(fullname, self, is_package=True)
        # Another name than the one that was asked for: from that one, `from … import …` takes that
        # there is no such submodule, and says so in its own words.
        raise MissingImport(why_missing(name), name=name)

    def exec_module(self, module: ModuleType) -> None:
        name = public(module.__name__)
        module.__doc__ = f"Nothing of {name} is here: {MODULES[name]}"
        module.__dict__["__all__"] = []
        guard(module.__name__)


_FINDER: Final = _Finder()


def watch() -> None:
    """Answer for what is missing from now on."""
    if _FINDER not in sys.meta_path:
        sys.meta_path.append(_FINDER)
