"""Celery's task messages, protocol 2: built by callers, read by workers, rebuilt for a retry.

Pure: bodies come encoded, times and ids are passed in. A message has headers (all the metadata),
properties (what the broker looks at) and a body, ``[args, kwargs, embed]`` as JSON, where `embed`
always has the four keys ``callbacks``, ``errbacks``, ``chain`` and ``chord``.

Times on the wire are ISO-8601 text; naive ones are UTC.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec

from umbel.exceptions import InvalidTaskError
from umbel.instants import parse_instant
from umbel.message import Delivery, Message, Unreadable
from umbel.request import Context

CONTENT_TYPE: Final = "application/json"
CONTENT_ENCODING: Final = "utf-8"
NO_EMBED: Final[Mapping[str, None]] = {
    "callbacks": None,
    "errbacks": None,
    "chain": None,
    "chord": None,
}

FIRST_RUN: Final = "umbel_first_run_at"
"""The header with the start of the first run, in unix seconds. Only the retries of a task with
`retry_max_elapsed` have it. Celery's retries keep it, as any header that they don't know."""

# RabbitMQ's dead-letter hops and Kombu's restores leave these; a retry starts without them.
_HOPS: Final = (
    "x-death",
    "x-first-death-exchange",
    "x-first-death-queue",
    "x-first-death-reason",
    "x-last-death-exchange",
    "x-last-death-queue",
    "x-last-death-reason",
    "redelivered",
)


class Headers(msgspec.Struct, frozen=True):
    """The headers of protocol 2, as a stranger may have written them; others are custom ones."""

    task: Annotated[str, msgspec.Meta(min_length=1)]
    id: Annotated[str, msgspec.Meta(min_length=1)]
    lang: str | None = None
    shadow: str | None = None
    eta: str | None = None
    expires: str | None = None
    group: str | None = None
    group_index: int | None = None
    retries: Annotated[int, msgspec.Meta(ge=0, le=2**53)] | None = 0
    timelimit: tuple[float | None, float | None] | None = None
    root_id: str | None = None
    parent_id: str | None = None
    argsrepr: str | None = None
    kwargsrepr: str | None = None
    origin: str | None = None
    ignore_result: bool | None = None
    replaced_task_nesting: int | None = 0
    stamped_headers: list[str] | None = None
    stamps: dict[str, Any] | None = None


HEADERS: Final = frozenset(Headers.__struct_fields__)
_NOT_CUSTOM: Final = HEADERS | {"compression", "redelivered"}


def build_message(
    *,
    task: str,
    task_id: str,
    body: bytes,
    argsrepr: str,
    kwargsrepr: str,
    origin: str,
    reply_to: str,
    delivery_tag: str,
    routing_key: str,
    exchange: str = "",
    priority: int = 0,
    retries: int = 0,
    eta: str | None = None,
    expires: str | None = None,
    expiration: str | None = None,
    time_limit: float | None = None,
    soft_time_limit: float | None = None,
    root_id: str | None = None,
    parent_id: str | None = None,
    group: str | None = None,
    group_index: int | None = None,
    ignore_result: bool | None = None,
    shadow: str | None = None,
    replaced_task_nesting: int = 0,
    stamped_headers: list[str] | None = None,
    stamps: Mapping[str, Any] | None = None,
    custom: Mapping[str, Any] | None = None,
    delivery_mode: int = 2,
) -> Message:
    """One message, with every header that Celery always writes, in its order.

    `expiration` is in whole milliseconds, as text. `custom` headers stand beside the others.
    """
    headers: dict[str, Any] = {
        "lang": "py",
        "task": task,
        "id": task_id,
        "shadow": shadow,
        "eta": eta,
        "expires": expires,
        "group": group,
        "group_index": group_index,
        "retries": retries,
        "timelimit": [time_limit, soft_time_limit],
        "root_id": root_id or task_id,
        "parent_id": parent_id,
        "argsrepr": argsrepr,
        "kwargsrepr": kwargsrepr,
        "origin": origin,
        "ignore_result": ignore_result,
        "replaced_task_nesting": replaced_task_nesting,
        "stamped_headers": stamped_headers,
        "stamps": stamps or {},
    }
    if custom:
        headers.update(custom)
    properties: dict[str, Any] = {
        "correlation_id": task_id,
        "reply_to": reply_to,
        "delivery_mode": delivery_mode,
        "delivery_info": {"exchange": exchange, "routing_key": routing_key},
        "priority": priority,
        "body_encoding": "base64",
        "delivery_tag": delivery_tag,
    }
    if expiration is not None:
        properties["expiration"] = expiration
    return Message(
        body=body,
        content_encoding=CONTENT_ENCODING,
        content_type=CONTENT_TYPE,
        headers=headers,
        properties=properties,
    )


class Draft:
    """The messages of calls that differ in their arguments alone: all that they share is made once.

    What `message` makes is what `build_message` makes; it takes a third of its time.
    """

    __slots__ = ("_headers", "_properties")

    def __init__(
        self,
        *,
        task: str,
        routing_key: str,
        exchange: str,
        priority: int,
        time_limit: float | None,
        soft_time_limit: float | None,
        ignore_result: bool | None,
        delivery_mode: int,
    ) -> None:
        made = build_message(
            task=task,
            task_id="",
            body=b"",
            argsrepr="",
            kwargsrepr="",
            origin="",
            reply_to="",
            delivery_tag="",
            routing_key=routing_key,
            exchange=exchange,
            priority=priority,
            time_limit=time_limit,
            soft_time_limit=soft_time_limit,
            ignore_result=ignore_result,
            delivery_mode=delivery_mode,
        )
        self._headers = made.headers
        self._properties = made.properties

    def message(
        self,
        task_id: str,
        body: bytes,
        argsrepr: str,
        kwargsrepr: str,
        origin: str,
        reply_to: str,
        delivery_tag: str,
        root_id: str | None,
        parent_id: str | None,
    ) -> Message:
        headers = self._headers.copy()
        headers["id"] = task_id
        headers["root_id"] = root_id or task_id
        headers["parent_id"] = parent_id
        headers["argsrepr"] = argsrepr
        headers["kwargsrepr"] = kwargsrepr
        headers["origin"] = origin
        headers["stamps"] = {}
        properties = self._properties.copy()
        properties["correlation_id"] = task_id
        properties["reply_to"] = reply_to
        properties["delivery_tag"] = delivery_tag
        return Message(body, CONTENT_ENCODING, CONTENT_TYPE, headers, properties)


def rebuild_message(
    message: Message,
    *,
    queue: str,
    delivery_tag: str,
    headers: Mapping[str, Any],
    exchange: str = "",
    priority: int | None = None,
    expiration: str | None = None,
    body: bytes | None = None,
) -> Message:
    """`message` once more, for `queue`: `headers` replace its own, all the others survive.

    With an `exchange`, `queue` is the routing key.
    `body` None keeps the old one, byte for byte, `priority` None the old one.
    """
    kept = {name: value for name, value in message.headers.items() if name not in _HOPS}
    properties = {
        **message.properties,
        "delivery_info": {"exchange": exchange, "routing_key": queue},
        "delivery_tag": delivery_tag,
    }
    properties.pop("expiration", None)
    if expiration is not None:
        properties["expiration"] = expiration
    if priority is not None:
        properties["priority"] = priority
    if body is not None:
        # A new body is ours: plain JSON, whatever the old one was.
        kept.pop("compression", None)
    return Message(
        body=message.body if body is None else body,
        content_encoding=message.content_encoding if body is None else CONTENT_ENCODING,
        content_type=message.content_type if body is None else CONTENT_TYPE,
        headers={**kept, **headers},
        properties=properties,
    )


def first_message(
    message: Message, *, queue: str, delivery_tag: str, exchange: str = ""
) -> Message:
    """`message` as it was first sent, but due now and never expiring."""
    headers = {"retries": 0, "eta": None, "expires": None}
    return rebuild_message(
        message, queue=queue, delivery_tag=delivery_tag, headers=headers, exchange=exchange
    )


def next_headers(request: Context) -> dict[str, Any]:
    """The headers in which every retry of `request` differs from it, but for its times."""
    return {
        "retries": request.retries + 1,
        "root_id": request.root_id or request.id,
        "parent_id": request.parent_id or request.id,
    }


def first_run_at(request: Context, now: float) -> float:
    """When the first run of `request` began, in unix seconds; at the latest `now`.

    A retry that doesn't say so counts as the first.
    """
    told = (request.headers or {}).get(FIRST_RUN)
    began = now if request.started_at is None else request.started_at
    if request.retries and isinstance(told, (int, float)) and told > 0:
        began = told
    return min(began, now)


def priority_of(message: Message) -> int:
    """The message's priority, 0 to 9; 0 where a stranger wrote something else."""
    value = message.properties.get("priority")
    return min(max(value, 0), 9) if type(value) is int else 0


