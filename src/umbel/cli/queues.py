"""``umbel queues``: how many messages are where, and what leads to each queue."""

from __future__ import annotations

from collections.abc import Sequence

import click

from umbel.cli.output import print_json, print_table
from umbel.cli.session import Session, pass_session
from umbel.exchanges import Binding
from umbel.ports import QueueStats

EXAMPLES = """\b
Examples:
  umbel -A proj queues
  umbel -b sqlite:///tasks.db queues --json

ready: waiting for a worker. delayed: due later. leased: held by a worker's process.
set aside: was running when its process or worker died, and waits for its burial.
dead: dead letters, see `umbel dead list`.

Below stands which exchange takes messages to which queue, where there is more than queues by name.
"""


@click.command("queues", epilog=EXAMPLES)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@pass_session
def command(session: Session, /, as_json: bool) -> None:
    """Show how many messages each queue holds."""
    broker = session.client().broker
    queues, bindings = broker.queues(), broker.bindings()
    if as_json:
        print_json([_as_data(queue, bindings) for queue in queues])
        return
    if not queues:
        session.note("umbel: this broker has no queues yet; the first message makes one")
        return
    print_table(
        ("queue", "ready", "delayed", "leased", "set aside", "dead"),
        [(q.name, q.ready, q.delayed, q.leased, q.lost, q.dead) for q in queues],
        no_color=session.no_color,
    )
    if bindings:
        click.echo()
        print_table(
            ("exchange", "type", "routing key", "arguments", "queue"),
            [(b.exchange, b.type, b.routing_key, _arguments(b), b.queue) for b in bindings],
            no_color=session.no_color,
        )


def _arguments(binding: Binding) -> str:
    return " ".join(f"{name}={value!r}" for name, value in binding.arguments)


def _as_data(queue: QueueStats, bindings: Sequence[Binding]) -> dict[str, object]:
    return {
        "name": queue.name,
        "ready": queue.ready,
        "delayed": queue.delayed,
        "leased": queue.leased,
        "set_aside": queue.lost,
        "dead": queue.dead,
        "bindings": [
            {
                "exchange": each.exchange,
                "type": each.type,
                "routing_key": each.routing_key,
                "arguments": dict(each.arguments),
            }
            for each in bindings
            if each.queue == queue.name
        ],
    }
