"""``umbel``: the command line. One file per command; a command's file is loaded when it runs."""

from __future__ import annotations

import difflib
import logging
import os
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import TextIO

import click

from umbel import Umbel, __version__
from umbel.cli.exits import Exit, Mistake, WrongUse, code_of
from umbel.cli.output import one_line, quoted, remark, remarks_in_json
from umbel.cli.session import Session
from umbel.cli.streams import lost_output, make_writable
from umbel.exceptions import BackendError, UmbelError, UmbelWarning

COMMANDS = {
    "worker": "Run tasks.",
    "call": "Send one task, by name.",
    "result": "Print what a task returned, or why it failed.",
    "purge": "Delete the messages that wait in queues.",
    "prune": "Delete results and dead letters that are too old or too many.",
    "queues": "Show how many messages each queue holds.",
    "dead": "List, show, requeue and delete dead letters.",
    "why": "Say where a task is and what it waits for.",
    "message": "Print a message as it is stored, with its arguments.",
    "status": "Show which workers are online.",
    "handback": "Leave the queues to Celery's workers.",
    "settings": "Show the settings of an app, or explain some.",
    "shell": "Start a Python shell with the app and its tasks.",
    "report": "Show what a bug report needs: versions, settings.",
    "retry-plan": "Show when a task is tried again, and what that adds up to.",
    "demo": "Count the words of real files, with workers, retries and a poison file.",
}
"""The commands and their one-line help, so that ``umbel --help`` needn't load them."""

LATER = {
    **dict.fromkeys(
        ("beat", "control", "events", "graph", "inspect", "list", "logtool", "migrate", "upgrade"),
        "comes with a later release",
    ),
    "amqp": "comes with the release that speaks RabbitMQ's protocol",
    "multi": "isn't there, since a process manager (systemd, supervisord, a container) starts and "
    "watches workers better: one `umbel -A proj worker -n NAME` for each",
}  # fmt: skip
"""Celery's other commands, and what became of them."""

EXAMPLES = """\b
Examples:
  umbel -A proj worker --loglevel INFO
  umbel -A proj call proj.tasks.add -a '[2, 3]'
  umbel -b sqlite:///tasks.db queues
  umbel -A proj why 7d1f0c9e-3b52-4c6f-a3de-f2f1c1f0a9b7
  umbel demo

Options may also stand in the environment: UMBEL_APP, UMBEL_BROKER, UMBEL_WORKER_CONCURRENCY, …
"""

_BEFORE = (
    "-A", "--app", "-b", "--broker", "--result-backend", "--workdir", "-C", "--no-color",
    "--as-celery",
)  # fmt: skip


class Commands(click.Group):
    """The group ``umbel``, whose commands are modules of this package."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = import_module(f"umbel.cli.{cmd_name.replace('-', '_')}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] == "help":
            args = [*args[1:], "--help"]
        if ctx.resilient_parsing:  # what is completed in a shell may be anything
            return super().resolve_command(ctx, args)
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            raise _no_command(args[0])
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.command(
    cls=Commands,
    invoke_without_command=True,
    epilog=EXAMPLES,
    context_settings={
        "auto_envvar_prefix": "UMBEL",
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
    },
)
@click.option("-A", "--app", metavar="APP", help="The app: a module, or module:attribute.")
@click.option("-b", "--broker", metavar="URL", help="The broker, in place of the app's.")
@click.option("--result-backend", metavar="URL", help="The result store, in place of the app's.")
@click.option("--workdir", metavar="FOLDER", help="Change to this folder first.")
@click.option("-C", "--no-color", is_flag=True, help="Print without colours.")
@click.option("-q", "--quiet", is_flag=True, help="Leave out remarks and banners.")
@click.option("--as-celery", is_flag=True, help="Make `import celery` mean Umbel.")
@click.version_option(__version__, message="umbel %(version)s")
@click.pass_context
def umbel(
    ctx: click.Context,
    app: str | None,
    broker: str | None,
    result_backend: str | None,
    workdir: str | None,
    no_color: bool,
    quiet: bool,
    as_celery: bool,
) -> None:
    """A distributed task queue: Celery's API and wire format, none of its losses."""
    if as_celery:
        from umbel.compat import alias  # before any module of the app

        alias.install()
        alias.tell_children()
    started_in = os.getcwd()
    if workdir is not None:
        try:
            os.chdir(workdir)
        except OSError as error:
            raise Mistake(
                f"--workdir {workdir}: can't change to that folder: {error.strerror}", Exit.NO_INPUT
            ) from error
    if no_color:
        ctx.color = False
    no_color = no_color or bool(os.environ.get("NO_COLOR"))
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
    given = ctx.obj
    ctx.obj = session = Session(app, broker, result_backend, no_color, quiet, started_in)
    if isinstance(given, Umbel):
        session.use(given)
    ctx.call_on_close(session.close)


