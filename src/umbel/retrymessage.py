"""The message of the next try of a task that a worker runs: the present one, a few headers on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import tzinfo
from typing import Any

from umbel.exceptions import InvalidTaskError
from umbel.formats import CallFormat, encode_call
from umbel.instants import due, expiry
from umbel.message import Message, Posting
from umbel.options import priority_option, seconds_option
from umbel.protocol import FIRST_RUN, next_headers, priority_of, rebuild_message
from umbel.publish import check_size, custom_headers, new_id
from umbel.request import Context
from umbel.routing import Address
from umbel.saferepr import safe_repr


def next_posting(
    request: Context,
    call: Mapping[str, Any],
    new_call: tuple[Sequence[Any], Mapping[str, Any]] | None,
    address: Address | None,
    *,
    now: float,
    zone: tzinfo,
    max_size: int,
    repr_levels: int,
    eta_in_broker: bool,
    form: CallFormat | None = None,
    first_run_at: float | None = None,
) -> Posting:
    """What is sent for the next try of `request`.

    `call` are the options given to `Task.retry`; what they don't name stays as it is, and so does
    the body unless there is a `new_call`. `address` None is the queue that the delivery is from.
    A new body is of the format `form`, plain JSON where that is None.
    `eta_in_broker` false leaves its time to whoever receives it, as Celery does. `first_run_at`
    (unix seconds) is written into the message, unless it is None.
    """
    message, queue = _present(request)
    if address is None:
        address = Address("", queue, queue)
    eta = due(call.get("countdown"), call.get("eta"), now, zone)
    headers = next_headers(request)
    headers["eta"] = None if eta is None else eta.text
    expiration = _set_expiry(headers, request, call, now, zone)
    _set_options(headers, request, call)
    custom = custom_headers(call.get("headers"))
    headers.update(custom or {})
    if first_run_at is not None:
        headers[FIRST_RUN] = first_run_at
    priority = call.get("priority")
    rebuilt = rebuild_message(
        message,
        queue=address.routing_key,
        exchange=address.exchange,
        delivery_tag=new_id(),
        headers=headers,
        priority=priority_of(message) if priority is None else priority_option(priority),
        expiration=expiration,
        body=_set_body(headers, request, new_call, repr_levels, form, max_size),
    )
    if form is not None and new_call is not None:
        rebuilt = form.marked(rebuilt)
    check_size(rebuilt, custom, max_size)
    return Posting(
        message=rebuilt,
        routing_key=address.routing_key,
        exchange=address.exchange,
        priority=priority_of(rebuilt),
        due_at=eta.at if eta is not None and eta_in_broker else None,
    )


def _present(request: Context) -> tuple[Message, str]:
    delivery = request.delivery
    if delivery is None or not isinstance(delivery.message, Message):
        raise InvalidTaskError(f"there is no message that {request!r} could be a retry of")
    return delivery.message, delivery.queue


def _set_expiry(
    headers: dict[str, Any], request: Context, call: Mapping[str, Any], now: float, zone: tzinfo
) -> str | None:
    """Set the header where the retry has its own; the property `expiration`."""
    if "expires" in call:
        headers["expires"], expiration = expiry(call["expires"], now, zone)
        return expiration
    if request.expires_at is None:
        return None
    return str(max(0, int((request.expires_at - now) * 1000)))


def _set_options(headers: dict[str, Any], request: Context, call: Mapping[str, Any]) -> None:
    for option in ("shadow", "ignore_result", "root_id", "parent_id", "group_index"):
        if call.get(option) is not None:
            headers[option] = call[option]
    if call.get("group_id") is not None:
        headers["group"] = call["group_id"]
    if "time_limit" in call or "soft_time_limit" in call:
        headers["timelimit"] = [
            seconds_option("time_limit", call.get("time_limit", request.time_limit)),
            seconds_option("soft_time_limit", call.get("soft_time_limit", request.soft_time_limit)),
        ]


def _set_body(
    headers: dict[str, Any],
    request: Context,
    new_call: tuple[Sequence[Any], Mapping[str, Any]] | None,
    repr_levels: int,
    form: CallFormat | None,
    max_size: int,
) -> bytes | None:
    if new_call is None:
        return None
    args, kwargs = new_call
    headers["argsrepr"] = safe_repr(tuple(args), 1024, repr_levels)
    headers["kwargsrepr"] = safe_repr(dict(kwargs), 1024, repr_levels)
    return encode_call(
        tuple(args),
        kwargs,
        {
            "callbacks": request.callbacks,
            "errbacks": request.errbacks,
            "chain": request.chain,
            "chord": request.chord,
        },
        form,
        max_size,
    )
