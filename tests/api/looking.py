"""What a broker holds, and the begin of a run as a worker would make it."""

from __future__ import annotations

import itertools

from umbel import Umbel
from umbel.message import Message, Result
from umbel.protocol import read_request, take_call
from umbel.request import Context
from umbel.serialization import loads_call
from umbel.stored import encode_meta

_runs = itertools.count(1)


def waiting(app: Umbel, queue: str = "celery") -> list[Message]:
    """The messages that are ready in a queue, in the order of delivery."""
    found = []
    for message in app.broker.peek(queue, 1000):
        assert isinstance(message, Message)
        found.append(message)
    return found


def only(app: Umbel, queue: str = "celery") -> Message:
    """The one message that is ready in a queue."""
    (message,) = waiting(app, queue)
    return message


def lease(app: Umbel, queue: str = "celery") -> Context:
    """Take the next message as a worker named ``w@here`` does; its request."""
    run = f"run-{next(_runs)}"
    owner = f"{run}#1"
    app.broker.enlist(run, owner, b'{"hostname": "w@here"}')
    (delivery,) = app.broker.turn(owner, 1, queues=[queue], begin=1, limit=1).deliveries
    request = read_request(delivery, hostname="w@here")
    assert isinstance(delivery.message, Message)
    take_call(request, *loads_call(delivery.message.body))
    return request


def store(app: Umbel, task_id: str, state: str, value: object, done: str | None = None) -> None:
    """Store a result as a worker does."""
    meta = encode_meta(task_id, state, value, date_done=done)
    results = app.store
    assert results is not None
    results.put([Result(task_id, state, meta)])
