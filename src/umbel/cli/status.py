"""``umbel status``: which workers are online."""

from __future__ import annotations

import json

import click

from umbel.cli.exits import Exit, Mistake
from umbel.cli.output import count, print_json, visible
from umbel.cli.session import Session, pass_session
from umbel.ports import RunRecord

EXAMPLES = """\b
Examples:
  umbel -A proj status
  umbel -b sqlite:///tasks.db status --json

Exit code 69: no worker is online.
"""


@click.command("status", epilog=EXAMPLES)
@click.option("-j", "--json", "as_json", is_flag=True, help="Print JSON.")
@pass_session
def command(session: Session, /, as_json: bool) -> None:
    """Show the workers that the broker takes for alive."""
    nodes = sorted(node_of(run) for run in session.client().broker.runs())
    if as_json:
        print_json(dict.fromkeys(nodes, "OK"))
    else:
        for node in nodes:
            mark = click.style("->", fg="cyan")
            click.echo(f"{mark}  {visible(node)}: {click.style('OK', fg='green', bold=True)}")
    if not nodes:
        raise Mistake(
            "no worker is online at this broker; start one with: umbel -A proj worker",
            Exit.UNAVAILABLE,
        )
    session.note(f"\n{count(len(nodes), 'node')} online.")


def node_of(record: RunRecord) -> str:
    """A worker's name, which it wrote into its record; its run's id where it can't be read."""
    try:
        return str(json.loads(record.info)["hostname"])
    except (ValueError, KeyError, TypeError):
        return record.run
