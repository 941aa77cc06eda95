"""The dead letters of an app: messages that will not be tried again unless a person asks."""

from __future__ import annotations

from builtins import list as List
from shlex import quote
from typing import TYPE_CHECKING

from umbel.arguments import text_id
from umbel.exceptions import InvalidTaskError, Unroutable
from umbel.message import Message, Posting
from umbel.ports import DeadLetter
from umbel.protocol import first_message, priority_of
from umbel.publish import new_id

if TYPE_CHECKING:
    from umbel.app import Umbel
    from umbel.drivers import BrokerDriver


class DeadLetters:
    """What the commands ``umbel dead …`` stand on; entries go by their task id."""

    def __init__(self, app: Umbel) -> None:
        self._app = app

    # Below this method, `list` in the class body is the method.
    def list(self, queue: str | None = None) -> List[DeadLetter]:
        """All of them, or those of one queue; oldest first."""
        return [*self._app.broker.dead(queue)]

    def get(self, task_id: str) -> DeadLetter | None:
        """The newest one of this task id; None where there is none."""
        return self._app.broker.dead_find(text_id(task_id))

    def requeue(self, task_id: str) -> bool:
        """Send it once more as it was first sent: same id, no retries, due now, never expiring.

        Its stored result and its revocation are forgotten. It goes to its queue; where that ended
        with the worker whose own it was, to the exchange that it was sent to. False where there
        is no such dead letter. Raises `InvalidTaskError` for one that has no id or can't be read,
        `Unroutable` where it can't go anywhere any more.
        """
        broker = self._app.broker
        dead = broker.dead_find(text_id(task_id))
        if dead is None:
            return False
        if not isinstance(dead.message, Message):
            raise InvalidTaskError(
                f"dead letter {task_id!r} can't be sent again: its message can't be read "
                f"({dead.message.reason}). Delete it: umbel dead delete {quote(task_id)}"
            )
        if not task_id:  # others may have none either, and all of an id end by its requeue
            raise InvalidTaskError(
                "a dead letter that has no id can't be sent again, since no worker would run it. "
                "Delete all of these: umbel dead delete ''"
            )
        # Before the requeue, or a fast worker's new result would be forgotten in place of it.
        store = self._app.store
        stored = None if store is None else store.get([task_id])[0]
        if store is not None:
            store.forget([task_id])
        broker.declare([dead.queue])
        try:
            return _requeue(broker, task_id, dead.queue, dead.message)
        except Unroutable:
            if store is not None and stored is not None:
                store.put([stored])
            raise

    def delete(self, task_id: str) -> bool:
        """Delete all of this id for good; False where there is none."""
        return self._app.broker.dead_delete([text_id(task_id)]) > 0

    def delete_all(self, queue: str | None = None) -> int:
        """Delete all of them, or those of one queue, for good; how many there were."""
        return self._app.broker.dead_delete(None, queue)


def _requeue(broker: BrokerDriver, task_id: str, queue: str, message: Message) -> bool:
    try:
        return broker.dead_requeue(task_id, _again(message, queue))
    except Unroutable:
        # Its queue ended with its worker: a broadcast is sent to whoever is there now.
        sent = message.properties.get("delivery_info")
        told = sent if isinstance(sent, dict) else {}
        exchange, key = told.get("exchange"), told.get("routing_key")
        if not exchange or not isinstance(exchange, str) or not isinstance(key, str):
            raise
        return broker.dead_requeue(task_id, _again(message, key, exchange))


def _again(message: Message, routing_key: str, exchange: str = "") -> Posting:
    """The posting that sends a message as it was first sent."""
    first = first_message(message, queue=routing_key, exchange=exchange, delivery_tag=new_id())
    return Posting(first, routing_key, exchange, priority=priority_of(first))
