"""Where messages go: queues and bindings, read once and checked by their version.

Routing is pure and happens here; a script that stores what was routed is given the version of the
routes and does nothing where they have changed, whereupon they are read again. Bindings of
Celery's, which change no version, are read anew for each publish to a named exchange, as Celery
does.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from umbel.brokers.redis.keys import Keys
from umbel.brokers.redis.link import Link
from umbel.exchanges import (
    Binding,
    has_own_name,
    takers,
    unbound,
    undeclared,
)
from umbel.message import Posting

_HASH: Final = r".*?"
_STAR: Final = r"[^\.]+"
_BROADCAST: Final = "bcast."
"""What the names of Kombu's broadcast queues begin with."""


@dataclass(frozen=True, slots=True)
class Routes:
    """Queues (the value as in the hash ``queues``) and bindings, of one version."""

    version: str
    queues: Mapping[str, str]
    bindings: Sequence[Binding]
    by_exchange: Mapping[str, Sequence[Binding]] = field(init=False)

    def __post_init__(self) -> None:
        grouped: dict[str, list[Binding]] = {}
        for each in self.bindings:
            grouped.setdefault(each.exchange, []).append(each)
        object.__setattr__(self, "by_exchange", grouped)

    def has(self, queue: str) -> bool:
        return self.queues.get(queue, "x") != "x"

    def lead(self, posting: Posting, strangers: Sequence[Binding]) -> tuple[str, ...]:
        """The queues that a posting is stored in; none where it is unroutable."""
        exchange, key = posting.exchange, posting.routing_key
        if not exchange:
            return (key,) if self.has(key) else ()
        known = self.by_exchange.get(exchange, ())
        names = takers(known, key, posting.message.headers)
        # What is published to a fanout exchange, strangers hear and take from no queue.
        storing = [each for each in strangers if each.type != "fanout"]
        if storing:
            names = tuple(dict.fromkeys((*names, *takers(storing, key, posting.message.headers))))
        if key == exchange and has_own_name(known) and self.has(key):
            return names if key in names else (*names, key)
        return names

    def heard_at(self, posting: Posting, strangers: Sequence[Binding]) -> frozenset[str]:
        """The routing keys with which strangers must hear of a posting to a fanout exchange, where
        keys don't count: its own, and those that they listen by. None where it isn't one."""
        bound = (*self.by_exchange.get(posting.exchange, ()), *strangers)
        if not any(each.type == "fanout" for each in bound):
            return frozenset()
        theirs = (each.routing_key for each in strangers if each.type == "fanout")
        return frozenset((posting.routing_key, *(key for key in theirs if not _is_pattern(key))))

    def why_not(self, posting: Posting) -> str:
        """The sentence for a posting that no queue takes."""
        if posting.exchange:
            known = self.by_exchange.get(posting.exchange, ())
            return unbound(posting.exchange, posting.routing_key, known)
        known_queues = [name for name in self.queues if self.has(name)]
        return undeclared(posting.routing_key, known_queues)


NO_ROUTES: Final = Routes("", {}, ())
"""What nobody's version is."""


def read(link: Link, keys: Keys) -> Routes:
    """The routes as they are now."""
    multi, *_, replies = link.calls(
        [
            ("MULTI",),
            ("GET", keys.own("routes")),
            ("HGETALL", keys.own("queues")),
            ("ZRANGE", keys.own("bindings"), 0, -1),
            ("EXEC",),
        ]
    )
    assert multi == b"OK"
    version, flat, members = replies
    names = [each.decode() for each in flat]
    return Routes(
        "0" if version is None else version.decode(),
        dict(zip(names[::2], names[1::2], strict=True)),
        tuple(map(binding, members)),
    )


def strangers(link: Link, keys: Keys, routes: Routes, exchange: str) -> Sequence[Binding]:
    """The bindings of an exchange that only Celery's set has."""
    found = link.call("SMEMBERS", keys.kombu_bindings(exchange))
    ours = routes.by_exchange.get(exchange, ())
    known = {kombu_member(keys, each) for each in ours}
    own_name = kombu_member(keys, Binding(exchange, exchange, "direct", exchange))
    made = []
    for raw in sorted(found):
        member = raw.decode("utf-8", "replace")
        if member in known or (member == own_name and exchange in routes.queues):
            continue
        key, pattern, queue = (*member.split(keys.sep), "", "")[:3]
        if queue:
            made.append(Binding(queue, exchange, _kind(ours, pattern, queue), key))
    return made


def _kind(ours: Sequence[Binding], pattern: str, queue: str) -> str:
    """The type of an exchange, of which a member of Kombu's set doesn't tell."""
    if ours:
        return ours[0].type
    if pattern:
        return "topic"
    return "fanout" if queue.startswith(_BROADCAST) else "direct"


def _is_pattern(key: str) -> bool:
    return "*" in key or "#" in key


def binding(member: bytes) -> Binding:
    """From a member of the set of bindings."""
    exchange, kind, queue, key, arguments, _ = json.loads(member)
    return Binding(queue, exchange, kind, key, tuple((name, value) for name, value in arguments))


def member(keys: Keys, each: Binding) -> str:
    """A binding as the set of bindings has it."""
    kombu = kombu_member(keys, each)
    fields = [each.exchange, each.type, each.queue, each.routing_key, each.arguments, kombu]
    return json.dumps(fields)


def kombu_member(keys: Keys, each: Binding) -> str:
    """A binding as Kombu's set has it; empty for a headers exchange, which Kombu hasn't here, and
    for a fanout exchange: nobody looks there when he publishes to one, and when a worker of
    Celery's has died, its copy would be given to our queues, which have theirs."""
    if each.type in ("headers", "fanout"):
        return ""
    pattern = kombu_pattern(each.routing_key) if each.type == "topic" else ""
    return keys.sep.join((each.routing_key, pattern, each.queue))


def kombu_pattern(routing_key: str) -> str:
    """A topic binding's key as the regular expression that Kombu looks with."""
    words = {"*": _STAR, "#": _HASH}
    return "^" + r"\.".join(words.get(each, each) for each in routing_key.split(".")) + "$"


def kombu_entries(
    keys: Keys, queues: Iterable[str], bindings: Iterable[Binding]
) -> list[tuple[str, str]]:
    """What `queues` and `bindings` are in Kombu's sets: (exchange, member). As Celery does it,
    each queue is bound by its own name to the direct exchange of its name."""
    named = [Binding(queue, queue, "direct", queue) for queue in queues]
    entries = ((each.exchange, kombu_member(keys, each)) for each in (*named, *bindings))
    return [entry for entry in entries if entry[1]]
