"""``umbel status``: which workers are online."""

from __future__ import annotations

import click

from umbel.cli.exits import Exit, Mistake
from umbel.cli.names import names_option
from umbel.cli.output import count, print_json, quoted, visible
from umbel.cli.session import Session, pass_session
from umbel.silence import node_name, silent_for

EXAMPLES = """\b
Examples:
  umbel -A proj status
  umbel -b sqlite:///tasks.db status --json

Exit code 69: no worker is online. Celery's -t/--timeout is accepted and changes nothing: the
broker knows the answer, so that nobody has to be waited for.
"""


@click.command("status", epilog=EXAMPLES)
@click.option("-j", "--json", "as_json", is_flag=True, help="Print JSON.")
@names_option("-d", "--destination", help="Of these workers only.")
@click.option("-t", "--timeout", type=float, hidden=True, expose_value=False)
@pass_session
def command(session: Session, /, as_json: bool, destination: tuple[str, ...]) -> None:
    """Show the workers that the broker takes for alive."""
    app = session.client()
    now = app.clock.wall()
    silences = {node_name(run): silent_for(run, now) for run in app.broker.runs()}
    states = {
        node: "OK" if silence is None else f"no sign of life for {silence:.0f} s"
        for node, silence in sorted(silences.items())
        if not destination or node in destination
    }
    if as_json:
        print_json(states)
    else:
        for node, state in states.items():
            mark = click.style("->", fg="cyan")
            colour = "green" if state == "OK" else "red"
            click.echo(f"{mark}  {visible(node)}: {click.style(state, fg=colour, bold=True)}")
    online = list(states.values()).count("OK")
    if not online and destination:
        living = sorted(node for node, silence in silences.items() if silence is None)
        raise Mistake(
            f"none of {', '.join(map(quoted, destination))} is online at this broker; "
            f"online: {', '.join(map(visible, living)) or 'none'}",
            Exit.UNAVAILABLE,
        )
    if not online:
        raise Mistake(
            "no worker is online at this broker; start one with: umbel -A proj worker",
            Exit.UNAVAILABLE,
        )
    session.note(f"\n{count(online, 'node')} online.")
