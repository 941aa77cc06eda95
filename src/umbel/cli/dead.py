"""``umbel dead``: messages that will not be tried again unless a person asks."""

from __future__ import annotations

import json

import click

from umbel.app import Umbel
from umbel.cli.exits import Mistake, WrongUse
from umbel.cli.ids import id_of_dead
from umbel.cli.output import (
    confirm,
    count,
    local_time,
    one_line,
    print_json,
    print_table,
    quoted,
    visible,
)
from umbel.cli.session import Session, pass_session
from umbel.exceptions import InvalidTaskError
from umbel.message import Message, Unreadable
from umbel.ports import DeadLetter

EXAMPLES = """\b
Examples:
  umbel -A proj dead list
  umbel -A proj dead list --queue emails --json
  umbel -A proj dead show 7d1f0c9e-3b52-4c6f-a3de-f2f1c1f0a9b7
  umbel -A proj dead requeue 7d1f0c9e-3b52-4c6f-a3de-f2f1c1f0a9b7
  umbel -A proj dead requeue --all --queue emails
  umbel -A proj dead delete --all --force
"""

_SHOWN = 100
"""Rows of a table that nobody asked to be longer."""

_queue_option = click.option("--queue", metavar="NAME", help="Of this queue only.")
_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_all_option = click.option("--all", "every", is_flag=True, help="All of them, or of --queue.")


@click.group("dead", epilog=EXAMPLES, invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """List, show, requeue and delete dead letters."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@command.command("list", epilog=EXAMPLES)
@_queue_option
@click.option(
    "--limit",
    type=click.IntRange(1),
    help=f"Show the newest of them only; {_SHOWN} unless set, with --json all.",
)
@_json_option
@pass_session
def list_(session: Session, /, queue: str | None, limit: int | None, as_json: bool) -> None:
    """List dead letters, the oldest first."""
    letters = session.client().dead.list(queue)
    most = limit or (len(letters) if as_json else _SHOWN)
    left_out = max(0, len(letters) - most)
    letters = letters[left_out:]
    if as_json:
        print_json([as_data(letter) for letter in letters])
    elif letters:
        print_table(
            ("id", "task", "queue", "died", "reason"),
            [_row(letter) for letter in letters],
            no_color=session.no_color,
        )
        if left_out and limit is None:
            total = count(left_out + most, "dead letter")
            session.note(f"umbel: these are the newest {most} of {total}; see --limit")
    else:
        session.note(
            "umbel: there are no dead letters" + (f" of queue {quoted(queue)}" if queue else "")
        )


@command.command("show", epilog=EXAMPLES)
@click.argument("task_id", metavar="ID", type=id_of_dead)
@_json_option
@pass_session
def show(session: Session, /, task_id: str, as_json: bool) -> None:
    """Show one dead letter: what it was, why it died, and what was tried before."""
    letter = session.client().dead.get(task_id)
    if letter is None:
        raise _none(task_id)
    if as_json:
        print_json(as_data(letter))
    else:
        click.echo(describe(letter))


@command.command("requeue", epilog=EXAMPLES)
@click.argument("task_ids", nargs=-1, metavar="[ID]...", type=id_of_dead)
@_all_option
@_queue_option
@pass_session
def requeue(session: Session, /, task_ids: tuple[str, ...], every: bool, queue: str | None) -> None:
    """Send dead letters once more, as they were first sent, under the same ids."""
    app = session.client()
    chosen = _chosen(app, task_ids, every, queue)
    done, refused = 0, ""
    for task_id in chosen:
        try:
            done += app.dead.requeue(task_id)
        except InvalidTaskError as error:
            refused = str(error)
    click.echo(f"{count(done, 'dead letter')} requeued")
    if refused:
        raise Mistake(refused)


@command.command("delete", epilog=EXAMPLES)
@click.argument("task_ids", nargs=-1, metavar="[ID]...", type=id_of_dead)
@_all_option
@_queue_option
@click.option("-f", "--force", is_flag=True, help="Don't ask about --all.")
@pass_session
def delete(
    session: Session, /, task_ids: tuple[str, ...], every: bool, queue: str | None, force: bool
) -> None:
    """Delete dead letters for good."""
    app = session.client()
    chosen = _chosen(app, task_ids, every, queue)
    if every:
        letters = len(app.dead.list(queue))
        if letters and not force:
            confirm(f"Delete {count(letters, 'dead letter')}, for good?")
        done = app.dead.delete_all(queue)
    else:
        done = app.broker.dead_delete(chosen)
    click.echo(f"{count(done, 'dead letter')} deleted")


def _chosen(
    app: Umbel, task_ids: tuple[str, ...], every: bool, queue: str | None
) -> tuple[str, ...]:
    """The ids that a command is about; all of them exist."""
    if every == bool(task_ids):
        raise WrongUse("name the ids of dead letters, or say --all; `umbel dead list` shows them")
    if every:
        return tuple(dict.fromkeys(letter.id for letter in app.dead.list(queue)))
    if queue is not None:
        raise WrongUse("--queue goes with --all; ids are enough without it")
    for task_id in task_ids:
        if app.dead.get(task_id) is None:
            raise _none(task_id)
    return task_ids


def _none(task_id: str) -> Mistake:
    return Mistake(
        f"there is no dead letter {quoted(task_id)}; `umbel dead list` shows those that are, "
        f"`umbel why {task_id:.200}` says where the task is"
    )


def _row(letter: DeadLetter) -> tuple[str, ...]:
    task = letter.message.task if isinstance(letter.message, Message) else "(unreadable)"
    return letter.id, task, letter.queue, local_time(letter.died_at), one_line(letter.reason)


def describe(letter: DeadLetter) -> str:
    """A dead letter on several lines, for a person."""
    lines = [("id", letter.id), ("queue", letter.queue)]
    match letter.message:
        case Message() as message:
            lines += [
                ("task", message.task),
                ("args", str(message.headers.get("argsrepr"))),
                ("kwargs", str(message.headers.get("kwargsrepr"))),
            ]
        case Unreadable() as unreadable:
            lines += [("message", f"{len(unreadable.raw)} bytes: {unreadable.raw[:200]!r}")]
    lines += [
        ("died", local_time(letter.died_at)),
        ("error", letter.error or "none"),
        ("reason", one_line(letter.reason)),
        ("redeliveries", str(letter.redeliveries)),
    ]
    for number, (at, sentence) in enumerate(letter.history):
        lines.append(("" if number else "history", f"{local_time(at)}  {one_line(sentence)}"))
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"{name:>{width}}  {visible(value)}" for name, value in lines)


def as_data(letter: DeadLetter) -> dict[str, object]:
    """A dead letter as JSON can hold it; the body decoded where it is JSON."""
    data: dict[str, object] = {
        "id": letter.id,
        "queue": letter.queue,
        "reason": letter.reason,
        "error": letter.error,
        "died_at": letter.died_at,
        "redeliveries": letter.redeliveries,
        "history": [{"at": at, "note": note} for at, note in letter.history],
    }
    match letter.message:
        case Message() as message:
            data |= {"task": message.task, "headers": message.headers, "body": _body(message)}
        case Unreadable() as unreadable:
            data |= {"raw": repr(unreadable.raw), "unreadable": unreadable.reason}
    return data


def _body(message: Message) -> object:
    try:
        return json.loads(message.body)
    except ValueError:
        return repr(message.body)
