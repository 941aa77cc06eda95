"""``umbel prune``: delete what is over its time, its count or its bytes."""

from __future__ import annotations

import click

from umbel.cli.output import count
from umbel.cli.session import Session, pass_session

EXAMPLES = """\b
Examples:
  umbel -A proj prune
  umbel -A proj prune --keep 10000

Results go by result_expires and result_keep, dead letters by dead_letters_max_age,
dead_letters_max_count and dead_letters_max_bytes. Workers do so every ten minutes.
"""


@click.command("prune", epilog=EXAMPLES)
@click.option(
    "--keep",
    type=click.IntRange(min=0),
    metavar="N",
    help="Keep the newest N successes; else as result_keep says.",
)
@pass_session
def command(session: Session, /, keep: int | None) -> None:
    """Delete results and dead letters that are too old or too many."""
    app = session.client()
    if keep is not None:
        app.conf.result_keep = keep
    dead = app.broker.dead_prune()
    store = app.store
    results = 0 if store is None else store.prune(app.conf.result_keep)
    click.echo(f"{count(results, 'result')} and {count(dead, 'dead letter')} deleted")
