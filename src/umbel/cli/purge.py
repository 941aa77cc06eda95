"""``umbel purge``: delete what waits."""

from __future__ import annotations

import click

from umbel.cli.exits import Mistake
from umbel.cli.names import names_option
from umbel.cli.output import confirm, count, quoted, visible
from umbel.cli.session import Session, pass_session

EXAMPLES = """\b
Examples:
  umbel -A proj purge
  umbel -A proj purge -f -Q emails,reports
  umbel -A proj purge -f -X important

What a worker holds stays, and so do dead letters (`umbel dead delete`).
"""


@click.command("purge", epilog=EXAMPLES)
@click.option("-f", "--force", is_flag=True, help="Don't ask.")
@names_option("-Q", "--queues", help="Purge these queues only.")
@names_option("-X", "--exclude-queues", help="Purge all but these.")
@pass_session
def command(
    session: Session, /, force: bool, queues: tuple[str, ...], exclude_queues: tuple[str, ...]
) -> None:
    """Delete the messages that wait in queues or are due later."""
    broker = session.client().broker
    held = {queue.name: queue.ready + queue.delayed for queue in broker.queues()}
    for name in queues + exclude_queues:
        if name not in held:
            known = ", ".join(map(repr, held)) or "none"
            raise Mistake(f"there is no queue {quoted(name)} at this broker; it has: {known}")
    chosen = [name for name in queues or held if name not in exclude_queues]
    waiting = sum(held[name] for name in chosen)
    if not waiting:
        session.note("umbel: nothing waits in " + (", ".join(chosen) or "any queue"))
        return
    if not force:
        confirm(f"Delete {count(waiting, 'message')} from {', '.join(chosen)}, for good?")
    done = count(broker.purge(chosen), "message")
    click.echo(visible(f"{done} deleted from {', '.join(chosen)}"))
