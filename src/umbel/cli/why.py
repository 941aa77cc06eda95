"""``umbel why``: where a task is, in plain words."""

from __future__ import annotations

import click

from umbel.cli.ids import id_of_task
from umbel.cli.output import one_line, print_json
from umbel.cli.session import Session, pass_session

EXAMPLES = """\b
Examples:
  umbel -A proj why 7d1f0c9e-3b52-4c6f-a3de-f2f1c1f0a9b7
  umbel -b sqlite:///tasks.db why 7d1f0c9e-3b52-4c6f-a3de-f2f1c1f0a9b7 --json
"""


@click.command("why", epilog=EXAMPLES)
@click.argument("task_id", metavar="ID", type=id_of_task)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@pass_session
def command(session: Session, /, task_id: str, as_json: bool) -> None:
    """Say where the task ID is: waiting, delayed, held, revoked, ended, dead, or never seen."""
    why = session.client().why(task_id)
    if as_json:
        print_json({"id": task_id, "case": why.case, "sentence": str(why), "details": why.details})
    else:
        click.echo(one_line(str(why)))
