"""The dead letters of an app: messages that will not be tried again unless a person asks."""

from __future__ import annotations

from builtins import list as List
from shlex import quote
from typing import TYPE_CHECKING

from umbel.exceptions import InvalidTaskError
from umbel.message import Message, Posting
from umbel.ports import DeadLetter
from umbel.protocol import first_message, priority_of
from umbel.publish import new_id

if TYPE_CHECKING:
    from umbel.app import Umbel


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
        return self._app.broker.dead_find(task_id)

    def requeue(self, task_id: str) -> bool:
        """Send it once more as it was first sent: same id, no retries, due now, never expiring.

        Its stored result and its revocation are forgotten. False where there is no such dead
        letter. Raises `InvalidTaskError` for one that has no id or can't be read.
        """
        broker = self._app.broker
        dead = broker.dead_find(task_id)
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
        message = first_message(dead.message, queue=dead.queue, delivery_tag=new_id())
        # Before the requeue, or a fast worker's new result would be forgotten in place of it.
        store = self._app.store
        if store is not None:
            store.forget([task_id])
        broker.declare([dead.queue])
        return broker.dead_requeue(
            task_id, Posting(message, routing_key=dead.queue, priority=priority_of(message))
        )

    def delete(self, task_id: str) -> bool:
        """Delete all of this id for good; False where there is none."""
        return self._app.broker.dead_delete([task_id]) > 0

    def delete_all(self, queue: str | None = None) -> int:
        """Delete all of them, or those of one queue, for good; how many there were."""
        return self._app.broker.dead_delete(None, queue)
