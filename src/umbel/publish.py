"""From a call to stored messages: build, collect in a batch, publish.

A message is complete before anything is sent, so whatever is wrong with a call is raised by the
call. Publishing repeats only what certainly did not happen (`BrokerUnavailable`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from umbel.batches import Batching, collected, current_batch, just
from umbel.clock import Clock
from umbel.coalescing import Coalescer
from umbel.connections import Connections
from umbel.exceptions import BrokerUnavailable, MessageTooLarge
from umbel.formats import CallFormat, Serializers
from umbel.instants import due, expiry
from umbel.message import Message, Posting
from umbel.options import Plan
from umbel.protocol import HEADERS, NO_EMBED, Draft, build_message
from umbel.publishsignals import PublishSignals
from umbel.request import Child, current_request, executing
from umbel.retry import RetryPolicy
from umbel.retry.publishing import Tries
from umbel.routing import Queue, declared
from umbel.saferepr import encodable, is_flat, safe_repr
from umbel.serialization import JSON, dumps, dumps_call
from umbel.settings import Settings
from umbel.signals import after_task_publish, before_task_publish, task_sent
from umbel.stamping import checked_names
from umbel.typed import Args

_AT_ONCE: Final = 64
"""Ids that one question to the operating system brings."""
_VARIANTS: Final = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}
_SHORT: Final = 256
"""Bytes of a body up to which its arguments have a short text, whatever they are."""


def new_id() -> str:
    """A fresh random id, as text: a UUID of version 4, at a sixth of the price of `uuid4`."""
    try:
        return _FRESH.pop()
    except IndexError:
        _FRESH.extend(_new_ids())
        return _FRESH.pop()


_FRESH: Final[list[str]] = []
"""Ids that nobody has yet; a forked child makes its own."""


def _new_ids() -> list[str]:
    digits = os.urandom(16 * _AT_ONCE).hex()
    each = [digits[at : at + 32] for at in range(0, 32 * _AT_ONCE, 32)]
    return [f"{d[:8]}-{d[8:12]}-4{d[13:16]}-{_VARIANTS[d[16]]}{d[17:20]}-{d[20:]}" for d in each]


def machine_name() -> str:
    """This machine's name."""
    if hasattr(os, "uname"):
        return os.uname().nodename
    import socket  # takes 3 ms, which only systems without uname need to pay

    return socket.gethostname()


