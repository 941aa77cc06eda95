"""``umbel shell``: Python with the app, its tasks and the parts of workflows in scope."""

from __future__ import annotations

import code
import contextlib
import sys
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

import click

import umbel
from umbel import Umbel
from umbel.cli.exits import Exit, Mistake, WrongUse
from umbel.cli.find_app import mistake_of
from umbel.cli.session import Session, pass_session
from umbel.settings import censored

EXAMPLES = """\b
Examples:
  umbel -A proj shell
  umbel -A proj shell --eager
  echo 'print(add.delay(2, 3).get(timeout=10))' | umbel -A proj shell

In scope are app (also as celery), tasks (all of them, by name), each task under the name of its
function, and AsyncResult, signature, chain, group, chord, chunks, xmap, xstarmap, Task,
current_app.
"""

_PARTS: Final = (
    "Task", "chain", "chord", "chunks", "current_app", "group", "signature", "xmap", "xstarmap",
)  # fmt: skip


@click.command("shell", epilog=EXAMPLES)
@click.option("--python", "which", flag_value="python", help="Use Python's own shell.")
@click.option("-I", "--ipython", "which", flag_value="ipython", help="Use IPython.")
@click.option("-B", "--bpython", "which", flag_value="bpython", help="Use bpython.")
@click.option("-T", "--without-tasks", is_flag=True, help="Leave the tasks' own names out.")
@click.option("--eager", is_flag=True, help="Run what is sent here and now, in this process.")
@click.option("--eventlet", is_flag=True, hidden=True)
@click.option("--gevent", is_flag=True, hidden=True)
@pass_session
def command(
    session: Session,
    /,
    which: str | None,
    without_tasks: bool,
    eager: bool,
    eventlet: bool,
    gevent: bool,
) -> int:
    """Start a shell: IPython where that is installed, else Python's own.

    Where standard input is no terminal, what comes from there is run as a program.
    """
    if eventlet or gevent:
        raise WrongUse("--eventlet and --gevent aren't options here: greenlets come with a later "
                       "release; the shell works without them")  # fmt: skip
    app = session.named_app()
    _load(app)
    if eager:
        app.conf.task_always_eager = True
    scope = scope_of(app, with_tasks=not without_tasks)
    if which is None and not sys.stdin.isatty():
        return _run_program(sys.stdin.read(), scope)
    banner = "" if session.quiet else _banner(app, scope)
    shells = {"ipython": _ipython, "bpython": _bpython, "python": _python}
    if which is None:
        which = "ipython" if _is_installed("IPython") else "python"
    try:
        shells[which](scope, banner)
    except SystemExit as leaving:
        return _code_of(leaving)
    return Exit.OK


def _load(app: Umbel) -> None:
    try:
        app.load_modules()
    except Exception as error:
        raise mistake_of("a module of the app", error) from error


def scope_of(app: Umbel, *, with_tasks: bool = True) -> dict[str, Any]:
    """The names in the shell.

    A task has that of its function, unless that of something else or of two tasks; `tasks` has
    all.
    """
    scope: dict[str, Any] = {"__name__": "__console__", "__doc__": None}
    if with_tasks:
        own = [(task.__name__, task) for name, task in app.tasks.items() if _is_own(name)]
        times = Counter(name for name, _ in own)
        scope.update((name, task) for name, task in own if times[name] == 1)
    scope.update((name, getattr(umbel, name)) for name in _PARTS)
    scope.update(app=app, celery=app, tasks=app.tasks, AsyncResult=app.AsyncResult)
    return scope


def _is_own(name: str) -> bool:
    return not name.startswith("celery.")


def _banner(app: Umbel, scope: dict[str, Any]) -> str:
    url = censored("broker_url", app.connections.broker_url)
    parts = {*_PARTS, "app", "celery", "tasks", "AsyncResult", "__name__", "__doc__"}
    own = sorted(set(scope) - parts)
    lines = [
        f"umbel {umbel.__version__}, Python {sys.version.split()[0]}",
        f"app {app.main!r} at {url}{', eager' if app.conf.task_always_eager else ''}",
        f"its tasks: {', '.join(own) or 'none'}",
    ]
    left_out = [
        name
        for name, task in app.tasks.items()
        if _is_own(name) and own and scope.get(task.__name__) is not task
    ]
    if left_out:
        lines.append(f"only as tasks['…'], since their names are taken: {', '.join(left_out)}")
    return "\n".join(lines)


def _run_program(text: str, scope: dict[str, Any]) -> int:
    console = code.InteractiveInterpreter(scope)
    try:
        program = compile(text, "<stdin>", "exec")
    except (SyntaxError, ValueError, OverflowError):
        console.showsyntaxerror("<stdin>")
        return Exit.FAILED
    try:
        exec(program, scope)
    except SystemExit as leaving:
        return _code_of(leaving)
    except Exception:
        console.showtraceback()
        return Exit.FAILED
    return Exit.OK


def _code_of(leaving: SystemExit) -> int:
    if leaving.code is None or isinstance(leaving.code, int):
        return leaving.code or Exit.OK
    click.echo(leaving.code, err=True)
    return Exit.FAILED


def _python(scope: dict[str, Any], banner: str) -> None:
    with contextlib.suppress(ImportError):  # not every Python is built with readline
        import readline
        from rlcompleter import Completer

        readline.set_completer(Completer(scope).complete)
        readline.parse_and_bind("tab: complete")
    code.interact(banner=banner, local=scope, exitmsg="")


def _ipython(scope: dict[str, Any], banner: str) -> None:
    start: Callable[..., Any] = _installed("IPython", "--ipython").start_ipython
    if banner:
        click.echo(banner)
    start(argv=[], user_ns=scope)


def _bpython(scope: dict[str, Any], banner: str) -> None:
    embed: Callable[..., Any] = _installed("bpython", "--bpython").embed
    embed(locals_=scope, banner=banner)


def _is_installed(package: str) -> bool:
    try:
        import_module(package)
    except ImportError:
        return False
    return True


def _installed(package: str, option: str) -> Any:
    try:
        return import_module(package)
    except ImportError as error:
        raise Mistake(
            f"{option}: {package} isn't installed here; pip install {package.lower()} brings it, "
            "--python does without",
            Exit.CONFIG,
        ) from error
