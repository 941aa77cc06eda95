"""``umbel worker``: Celery's options, made into `WorkerOptions`."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import click

from umbel.cli.exits import WrongUse
from umbel.cli.find_app import import_module
from umbel.cli.names import names_option
from umbel.cli.output import remarks_in_json
from umbel.cli.reload import folders_to_watch, start_number, watch_and_run
from umbel.cli.seconds import seconds
from umbel.cli.session import Session, pass_session
from umbel.worker.boot import run_worker
from umbel.worker.options import WorkerOptions, usable_processors

EXAMPLES = """\b
Examples:
  umbel -A proj worker
  umbel -A proj worker -l INFO -c 8 -Q emails,default
  umbel -A proj worker -n slow@%h --time-limit 300 --soft-time-limit 280

Celery's --without-gossip, --without-mingle, --without-heartbeat, --heartbeat-interval,
-O/--optimization, -S/--statedb and --disable-prefetch are accepted and change nothing: there is
no gossip to switch off, and revocations are kept by the broker.
"""

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL", "FATAL")
POOLS = {
    "prefork": "prefork",
    "processes": "prefork",
    "threads": "threads",
    "asyncio": "asyncio",
    "solo": "solo",
}

NOT_HERE = {
    ("-B", "--beat"): "periodic tasks come with a later release; until then cron can run "
    "`umbel call NAME`",
    ("-D", "--detach"): "the worker stays in the foreground; a process manager (systemd, "
    "supervisord, a container) or `nohup … &` puts it in the background",
    ("-s", "--schedule-filename", "--schedule"): "periodic tasks come with a later release",
    ("--scheduler",): "periodic tasks come with a later release",
    ("--autoscale",): "a pool that grows and shrinks comes with a later release; -c sets its size",
    ("--pool-start-method",): "how processes start isn't a choice yet; they are forked",
    ("--pidfile",): "a process manager (systemd, supervisord, a container) knows the process id",
    ("--uid",): "start the worker as that user, for example with User= of systemd",
    ("--gid",): "start the worker with that group, for example with Group= of systemd",
    ("--umask",): "set the umask before the worker starts, for example with UMask= of systemd",
    ("--executable",): "start the worker with that Python: PYTHON -m umbel -A proj worker",
}
"""Celery's options that this worker doesn't have, and what does it instead."""
FLAGS = (("-B", "--beat"), ("-D", "--detach"))
"""Those of them that take no value."""
_MOST_HELD = 65_535
"""As many as a prefetch count can say in AMQP, and far more than help."""
IGNORED_FLAGS = ("without-gossip", "without-mingle", "without-heartbeat", "disable-prefetch")
_PER_POOL = {
    "gevent": "greenlets",
    "eventlet": "greenlets",
    "custom": "pools of your own",
}


def _concurrency(text: str) -> int:
    if text == "auto":
        return usable_processors()
    if not text.isdecimal() or int(text) < 1:
        raise WrongUse(f"--concurrency {text}: expected a whole number from 1, or 'auto'")
    return int(text)


def _level(text: str) -> str | int:
    if text.isdecimal():
        return int(text)
    if text.upper() not in LEVELS:
        raise WrongUse(f"--loglevel {text}: expected one of {', '.join(LEVELS)}, or a number")
    return text.upper()


def _pool(text: str) -> str:
    name = text.lower()
    if name in POOLS:
        return POOLS[name]
    later = f"{_PER_POOL[name]} come with a later release; " if name in _PER_POOL else ""
    raise WrongUse(
        f"--pool {text}: {later}this one has prefork (the default), threads, asyncio and solo"
    )


def _refuse(names: tuple[str, ...], sentence: str, *, flag: bool) -> Callable[[Any], Any]:
    def callback(ctx: click.Context, param: click.Parameter, value: object) -> None:
        if value:
            raise WrongUse(f"{'/'.join(names)} isn't an option of this worker: {sentence}")

    return click.option(*names, is_flag=flag, hidden=True, expose_value=False, callback=callback)


def _celerys_other_options(command: Callable[..., Any]) -> Callable[..., Any]:
    options = [
        *(_refuse(names, sentence, flag=names in FLAGS) for names, sentence in NOT_HERE.items()),
        *(_ignored(f"--{name}", is_flag=True) for name in IGNORED_FLAGS),
        _ignored("--heartbeat-interval", type=float),
        _ignored("-S", "--statedb"),
        _ignored("-O", "--optimization"),
    ]
    for option in options:
        command = option(command)
    return command


def _ignored(*declarations: str, **attributes: Any) -> Callable[[Any], Any]:
    return click.option(*declarations, hidden=True, expose_value=False, **attributes)


def _speak_json(ctx: click.Context, param: click.Parameter, value: bool) -> bool:
    if value:
        remarks_in_json(True)
    return value


@click.command("worker", epilog=EXAMPLES)
@click.option("-n", "--hostname", help="The worker's name; %h host, %n name, %d domain.")
@click.option(
    "-l",
    "--loglevel",
    type=_level,
    metavar="LEVEL",
    default="WARNING",
    show_default=True,
    help="Log from this level on.",
)
@click.option(
    "--log-json",
    is_flag=True,
    is_eager=True,  # what the other options are answered with is JSON too
    callback=_speak_json,
    help="Log a JSON object per line.",
)
@click.option("-f", "--logfile", metavar="FILE", help="Log to this file; default standard error.")
@click.option(
    "-c",
    "--concurrency",
    type=_concurrency,
    metavar="NUMBER",
    help="Tasks at once: processes; threads or coroutines per process. Default: processors (auto).",
)
@click.option(
    "--processes",
    type=click.IntRange(1),
    metavar="NUMBER",
    help="Processes of the pools threads and asyncio; default 1.",
)
@click.option(
    "-P",
    "--pool",
    type=_pool,
    metavar="POOL",
    help="prefork (the default), threads, asyncio or solo.",
)
@names_option("-Q", "--queues", help="Take from these queues only.")
@names_option("-X", "--exclude-queues", help="Take from all but these.")
@names_option("-I", "--include", help="Import these modules too.")
@click.option(
    "--time-limit",
    type=seconds("--time-limit"),
    metavar="SECONDS",
    help="Seconds after which a task is ended.",
)
@click.option(
    "--soft-time-limit",
    type=seconds("--soft-time-limit"),
    metavar="SECONDS",
    help="Seconds after which SoftTimeLimitExceeded is raised in a task.",
)
@click.option(
    "--max-tasks-per-child",
    type=click.IntRange(1),
    help="Tasks after which a process is replaced.",
)
@click.option(
    "--max-memory-per-child",
    type=click.IntRange(1),
    metavar="KIB",
    help="Memory above which a process is replaced after its task.",
)
@click.option(
    "--prefetch-multiplier",
    type=click.IntRange(0, _MOST_HELD),
    help="Messages that a process holds; default as many as it runs in some 10 ms.",
)
@click.option("--reload", is_flag=True, help="Start anew when code changes; for development.")
@click.option(
    "--reload-dir",
    multiple=True,
    metavar="FOLDER",
    help="Watch this folder's Python files; default the working directory and the app's package.",
)
@click.option("--purge", "--discard", is_flag=True, help="Delete all waiting messages first.")
@click.option(
    "-E",
    "--task-events",
    "--events",
    is_flag=True,
    expose_value=False,
    help="Accepted; events come with a later release.",
)
@_celerys_other_options
@pass_session
def command(
    session: Session, /, log_json: bool, reload: bool, reload_dir: tuple[str, ...], **given: Any
) -> int:
    """Run tasks of the app, until SIGTERM or Ctrl-C."""
    if reload_dir and not reload:
        raise WrongUse("--reload-dir names what --reload watches; add --reload")
    if reload:
        number = start_number()
        if number is None:
            return _reload(session, reload_dir)
        given["purge"] = given["purge"] and number == 1
    options = WorkerOptions(started_in=session.started_in, **given)
    hard, soft = options.time_limit, options.soft_time_limit
    if hard and soft and soft >= hard:
        raise WrongUse(
            f"--soft-time-limit {soft:g} isn't below --time-limit {hard:g}: a task would be ended "
            "before it could react"
        )
    app = session.named_app()
    if session.no_color:
        app.conf.worker_log_color = False
    if log_json:
        app.conf.worker_log_json = True
    if app.conf.worker_log_json:
        remarks_in_json(True)
    _import_included(options.include + app.conf.include + app.conf.imports)
    pool = options.pool or app.conf.worker_pool
    if options.processes and pool not in ("threads", "asyncio"):
        raise WrongUse(
            f"--processes {options.processes} is for the pools threads and asyncio; -c says how "
            "many processes prefork has"
        )
    if pool == "solo" and (options.concurrency or 1) > 1:
        session.note(f"umbel: the solo pool runs one process, not {options.concurrency}")
    return run_worker(app, options)


def _reload(session: Session, named: tuple[str, ...]) -> int:
    folders = folders_to_watch(session.app_name or "", named)
    session.note(
        "umbel: --reload is for development, not for production; watching the Python files in "
        + ", ".join(map(str, folders))
    )
    return watch_and_run(folders, session.started_in or os.getcwd())


def _import_included(modules: tuple[str, ...]) -> None:
    """Import now what the worker will import, so that an error is one sentence."""
    for name in modules:
        import_module(name)
