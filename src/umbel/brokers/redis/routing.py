"""Storing where the routes lead: declaring, binding, and what must be routed before it is stored.

The routes are read once. A script that stores what was routed is given their version, and does
nothing where they have changed; they are then read again, and it is routed and tried anew.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from umbel.brokers.redis import routes
from umbel.brokers.redis.routes import NO_ROUTES, Routes
from umbel.brokers.redis.server import Server, encode
from umbel.exceptions import BrokerUnavailable, ImproperlyConfigured, RunLost, Unroutable
from umbel.exchanges import Binding, clash, taken
from umbel.message import MAX_PRIORITY, Posting
from umbel.redisconnecting import Argument, Reply

_ROUTED_AGAIN: Final = 20
"""Times that routes may change while something is stored, before we say that it can't be."""

Found = TypeVar("Found")

TOLD: Final = -1
MUST_BE_HEARD: Final = -2
Stored = tuple[str, int, str, bytes]
"""A posting as the scripts want it: queue, step, due time or empty, envelope. In place of a queue
and a step: channels, NUL between them, and `TOLD`, or `MUST_BE_HEARD` where no queue has it."""


class Router:
    """The routes as they are known here. Thread-safe: what is known is replaced, never changed."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._steps = tuple(server.keys.step(priority) for priority in range(MAX_PRIORITY + 1))
        self._known = NO_ROUTES
        self._last_version = 0
        self._declared: dict[str, None] = {}
        self._bound: dict[Binding, None] = {}

    def declare(self, queues: Sequence[str], bindings: Sequence[Binding], run: str | None) -> None:
        """See `Broker.declare`."""
        server = self._server
        names = list(dict.fromkeys([*queues, *(each.queue for each in bindings)]))
        members = [routes.member(server.keys, each) for each in bindings]
        kept = names if run is None else ()
        kombu = routes.kombu_entries(server.keys, kept, bindings)

        def attempt(known: Routes) -> Reply | None:
            types = {name: of_it[0].type for name, of_it in known.by_exchange.items()}
            if (reason := clash(bindings, types)) is not None:
                raise ImproperlyConfigured(reason)
            request = known.version, names, run, members, kombu
            reply = server.run(server.scripts.declare, encode(request))
            return None if reply[0] == 1 else reply

        reply = self.routed(attempt)
        if reply[0] == 2:
            raise RunLost(f"run {run!r} is not known to this broker (any more)")
        if reply[0] == 3 and run is not None:
            raise ImproperlyConfigured(taken(reply[1].decode(), run))
        if run is None:
            self._declared.update(dict.fromkeys(names))
            self._bound.update(dict.fromkeys(bindings))

    def unbind(self, bindings: Sequence[Binding]) -> int:
        """See `Broker.unbind`."""
        for each in bindings:
            self._bound.pop(each, None)
        if not bindings:
            return 0
        members = [routes.member(self._server.keys, each) for each in bindings]
        unbound: int = self._server.run(self._server.scripts.unbind, *members)
        return unbound

    def bindings(self) -> tuple[Binding, ...]:
        """See `Inspector.bindings`."""
        known = self._server.looked(lambda: routes.read(self._server.link, self._server.keys))
        return tuple(sorted(known.bindings, key=lambda each: (each.exchange, each.queue)))

    def lead(self, known: Routes, posting: Posting, raw: bytes, now: float) -> list[Stored]:
        """A posting as it is stored in each of its queues. Raises `Unroutable`."""
        server = self._server
        beyond: Sequence[Binding] = ()
        if posting.exchange:
            beyond = server.looked(
                lambda: routes.strangers(server.link, server.keys, known, posting.exchange)
            )
        queues = known.lead(posting, beyond)
        due_at = posting.due_at
        due = "" if due_at is None or due_at <= now else repr(float(due_at))
        step = server.keys.step(posting.priority)
        stored = [(queue, step, due, raw) for queue in queues]
        if posting.exchange and (heard_at := known.heard_at(posting, beyond)):
            # Its eta is in the message, and theirs to keep.
            database = server.link.place.options.db
            names = {server.keys.channel(database, posting.exchange, key) for key in heard_at}
            stored.append(("\0".join(sorted(names)), TOLD if queues else MUST_BE_HEARD, "", raw))
        if not stored:
            raise Unroutable(known.why_not(posting))
        return stored

    def arguments(
        self, known: Routes, packed: Sequence[tuple[Posting, bytes]], now: float
    ) -> list[Argument]:
        """Postings and their envelopes as groups (see lua/common.lua): what goes to one place in a
        row is one. Raises `Unroutable`."""
        found: list[Argument] = []
        steps = self._steps
        group: tuple[str, int, str] | None = None
        size_at = 0
        for posting, raw in packed:
            queue = posting.routing_key
            # Nearly all of them; there may be tens of thousands.
            if not posting.exchange and posting.due_at is None and known.has(queue):
                led = [(queue, steps[posting.priority], "", raw)]
            else:
                led = self.lead(known, posting, raw, now)
            for stored in led:
                if stored[:3] != group:
                    group = stored[:3]
                    size_at = len(found) + 3
                    found += (*group, 0)
                found[size_at] += 1  # type: ignore[operator]  # a count
                found.append(stored[3])
        return found

    def unheard(
        self, known: Routes, packed: Sequence[tuple[Posting, bytes]], now: float, number: int
    ) -> str:
        """The sentence for the posting whose envelope is the one of that number, from 1 on."""
        postings = (posting for posting, raw in packed for _ in self.lead(known, posting, raw, now))
        return known.why_not(next(itertools.islice(postings, number - 1, None)))

    def routed(self, attempt: Callable[[Routes], Found | None]) -> Found:
        """What `attempt` gives; it is given the routes as they are known here and, where it gives
        None since they have changed, those that are there now."""
        for _ in range(_ROUTED_AGAIN):
            known = self._known
            if is_fresh := known is NO_ROUTES:
                known = self._read()
            try:
                reply = attempt(known)
            except (Unroutable, ImproperlyConfigured):
                if is_fresh:
                    raise
                reply = None
            if reply is not None:
                return reply
            self._known = NO_ROUTES
        raise BrokerUnavailable(
            f"the queues of {self._server.location} changed {_ROUTED_AGAIN} times while something "
            "was to be stored; nothing was done. Look for a program that declares queues again and "
            "again"
        )

    def _read(self) -> Routes:
        server = self._server
        known = server.looked(lambda: routes.read(server.link, server.keys))
        if int(known.version) < self._last_version and self._declared:
            # The server has lost its data: what this process had made exist is made again.
            queues, bindings = tuple(self._declared), tuple(self._bound)
            self._last_version, self._known = 0, known
            self.declare(queues, bindings, None)
            known = server.looked(lambda: routes.read(server.link, server.keys))
        self._last_version = int(known.version)
        self._known = known
        return known
