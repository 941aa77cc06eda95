"""``umbel report``: what to write into a bug report."""

from __future__ import annotations

import click

from umbel.cli.output import print_json, visible
from umbel.cli.session import Session, pass_session
from umbel.report import as_text, collect

EXAMPLES = """\b
Examples:
  umbel -A proj report
  umbel -A proj report --json

Nothing is connected to. Passwords are replaced by stars; have a look at the rest all the same.
"""


@click.command("report", epilog=EXAMPLES)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@pass_session
def command(session: Session, /, as_json: bool) -> None:
    """Show versions, settings and the broker's abilities, for a bug report."""
    report = collect(session.app())
    if as_json:
        print_json(report)
    else:
        click.echo(visible(as_text(report), lines=True))