class Origin:
    """How this process signs what it sends; renewed in a forked child."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        _FRESH.clear()
        self.name = f"gen{os.getpid()}@{machine_name()}"
        self.reply_to = new_id()


ORIGIN: Final = Origin()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=ORIGIN.renew)


class Publisher:
    """Builds and sends the messages of one app. Thread-safe."""

    def __init__(
        self, connections: Connections, conf: Settings, clock: Clock, serializers: Serializers
    ) -> None:
        self._connections = connections
        self._conf = conf
        self._clock = clock
        self._serializers = serializers
        self.signals = PublishSignals(conf, serializers)
        self.coalescer = Coalescer(lambda postings: self._publish(postings, None))
        """What publishes for coroutines."""

    def call_format(self, serializer: str | None, compression: str | None) -> CallFormat | None:
        """How bodies are made by these options; None: plain JSON. See `CallFormat.find`."""
        return CallFormat.find(serializer, compression, self._serializers)

    def build(
        self,
        plan: Plan,
        args: Args,
        kwargs: Mapping[str, Any],
        task_id: str,
    ) -> Posting:
        """The message of one call and where it goes. Sends ``before_task_publish``.

        Raises `EncodeError`, `MessageTooLarge`, `ValueError` for what can't be sent.
        """
        if plan.draft is not None and not before_task_publish.receivers:
            return _plain(plan, plan.draft, args, kwargs, task_id)
        options = plan.options
        eta, expires, expiration, custom = None, None, None, None
        embed: Mapping[str, Any] = NO_EMBED
        stamped, stamps = None, None
        if options:
            if options.get("stamped_headers"):
                stamped, stamps = stamps_in(options)
            embed = _embed(options)
            now = self._clock.wall()
            eta = due(options.get("countdown"), options.get("eta"), now, plan.zone)
            expires, expiration = expiry(plan.expires, now, plan.zone)
            custom = custom_headers(options.get("headers"))
            if "declare" in options:
                self._publish((), plan.policy, declared(options["declare"]))
        form = None
        if plan.serializer != JSON.name or plan.compression is not None:
            form = self.call_format(plan.serializer, plan.compression)
        sent = args, kwargs
        if plan.typed is not None:
            sent = plan.typed.lower(args, kwargs, (form.serializer if form else JSON).keeps)
        body = b""
        if not before_task_publish.receivers:
            body = (
                dumps_call(*sent, embed) if form is None else form.body(*sent, embed, plan.max_size)
            )
        root_id, parent_id = None, None
        if options or current_request.get() is not None:
            root_id, parent_id = _lineage(options)
        message = build_message(
            task=plan.task,
            task_id=task_id,
            body=body,
            argsrepr=options.get("argsrepr") or safe_repr(args, 1024, plan.repr_levels),
            kwargsrepr=options.get("kwargsrepr") or safe_repr(kwargs, 1024, plan.repr_levels),
            origin=ORIGIN.name,
            reply_to=options.get("reply_to") or ORIGIN.reply_to,
            delivery_tag=new_id(),
            routing_key=plan.address.routing_key,
            exchange=plan.address.exchange,
            priority=plan.priority,
            retries=options.get("retries") or 0,
            eta=None if eta is None else eta.text,
            expires=expires,
            expiration=expiration,
            time_limit=plan.time_limit,
            soft_time_limit=plan.soft_time_limit,
            root_id=root_id,
            parent_id=parent_id,
            group=options.get("group_id"),
            group_index=options.get("group_index"),
            ignore_result=plan.ignore_result,
            shadow=options.get("shadow"),
            replaced_task_nesting=options.get("replaced_task_nesting") or 0,
            stamped_headers=stamped,
            stamps=stamps,
            custom=custom,
            delivery_mode=plan.delivery_mode,
        )
        if before_task_publish.receivers:
            message = self.signals.before_first(plan, message, (*sent, dict(embed)), form)
        if form is not None:
            message = form.marked(message)
        check_size(message, custom, plan.max_size)
        return Posting(
            message=message,
            routing_key=plan.address.routing_key,
            exchange=plan.address.exchange,
            priority=plan.priority,
            due_at=eta.at if eta is not None and self._conf.task_eta_in_broker else None,
        )

    def send(self, postings: Sequence[Posting], policy: RetryPolicy | None) -> None:
        """Publish all in one step, or hand them to the batch around this call.

        `BrokerUnavailable` is repeated by `policy`; `Unroutable` and `PublishUnknown` never are.
        """
        if current_batch.get() is not None and collected(self, postings):
            return
        self._publish(postings, policy)
        if after_task_publish.receivers or task_sent.receivers:
            self.signals.after(postings)

    async def asend(
        self, make: Callable[[], Sequence[Posting]], policy: RetryPolicy | None
    ) -> None:
        """`send` for coroutines: what `make` makes goes out with what others send meanwhile."""
        if current_batch.get() is not None:
            made = make()
            if collected(self, made):
                return
            make = partial(just, made)
        self.signals.after(await self.coalescer.send(make, policy))

    def close(self) -> None:
        """Publish what coroutines have sent, or tell them that it can't be."""
        self.coalescer.close()

    def batch(self, policy: RetryPolicy | None) -> Batching:
        """Collect what is sent inside, and publish it in one step at the end."""
        return Batching(self, policy)

    def _publish(
        self,
        postings: Sequence[Posting],
        policy: RetryPolicy | None,
        queues: Sequence[Queue] = (),
    ) -> None:
        """Make `queues` exist, and publish; again as `Tries` says."""
        tries: Tries | None = None
        began = tried = time.monotonic()
        while True:
            try:
                connections = self._connections
                if queues:
                    connections.declare_all(queues)
                for posting in postings:
                    if posting.exchange or posting.routing_key not in connections.declared:
                        connections.prepare(posting)
                return connections.outlet.publish(postings)
            except BrokerUnavailable as error:
                tries = tries or Tries(policy, began)
                wait = tries.pause_after(error, tried, time.monotonic())
                if wait is None:
                    raise
            time.sleep(wait)
            tried = time.monotonic()


