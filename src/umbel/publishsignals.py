"""What receivers are told of messages that are sent, and what they may change in them.

``before_task_publish`` is sent of what a caller sends and of the next try of a task alike;
``after_task_publish`` and ``task_sent`` of both, once they are published.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from msgspec.structs import replace

from umbel.formats import CallFormat, Serializers, encode_call, format_of, sent_call
from umbel.message import Message, Posting
from umbel.options import Plan
from umbel.routing import Queue
from umbel.settings import Settings
from umbel.signals import after_task_publish, before_task_publish, task_sent
from umbel.typed import Args


class PublishSignals:
    """Sends them for one app. Whoever is on a hot path asks first whether anyone listens."""

    def __init__(self, conf: Settings, serializers: Serializers) -> None:
        self._conf = conf
        self._serializers = serializers

    def before_first(
        self,
        plan: Plan,
        message: Message,
        call: tuple[Args, Mapping[str, Any], dict[str, Any]],
        form: CallFormat | None,
    ) -> Message:
        """The message of a new call, with the body of what receivers leave of `call`."""
        address, policy = plan.address, plan.policy
        _send_before(
            message,
            call,
            address.exchange,
            address.routing_key,
            [address.queue] if address.queue else [],
            None if policy is None else asdict(policy),
        )
        return replace(message, body=encode_call(*call, form, plan.max_size))

    def before_next(self, posting: Posting) -> Posting:
        """`posting`, the next try of a task, as receivers leave it."""
        if not before_task_publish.receivers:
            return posting
        message, own = posting.message, self._serializers
        limit = self._conf.task_max_message_size
        call = sent_call(message, own, limit)
        key = posting.routing_key
        _send_before(message, call, posting.exchange, key, [key], None)
        if not isinstance(call, bytes) and call != sent_call(message, own, limit):
            message = replace(message, body=encode_call(*call, format_of(message, own), limit))
        return replace(posting, message=message)

    def after(self, postings: Iterable[Posting]) -> None:
        """Send ``after_task_publish``, and ``task_sent`` to those that still listen to it."""
        if not (after_task_publish.receivers or task_sent.receivers):
            return
        for posting in postings:
            message = posting.message
            headers = message.headers
            call = sent_call(message, self._serializers, self._conf.task_max_message_size)
            after_task_publish.send(
                sender=message.task,
                body=call,
                exchange=posting.exchange,
                routing_key=posting.routing_key,
                headers=headers,
            )
            args, kwargs, _ = (None, None, None) if isinstance(call, bytes) else call
            task_sent.send(
                sender=message.task,
                task_id=message.id,
                task=message.task,
                args=args,
                kwargs=kwargs,
                eta=headers.get("eta"),
                taskset=headers.get("group"),
            )


def _send_before(
    message: Message,
    body: object,
    exchange: str,
    routing_key: str,
    declare: Sequence[Queue | str],
    retry_policy: Mapping[str, Any] | None,
) -> None:
    before_task_publish.send(
        sender=message.task,
        body=body,
        exchange=exchange,
        routing_key=routing_key,
        headers=message.headers,
        properties=message.properties,
        declare=declare,
        retry_policy=retry_policy,
    )
