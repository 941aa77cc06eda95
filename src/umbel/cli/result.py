"""``umbel result``: what a task returned."""

from __future__ import annotations

import click

from umbel.cli.exits import Exit, Mistake
from umbel.cli.ids import id_of_task
from umbel.cli.output import message_of, print_exactly, print_json, quoted
from umbel.cli.seconds import seconds
from umbel.cli.session import Session, pass_session
from umbel.exceptions import TimeoutError

EXAMPLES = """\b
Examples:
  umbel -A proj result 7d1f0c9e-3b52-4c6f-a3de-f2f1c1f0a9b7
  umbel -A proj result 7d1f0c9e-3b52-4c6f-a3de-f2f1c1f0a9b7 --timeout 0
  umbel -A proj result 7d1f0c9e-3b52-4c6f-a3de-f2f1c1f0a9b7 --traceback

Exit code 0: the value is printed. 1: the task failed or was revoked. 75: --timeout has passed.
"""


@click.command("result", epilog=EXAMPLES)
@click.argument("task_id", metavar="ID", type=id_of_task)
@click.option("-t", "--task", metavar="NAME", help="Read it as this task's result.")
@click.option("--traceback", is_flag=True, help="Print the traceback in place of the value.")
@click.option(
    "--timeout",
    type=seconds("--timeout", zero=True),
    metavar="SECONDS",
    help="Wait no longer than this for the result; default for ever.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the value as JSON.")
@pass_session
def command(
    session: Session,
    /,
    task_id: str,
    task: str | None,
    traceback: bool,
    timeout: float | None,
    as_json: bool,
) -> None:
    """Wait for the task ID to end, and print the value that it returned."""
    # Results that are kept elsewhere can be read where the broker's file is gone.
    app = session.sender() if session.app().conf.result_backend else session.client()
    if task is not None and task not in app.tasks:
        raise Mistake(f"the app has no task {quoted(task)}; -t can be left out")
    result = app.AsyncResult(task_id) if task is None else app.tasks[task].AsyncResult(task_id)
    if not result.ready():
        session.client()
        if timeout != 0:
            session.note(f"umbel: not ready: {app.why(task_id)}; waiting")
        try:
            result.get(timeout=timeout, propagate=False)
        except TimeoutError:
            raise Mistake(f"not ready: {app.why(task_id)}", Exit.NOT_YET) from None
    if traceback:
        print_exactly(result.traceback or "there is no traceback: the task didn't fail")
    elif result.successful():
        value = result.result
        print_json(value) if as_json else print_exactly(str(value))
    else:
        error = result.result
        raise Mistake(f"{result.state}: {type(error).__name__}: {message_of(error)}")
