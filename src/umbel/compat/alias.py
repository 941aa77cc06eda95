"""``import celery`` and ``import kombu`` as names of the packages here, in this process.

The modules are the same objects: ``sys.modules["celery.app"] is umbel.compat.celery.app``. Forks
inherit that. A Python that is started anew knows nothing of it, unless it is the ``umbel`` command,
which reads the variable that `tell_children` sets.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import pkgutil
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final

from umbel.compat.missing import HOME, ROOTS
from umbel.compat.names import MODULES
from umbel.exceptions import ImproperlyConfigured

VARIABLE: Final = "UMBEL_AS_CELERY"


class _Finder(MetaPathFinder, Loader):
    """Asked first, so that a Celery that is installed too isn't found."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in ROOTS:
            return None
        found = importlib.util.find_spec(HOME + fullname)
        if found is None:
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(HOME + spec.name)
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The import system has just given it the alias's spec; it keeps its own.
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state
        _enter()


_FINDER: Final = _Finder()


def install() -> None:
    """Make ``import celery`` and ``import kombu`` mean Umbel's packages; again is fine.

    Raises `ImproperlyConfigured` where the real ones are imported already: what holds their
    classes would meet ours.
    """
    foreign = _foreign()
    if foreign:
        where = getattr(sys.modules[foreign[0]], "__file__", None) or "a module without a file"
        raise ImproperlyConfigured(
            f"{foreign[0]!r} is imported already, from {where}, so it can't become another name of "
            f"{HOME + foreign[0]}; call install() before anything imports it, or start the program "
            "with python -m umbel.compat.celery SCRIPT"
        )
    # All of them now, in one thread, some 50 ms: where two threads import a package and a module of
    # it that the package imports itself, each can wait for the other, and one gets an error.
    for name in _modules():
        importlib.import_module(name)
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
    _enter()


def _modules() -> Iterator[str]:
    """Our packages and all their modules, those of the table too."""
    for root in ROOTS:
        package = importlib.import_module(HOME + root)
        yield package.__name__
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.endswith(".__main__"):
                yield found.name
    yield from (HOME + name for name in MODULES)


def uninstall() -> None:
    """Undo `install`: the next ``import celery`` finds what is installed under that name."""
    if _FINDER in sys.meta_path:
        sys.meta_path.remove(_FINDER)
    for name in _aliased():
        if sys.modules[name] is sys.modules.get(HOME + name):
            del sys.modules[name]


def tell_children() -> None:
    """Make each ``umbel`` command that this process starts install the alias too."""
    os.environ[VARIABLE] = "1"


def _enter() -> None:
    """Give every module of ours that is imported its other name.

    Were ``kombu.utils.uuid`` only imported later, under that name, Python would bind it to
    ``kombu.utils.uuid``, in place of the function that is there by then.
    """
    if _FINDER not in sys.meta_path:
        return
    for name, module in list(sys.modules.items()):
        if name.startswith(tuple(HOME + root for root in ROOTS)) and _is_ready(module):
            sys.modules.setdefault(name.removeprefix(HOME), module)


def _is_ready(module: ModuleType) -> bool:
    """Whether no other thread is still importing it."""
    return not getattr(module.__spec__, "_initializing", False)


def _aliased() -> list[str]:
    return [name for name in list(sys.modules) if name.partition(".")[0] in ROOTS]


def _foreign() -> list[str]:
    """The modules of the real packages, shortest name first."""
    return sorted(
        name for name in _aliased() if sys.modules[name] is not sys.modules.get(HOME + name)
    )
