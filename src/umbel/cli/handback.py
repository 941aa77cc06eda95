"""``umbel handback``: leave the queues to Celery's workers."""

from __future__ import annotations

import click
from msgspec.structs import asdict

from umbel.cli.exits import Mistake
from umbel.cli.output import count, print_json
from umbel.cli.session import Session, pass_session
from umbel.handback import StillWorking, hand_back

EXAMPLES = """\b
Examples:
  umbel -A proj handback
  umbel -b redis://host:6379/0 handback --json

Stop Umbel's workers first. Of one that was killed, this waits until its lease is over.
Dead letters stay: umbel dead.
"""


@click.command("handback", epilog=EXAMPLES)
@click.option("-j", "--json", "as_json", is_flag=True, help="Print JSON.")
@pass_session
def command(session: Session, /, as_json: bool) -> None:
    """Hand what only Umbel's workers would run to Celery's.

    Tasks that are due later go back into their queues as Celery keeps them. Those that had begun
    when their worker died, and that nobody has buried, become dead letters.
    """
    try:
        handed = hand_back(session.client())
    except StillWorking as error:
        raise Mistake(str(error)) from None
    if as_json:
        print_json(asdict(handed))
        return
    later = count(handed.delayed, "task")
    click.echo(f"{later} due later handed back to Celery's workers.")
    if handed.buried:
        begun = count(handed.buried, "task")
        click.echo(f"{begun} that had begun when their worker died: see umbel dead list.")