def read_request(delivery: Delivery, *, hostname: str) -> Context:
    """The request of a delivery, without its arguments; see `take_call`.

    Whatever a stranger wrote, the only exception is `InvalidTaskError`, which says what is wrong.
    """
    message = delivery.message
    if isinstance(message, Unreadable):
        raise InvalidTaskError(f"the message can't be read: {message.reason}")
    headers = _headers(message)
    request = Context()
    request.id = headers.id
    request.task = headers.task
    request.called_directly = False
    request.hostname = hostname
    request.lang = headers.lang
    request.shadow = headers.shadow
    request.origin = headers.origin
    request.argsrepr = headers.argsrepr or ""
    request.kwargsrepr = headers.kwargsrepr or ""
    request.retries = headers.retries or 0
    request.root_id = headers.root_id or headers.id
    request.parent_id = headers.parent_id
    request.group = request.taskset = headers.group
    request.group_index = headers.group_index
    request.ignore_result = headers.ignore_result
    request.replaced_task_nesting = headers.replaced_task_nesting or 0
    request.stamped_headers = headers.stamped_headers
    request.stamps = headers.stamps
    if headers.timelimit is not None and any(headers.timelimit):
        request.time_limit = _limit("hard", headers.timelimit[0])
        request.soft_time_limit = _limit("soft", headers.timelimit[1])
    request.timelimit = (request.time_limit, request.soft_time_limit)
    if headers.eta:
        request.eta = headers.eta
        request.due_at = _instant("eta", headers.eta)
    if headers.expires:
        request.expires = headers.expires
        request.expires_at = _instant("expires", headers.expires)
    _take_envelope(request, delivery, message)
    return request