def main(arguments: Sequence[str] | None = None, app: Umbel | None = None) -> int:
    """Run one command; the exit code. A user's mistake is one sentence, never a traceback.

    `app` is the one that is meant where ``-A`` names none.
    """
    warnings.showwarning = _show_warning
    make_writable()
    remarks_in_json(False)
    try:
        code = _run(arguments, app)
    except OSError as error:
        lost = lost_output(error)
        if lost is None:
            raise
    else:
        lost = lost_output()
        if lost is None:
            return code
    if isinstance(lost, BrokenPipeError):  # `umbel … | head` has read enough
        return Exit.FAILED
    return _say(f"the output can't be written: {lost.strerror}", Exit.OUTPUT)


def _run(arguments: Sequence[str] | None, app: Umbel | None) -> int:
    try:
        code = umbel.main(arguments, prog_name="umbel", standalone_mode=False, obj=app)
    except click.Abort:
        # Where a string was being run (as dataclasses do when their module is imported) Python
        # remembers the interrupt and would end as if killed by it; running another one makes it
        # forget.
        exec("")
        return _say("interrupted", Exit.INTERRUPTED)
    except click.UsageError as error:
        return _say(_usage(error), Exit.USAGE, _command_path(error))
    except Mistake as error:
        return _say(error.message, error.code)
    except click.ClickException as error:
        return _say(error.format_message(), Exit.FAILED)
    except (UmbelError, BackendError) as error:
        if os.environ.get("UMBEL_TRACEBACK"):
            raise
        return _say(str(error) or type(error).__name__, code_of(error))
    return int(code or 0)


def _no_command(name: str) -> WrongUse:
    if name in LATER:
        return WrongUse(f"Celery's command {name!r} {LATER[name]}")
    near = difflib.get_close_matches(name, COMMANDS, n=1)
    question = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(COMMANDS)}"
    return WrongUse(f"there is no command {quoted(name)}; {question}")


def _usage(error: click.UsageError) -> str:
    if isinstance(error, click.NoSuchOption) and error.option_name in _BEFORE:
        return (
            f"{error.option_name} stands before the command, not behind it: "
            f"umbel {error.option_name} … {error.ctx.info_name if error.ctx else 'COMMAND'}"
        )
    text = error.format_message().rstrip(".")
    return f"{text[:1].lower()}{text[1:]}; see: {_command_path(error)} --help"


def _command_path(error: click.UsageError) -> str:
    return error.ctx.command_path if error.ctx else "umbel"


def _say(sentence: str, code: int, who: str = "umbel") -> int:
    remark(f"{who}: {one_line(sentence)}", logging.ERROR)
    return int(code)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Umbel's own warnings are for the person at the terminal: one line, no source line."""
    if issubclass(category, UmbelWarning):
        remark(f"umbel: {one_line(str(message))}")
    else:
        remark(warnings.formatwarning(message, category, filename, lineno, line).rstrip("\n"))