def _plain(
    plan: Plan, draft: Draft, args: Args, kwargs: Mapping[str, Any], task_id: str
) -> Posting:
    """`Publisher.build` for a call without options, which is nearly every call."""
    body = dumps_call(args, kwargs, NO_EMBED)
    size = len(body)
    levels = plan.repr_levels
    if size <= _SHORT and is_flat(args):
        argsrepr = encodable(repr(args))
    else:
        argsrepr = safe_repr(args, 1024, levels)
    root_id, parent_id = None, None
    if current_request.get() is not None:
        root_id, parent_id = _lineage(plan.options)
    message = draft.message(
        task_id,
        body,
        argsrepr,
        safe_repr(kwargs, 1024, levels) if kwargs else "{}",
        ORIGIN.name,
        ORIGIN.reply_to,
        new_id(),
        root_id,
        parent_id,
    )
    if size > plan.max_size:
        check_size(message, None, plan.max_size)
    address = plan.address
    return Posting(message, address.routing_key, address.exchange, plan.priority)


def add_children(results: Sequence[Child]) -> None:
    """Note what was sent with the task that a worker runs here, unless its `trail` is off."""
    entry = executing()
    if entry is not None and getattr(entry.task, "trail", True):
        entry.request.children += results


def check_size(message: Message, custom: Mapping[str, Any] | None, limit: int) -> None:
    """Raises `MessageTooLarge` where body and custom headers are more than `limit` bytes.

    Raises `EncodeError` where custom headers can't be sent.
    """
    size = len(message.body) + (len(dumps(custom, place="headers")) if custom else 0)
    if size > limit:
        raise MessageTooLarge(
            f"the message of task {message.task!r} has {size} bytes; task_max_message_size allows "
            f"{limit}. Send a reference to the data (a path, an id) in its place, or raise the "
            "setting"
        )


def custom_headers(headers: object) -> Mapping[str, Any] | None:
    if headers is None:
        return None
    if not isinstance(headers, Mapping) or not all(isinstance(name, str) for name in headers):
        raise TypeError(f"headers is {headers!r:.80}; expected a dict with text keys")
    if taken := HEADERS & headers.keys():
        raise ValueError(
            f"headers has {min(taken)!r}, which is a header of the protocol; choose another name, "
            "or set it with the option of that meaning"
        )
    return headers


def _embed(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """What goes with the arguments: signatures that the call's options have as plain data."""
    callbacks, errbacks = options.get("link"), options.get("link_error")
    chain = options.get("chain")
    if not (callbacks or errbacks or chain):
        return NO_EMBED
    return {
        "callbacks": callbacks or None,
        "errbacks": errbacks or None,
        "chain": chain or None,
        "chord": None,
    }


def stamps_in(options: Mapping[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """(headers `stamped_headers`, `stamps`) of a call that has stamps."""
    names = checked_names(options["stamped_headers"])
    return names, {name: options[name] for name in names if name in options}


def _lineage(options: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """(root id, parent id): those of the task that a worker runs here, unless told otherwise."""
    entry = executing()
    root_id, parent_id = options.get("root_id"), options.get("parent_id")
    if entry is None:
        return root_id, parent_id
    request = entry.request
    return root_id or request.root_id or request.id, parent_id or request.id