def take_call(
    request: Context, args: list[Any], kwargs: dict[str, Any], embed: Mapping[str, Any]
) -> None:
    """Give `request` what the message's body holds. Raises `InvalidTaskError`."""
    request.args = args
    request.kwargs = kwargs
    for name in ("callbacks", "errbacks", "chain"):
        value = embed.get(name)
        if value is not None and not isinstance(value, list):
            raise InvalidTaskError(f"{name} in the body is {value!r:.80}; expected a list or null")
        setattr(request, name, value)
    chord = embed.get("chord")
    if chord is not None and not isinstance(chord, dict):
        raise InvalidTaskError(f"chord in the body is {chord!r:.80}; expected an object or null")
    request.chord = chord


def _headers(message: Message) -> Headers:
    try:
        return msgspec.convert(message.headers, Headers)
    except (msgspec.ValidationError, UnicodeError, OverflowError, RecursionError) as error:
        if "task" not in message.headers:
            raise InvalidTaskError(
                "the message has no header 'task'; expected a task message of protocol 2"
            ) from error
        raise InvalidTaskError(f"a header of the message isn't as expected: {error}") from error


def _instant(header: str, text: str) -> float:
    try:
        return parse_instant(text)
    except ValueError as error:
        raise InvalidTaskError(
            f"the header {header!r} is {text!r:.80}; expected a time in ISO-8601"
        ) from error


def _limit(which: str, seconds: float | None) -> float | None:
    if not seconds:
        return None
    if math.isfinite(seconds) and 0 < seconds < 1e9:
        return seconds
    raise InvalidTaskError(
        f"the {which} limit in the header 'timelimit' is {seconds}; expected seconds, up to 1e9"
    )


def _take_envelope(request: Context, delivery: Delivery, message: Message) -> None:
    properties = message.properties
    custom = message.headers.keys() - _NOT_CUSTOM
    if custom:
        request.headers = {name: message.headers[name] for name in custom}
    request.delivery = delivery
    request.properties = properties
    correlation_id = properties.get("correlation_id")
    request.correlation_id = correlation_id if isinstance(correlation_id, str) else request.id
    reply_to = properties.get("reply_to")
    request.reply_to = reply_to if isinstance(reply_to, str) else None
    request.delivery_info = {
        "exchange": "",
        "routing_key": delivery.queue,
        "priority": priority_of(message),
        "redelivered": delivery.redelivered or delivery.redeliveries > 0,
    }
