"""``umbel call``: send one task, by name."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable
from typing import Any

import click

from umbel.app import Umbel
from umbel.cli.exits import WrongUse
from umbel.cli.output import quoted
from umbel.cli.session import Session, pass_session

EXAMPLES = """\b
Examples:
  umbel -A proj call proj.tasks.add -a '[2, 3]'
  umbel -A proj call proj.tasks.report -k '{"day": "2026-01-31"}' --countdown 60
  umbel -b sqlite:///tasks.db call proj.tasks.clean --queue slow --expires 3600
"""


def _json(option: str, expected: type, what: str, example: str) -> Callable[[str], Any]:
    """Reads an option's JSON, which must be of the type `expected`."""

    def parse(text: str) -> Any:
        try:
            value = json.loads(text)
        except ValueError as error:
            raise WrongUse(
                f"{option} {text!r:.80} isn't JSON ({error}); expected {what}, such as '{example}'"
            ) from None
        except RecursionError:
            raise WrongUse(
                f"{option} {text!r:.80} is nested too deep; at most 300 levels can be sent"
            ) from None
        if not isinstance(value, expected):
            raise WrongUse(f"{option} {text!r:.80} isn't {what}; expected one, such as '{example}'")
        return value

    return parse


def _seconds_or_instant(text: str) -> float | str:
    """A number of seconds, else text in ISO 8601, which the API checks."""
    try:
        return float(text)
    except ValueError:
        return text


@click.command("call", epilog=EXAMPLES)
@click.argument("name")
@click.option(
    "-a",
    "--args",
    type=_json("--args", list, "a JSON array", "[1, 2]"),
    default="[]",
    metavar="JSON",
    help="Positional arguments, a JSON array.",
)
@click.option(
    "-k",
    "--kwargs",
    type=_json("--kwargs", dict, "a JSON object", '{"x": 1}'),
    default="{}",
    metavar="JSON",
    help="Named arguments, a JSON object.",
)
@click.option("--eta", metavar="INSTANT", help="Due at this instant, ISO 8601.")
@click.option("--countdown", type=float, metavar="SECONDS", help="Due after this long.")
@click.option(
    "--expires",
    type=_seconds_or_instant,
    metavar="SECONDS|INSTANT",
    help="Not started any more after these seconds, or this instant.",
)
@click.option("--serializer", metavar="NAME", help="Encoded by this serializer.")
@click.option("--compression", metavar="NAME", help="Compressed so: zlib, bz2, lzma, zstd, brotli.")
@click.option("--queue", help="To this queue, in place of the routed one.")
@click.option("--exchange", help="To this exchange.")
@click.option("--routing-key", help="With this routing key.")
@pass_session
def command(
    session: Session, /, name: str, args: list[Any], kwargs: dict[str, Any], **options: Any
) -> None:
    """Send the task NAME and print its id.

    NAME needn't be known here: a worker that knows it will take the message. Where the app knows
    it, the arguments have to fit.
    """
    app = session.sender()
    if session.app_name:
        _remark_unknown(session, app, name)
    given = {option: value for option, value in options.items() if value is not None}
    task = app.tasks.get(name)
    try:
        if task is None or app.conf.task_always_eager:  # a task would run here and now
            sent = app.send_task(name, args, kwargs, **given)
        else:
            sent = task.apply_async(args, kwargs, **given)
    except (TypeError, ValueError) as error:
        raise WrongUse(str(error)) from error
    click.echo(sent.id)


def _remark_unknown(session: Session, app: Umbel, name: str) -> None:
    known = [task for task in app.tasks if not task.startswith("celery.")]
    if name in known:
        return
    near = difflib.get_close_matches(name, known, n=1)
    question = f"did you mean {near[0]!r}? It" if near else "it"
    session.note(
        f"umbel: the app has no task {quoted(name)}; {question} waits for a worker that knows it"
    )
