"""Telling workers something, and asking them: the sender's side of remote control.

Of Umbel's workers the broker knows which there are. Where it can have others too, such as
Celery's, nobody knows how many will answer, so an answer to all is waited for as long as it may
take, as Celery does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from umbel import mailbox
from umbel.exceptions import DecodeError, SecurityError
from umbel.mailbox import Audience, Command, ReplyTo
from umbel.publish import new_id
from umbel.serialization import find_serializer
from umbel.serializers import Serializer
from umbel.silence import answers, node_name, silent_for

if TYPE_CHECKING:
    from umbel.app import Umbel

Answer = dict[str, Any]
"""``{node: answer}``."""


def serializer_of(app: Umbel) -> Serializer:
    """What the bodies of commands and answers are made by."""
    name = app.conf.task_serializer
    return app.serializers.get(name) or find_serializer(name)


def tell(app: Umbel, command: Command) -> None:
    """Broadcast a command."""
    exchange = app.conf.control_exchange
    payload = mailbox.pack_command(command, exchange, serializer_of(app))
    app.broker.broadcast(mailbox.channel(exchange), payload)


def ask(
    app: Umbel,
    command: Command,
    *,
    timeout: float,
    limit: int | None = None,
    callback: Callable[[Answer], object] | None = None,
) -> list[Answer]:
    """Broadcast a command, and collect its answers until there are `limit`, or all that there can
    be, or until none has come for `timeout` seconds. `callback` gets each as it comes."""
    exchange = app.conf.control_exchange
    most = _most(app, command.audience)
    limit = most if limit is None or (most is not None and most < limit) else limit
    if limit == 0:
        return []
    accepted = app.call_reader().accepted
    to = ReplyTo(mailbox.answers(exchange), new_id())
    listener = app.broker.listen(to.exchange, to.routing_key)
    found: list[Answer] = []
    try:
        ticket = new_id()
        expires_at = app.clock.wall() + timeout
        asked = replace(command, ticket=ticket, reply_to=to, expires_at=expires_at, tag=new_id())
        tell(app, asked)
        deadline = time.monotonic() + timeout
        while limit is None or len(found) < limit:
            heard = listener.get(max(0.0, deadline - time.monotonic()))
            if heard is None:
                break
            try:
                answer = mailbox.read_answer(heard[1], ticket, accepted)
            except (DecodeError, SecurityError):
                continue
            if answer is not None:
                found.append(answer)
                deadline = time.monotonic() + timeout
                if callback is not None:
                    callback(answer)
    finally:
        listener.close()
    return found


def _most(app: Umbel, audience: Audience) -> int | None:
    """How many answers there can be; None where nobody knows."""
    if app.broker.features.shared_with_celery:
        return None if audience.destination is None else len(set(audience.destination))
    now = app.clock.wall()
    return sum(
        answers(run) and silent_for(run, now) is None and audience.has(node_name(run))
        for run in app.broker.runs()
    )
