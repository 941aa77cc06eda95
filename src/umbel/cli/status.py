"""``umbel status``: which workers are online."""

from __future__ import annotations

import click

from umbel.cli.exits import Exit, Mistake
from umbel.cli.names import names_option
from umbel.cli.output import count, print_json, quoted, visible
from umbel.cli.session import Session, pass_session
from umbel.ports import RunRecord
from umbel.silence import answers, node_name, silent_for

EXAMPLES = """\b
Examples:
  umbel -A proj status
  umbel -b sqlite:///tasks.db status --json

The workers are asked, Celery's too, and the broker says which of Umbel's are alive; so that a
worker that is alive and gives no answer shows. Exit code 69: no worker is online.
"""
OK = "OK"


@click.command("status", epilog=EXAMPLES)
@click.option("-j", "--json", "as_json", is_flag=True, help="Print JSON.")
@names_option("-d", "--destination", help="Of these workers only.")
@click.option(
    "-t",
    "--timeout",
    type=click.FloatRange(min=0.0),
    default=1.0,
    show_default=True,
    help="Seconds to wait for each answer.",
)
@pass_session
def command(
    session: Session, /, as_json: bool, destination: tuple[str, ...], timeout: float
) -> None:
    """Show the workers that answer, and those that the broker takes for alive."""
    app = session.client()
    answered = app.control.inspect(destination or None, timeout).ping() or {}
    now = app.clock.wall()
    known = {node_name(run): run for run in app.broker.runs()}
    silent = {node for node, run in known.items() if silent_for(run, now) is not None}
    states = {
        node: OK if node in answered else _state(known[node], now, timeout)
        for node in sorted({*answered, *known})
        if not destination or node in destination
    }
    if as_json:
        print_json(states)
    else:
        for node, state in states.items():
            mark = click.style("->", fg="cyan")
            colour = {True: "green", False: "red"}[state == OK]
            click.echo(f"{mark}  {visible(node)}: {click.style(state, fg=colour, bold=True)}")
    online = len(states.keys() - (silent - answered.keys()))
    if not online and destination:
        living = sorted({*answered, *known} - silent)
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


def _state(run: RunRecord, now: float, timeout: float) -> str:
    """Of a run that gave no answer."""
    silence = silent_for(run, now)
    if silence is not None:
        return f"no sign of life for {silence:.0f} s"
    return f"alive, but no answer within {timeout:g} s" if answers(run) else OK
