"""From what stands behind ``-A`` to the app.

::

    proj            module or package proj
    proj:app        attribute app of it; dots go deeper (proj:box.app)
    proj.app        module proj.app, or attribute app of module proj

Where that is a module, its app is its attribute ``app`` or ``celery``, else the only `Umbel` in
it, else, for a package, that of its module ``app`` or ``celery``.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import sysconfig
import traceback
from types import ModuleType

from umbel.app import Umbel
from umbel.cli.exits import Mistake
from umbel.cli.output import message_of, quoted

_NAMES = ("app", "celery")
_LIBRARIES = (
    os.path.dirname(os.path.dirname(__file__)),
    *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
)


def find_app(text: str) -> Umbel:
    """The app that `text` names. Raises `Mistake` with one sentence where there is none."""
    name, colon, path = text.partition(":")
    if colon:
        found = _follow(import_module(name), path)
    elif _has_module(name):
        found = import_module(name)
    else:
        name, dot, path = text.rpartition(".")
        if not dot:
            raise _no_module(text)
        found = _follow(import_module(name), path)
    if isinstance(found, ModuleType):
        found = _app_in(found)
    if isinstance(found, Umbel):
        return found
    raise Mistake(
        f"-A {text}: that is {_an(type(found).__name__)}, not an app; "
        "name an Umbel: -A module:attribute"
    )


def import_module(name: str) -> ModuleType:
    """The module `name`, imported. Raises `Mistake`, which says where its code raised what."""
    if not _has_module(name):
        raise _no_module(name)
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        if os.environ.get("UMBEL_TRACEBACK"):
            raise
        raise mistake_of(f"module {name!r}", error) from error


def mistake_of(what: str, error: BaseException) -> Mistake:
    """What `what` raised when it was imported, and where, as one sentence."""
    return Mistake(
        f"{what} can't be imported: {type(error).__name__}: {_one_line(error)} "
        f"({_place(error)}). {_advice(error)}"
    )


def _advice(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name in ("celery", "kombu"):
        return "umbel --as-celery makes `import celery` mean Umbel"
    return "UMBEL_TRACEBACK=1 shows the traceback"


def _has_module(name: str) -> bool:
    """Whether `name` can be found; imports its parents, whose errors are for `import_module`."""
    if not all(part.isidentifier() for part in name.split(".")):
        return False
    parent = name.rpartition(".")[0]
    if parent:
        if not _has_module(parent):
            return False
        if not hasattr(import_module(parent), "__path__"):
            return False
    try:
        return name in sys.modules or importlib.util.find_spec(name) is not None
    except ValueError:  # __main__ and its like have no spec
        return name in sys.modules


def _follow(module: ModuleType, path: str) -> object:
    found: object = module
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise Mistake(
                f"module {module.__name__!r} has no attribute {path!r} ({_file_of(module)}); "
                f"{_apps_there(module)}"
            ) from None
    return found


def _app_in(module: ModuleType) -> Umbel:
    for name in _NAMES:
        if isinstance(found := getattr(module, name, None), Umbel):
            return found
    apps = _apps(module)
    if len(apps) == 1:
        return next(iter(apps.values()))
    if not apps and hasattr(module, "__path__"):
        for name in _NAMES:
            if _has_module(submodule := f"{module.__name__}.{name}"):
                return _app_in(import_module(submodule))
    raise Mistake(
        f"module {module.__name__!r} ({_file_of(module)}) has no attribute 'app' that is an Umbel; "
        f"{_apps_there(module)}"
    )


def _apps(module: ModuleType) -> dict[str, Umbel]:
    """The apps in a module by name; one that has two names stands under the first."""
    found: dict[int, tuple[str, Umbel]] = {}
    for name, value in vars(module).items():
        if isinstance(value, Umbel):
            found.setdefault(id(value), (name, value))
    return dict(found.values())


def _apps_there(module: ModuleType) -> str:
    apps = _apps(module)
    if not apps:
        return "it has no app at all: app = Umbel('name') makes one"
    return "name one of those it has: " + ", ".join(f"-A {module.__name__}:{name}" for name in apps)


def _no_module(name: str) -> Mistake:
    return Mistake(
        f"there is no module {quoted(name)} in {os.getcwd()} or among the installed packages; "
        "-A names a module as import does, --workdir sets the folder"
    )


def _one_line(error: BaseException) -> str:
    text = error.msg if isinstance(error, SyntaxError) else message_of(error)
    return " ".join(text.split()) or "no message"


def _place(error: BaseException) -> str:
    """The file and line where it happened: the innermost that isn't a library's."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<frozen ")
    ]
    own = [frame for frame in frames if not frame.filename.startswith(_LIBRARIES)]
    if not frames:
        return "raised outside Python code"
    frame = (own or frames)[-1]
    return f"{frame.filename}, line {frame.lineno}"


def _file_of(module: ModuleType) -> str:
    return getattr(module, "__file__", None) or "a module without a file"


def _an(noun: str) -> str:
    return f"{'an' if noun[0].lower() in 'aeiou' else 'a'} {noun}"
