"""``umbel message``: a message as it is stored, and what is in it."""

from __future__ import annotations

import base64
import json
from typing import Any

import click

from umbel.app import Umbel
from umbel.cli.exits import Mistake
from umbel.cli.ids import id_of_task
from umbel.cli.output import local_time, one_line, print_json, quoted, visible
from umbel.cli.session import Session, pass_session
from umbel.exceptions import DecodeError, SecurityError
from umbel.message import Message
from umbel.ports import DeadLetter, Delayed, Leased, Location, Ready, SetAside, Stored
from umbel.serializers import PICKLE_TYPE

EXAMPLES = """\b
Examples:
  umbel -A proj message 7d1f0c9e-3b52-4c6f-a3de-f2f1c1f0a9b7
  umbel -b redis://host message 7d1f0c9e-3b52-4c6f-a3de-f2f1c1f0a9b7 --json

All of it is shown, passwords among the arguments too. Pickled bodies aren't read: they could run
any program here.
"""


@click.command("message", epilog=EXAMPLES)
@click.argument("task_id", metavar="ID", type=id_of_task)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@pass_session
def command(session: Session, /, task_id: str, as_json: bool) -> None:
    """Print the message of task ID, wherever it is: as it is stored, headers, arguments."""
    app = session.client()
    found = app.broker.stored(task_id)
    if not found:
        raise Mistake(_none(app, task_id))
    described = [as_data(app, each) for each in found]
    if as_json:
        print_json(described)
    else:
        click.echo("\n\n".join(map(_text, described)))


def _none(app: Umbel, task_id: str) -> str:
    where = one_line(str(app.why(task_id)))
    if not app.broker.features.find:
        return f"this broker can't find messages by their id, except dead letters; {where}"
    return f"there is no message of task {quoted(task_id)} at this broker: {where}"


def as_data(app: Umbel, stored: Stored) -> dict[str, Any]:
    """All that is known of a message, as JSON can hold it."""
    data: dict[str, Any] = {"place": place(stored.place), "stored": as_text(stored.raw)}
    message = stored.message
    if not isinstance(message, Message):
        return {**data, "unreadable": message.reason}
    data |= {
        "headers": message.headers,
        "properties": message.properties,
        "content-type": message.content_type,
        "content-encoding": message.content_encoding,
    }
    try:
        if message.content_type == PICKLE_TYPE:
            raise SecurityError("it is pickled")
        args, kwargs, embed = app.call_reader().call(message)
    except (DecodeError, SecurityError) as error:
        return {**data, "body": as_text(message.body), "unreadable": f"the body: {error}"}
    return {**data, "args": args, "kwargs": kwargs, "embed": embed}


def place(location: Location) -> str:
    """Where a message is, in words."""
    match location:
        case Ready(queue, position):
            return f"waits in queue {queue}, {position} before it"
        case Delayed(queue, due_at, since):
            if since is None:
                return f"is due at {local_time(due_at)} in queue {queue}"
            return (
                f"waits for a worker that knows its task, since {local_time(since)}; it is offered "
                f"again at {local_time(due_at)} in queue {queue}"
            )
        case Leased(queue, owner, lease, begun):
            what = "run" if begun else "held"
            return f"is {what} by {owner} under lease {lease}, from queue {queue}"
        case SetAside(queue, loss, detail):
            return f"awaits its burial in queue {queue}: {loss}, {detail}"
        case DeadLetter():
            return f"is dead, from queue {location.queue}: {location.reason}"


def as_text(raw: bytes) -> str:
    """Bytes as text; in base64 where they are none."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "base64:" + base64.b64encode(raw).decode()


def _text(data: dict[str, Any]) -> str:
    """On several lines, for a person."""
    width = max(map(len, data))
    lines = []
    for name, value in data.items():
        shown = value if isinstance(value, str) else json.dumps(value, indent=2, default=str)
        first, *more = visible(shown, lines=True).split("\n")
        lines += [f"{name:>{width}}  {first}", *(" " * (width + 2) + line for line in more)]
    return "\n".join(lines)
