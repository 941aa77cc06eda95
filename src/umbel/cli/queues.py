"""``umbel queues``: how many messages are where."""

from __future__ import annotations

import click

from umbel.cli.output import print_json, print_table
from umbel.cli.session import Session, pass_session
from umbel.ports import QueueStats

EXAMPLES = """\b
Examples:
  umbel -A proj queues
  umbel -b sqlite:///tasks.db queues --json

ready: waiting for a worker. delayed: due later. leased: held by a worker's process.
set aside: was running when its process or worker died, and waits for its burial.
dead: dead letters, see `umbel dead list`.
"""


@click.command("queues", epilog=EXAMPLES)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@pass_session
def command(session: Session, /, as_json: bool) -> None:
    """Show how many messages each queue holds."""
    queues = session.client().broker.queues()
    if as_json:
        print_json([_as_data(queue) for queue in queues])
        return
    if not queues:
        session.note("umbel: this broker has no queues yet; the first message makes one")
        return
    print_table(
        ("queue", "ready", "delayed", "leased", "set aside", "dead"),
        [(q.name, q.ready, q.delayed, q.leased, q.lost, q.dead) for q in queues],
        no_color=session.no_color,
    )


def _as_data(queue: QueueStats) -> dict[str, object]:
    return {
        "name": queue.name,
        "ready": queue.ready,
        "delayed": queue.delayed,
        "leased": queue.leased,
        "set_aside": queue.lost,
        "dead": queue.dead,
    }
