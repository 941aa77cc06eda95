"""``python -m umbel.compat.celery SCRIPT [ARGUMENT …]``, or ``-m MODULE [ARGUMENT …]``.

Runs a program in which ``import celery`` and ``import kombu`` mean Umbel; else as ``python`` does.
"""

from __future__ import annotations

import importlib.machinery
import os
import runpy
import sys
from types import ModuleType

from umbel.compat.alias import install, tell_children
from umbel.exceptions import ImproperlyConfigured

USAGE = "usage: python -m umbel.compat.celery SCRIPT [ARGUMENT …] | -m MODULE [ARGUMENT …]"
WRONG_USE = 2


def main(arguments: list[str]) -> None:
    """Run what `arguments` name. Raises `SystemExit` with a sentence where there is nothing."""
    if arguments[:1] in ([], ["-h"], ["--help"]):
        raise SystemExit(_wrong(USAGE))
    by_name = arguments[0] == "-m"
    if by_name:
        arguments = arguments[1:]
    if not arguments or arguments[0].startswith("-"):
        raise SystemExit(_wrong(USAGE))
    if by_name and arguments[0] in ("celery", "kombu"):
        raise SystemExit(_wrong("the command is umbel --as-celery -A proj worker"))
    try:
        install()
    except ImproperlyConfigured as error:
        raise SystemExit(_wrong(str(error))) from None
    tell_children()
    sys.argv[:] = arguments
    if by_name:
        # Python has put the working directory first already, as it does for any -m.
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    elif os.path.isfile(arguments[0]):
        _run_script(arguments[0])
    else:
        raise SystemExit(_wrong(f"there is no file {arguments[0]!r} in {os.getcwd()}"))


def _run_script(path: str) -> None:
    """Run a file as the main module; `runpy` would take it away again at its end, too early for
    threads and exit handlers."""
    sys.path[0] = os.path.dirname(os.path.abspath(path))
    module = ModuleType("__main__")
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    module.__dict__.update(__file__=path, __loader__=loader, __builtins__=__builtins__)
    module.__spec__ = None
    sys.modules["__main__"] = module
    with open(path, "rb") as file:
        code = compile(file.read(), path, "exec")
    exec(code, module.__dict__)


def _wrong(sentence: str) -> int:
    sys.stderr.write(f"umbel.compat.celery: {sentence}\n")
    return WRONG_USE


if __name__ == "__main__":
    main(sys.argv[1:])
