"""Which queue a message goes to.

A `Router` is built from settings and answers for a task name and the options of one call. Three
levels each may say something, and the first one that does wins, option by option::

    options of the call   >   the route of the task's name in `task_routes`   >   defaults

The destination counts as one option: a call that names a queue takes nothing of the exchange or
the routing key of a route. Options that are None say nothing.

`task_routes` is a dict ``{name or pattern: queue name or dict of options}``, or a list of such
dicts and of ``(pattern, route)`` pairs. Within a dict or a run of pairs the exact name wins, then
the first matching pattern in the order written; of several dicts the first that matches.
A pattern is a glob (``*`` any text, ``?`` one character, ``[ab]`` one of these) over the whole
name, or a compiled regular expression that matches at its start.

Exchanges are direct ones here, so every message is for exactly one queue, and is published to the
default exchange ``""`` with the queue's name as routing key, whatever way led to that queue.
"""

from __future__ import annotations

import difflib
import fnmatch
import functools
import itertools
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from umbel.exceptions import ImproperlyConfigured, QueueNotFound, Unroutable

T = TypeVar("T")

Destination = tuple[str | None, str | None, str | None]
"""Queue, exchange, routing key."""

DESTINATION = frozenset({"queue", "exchange", "exchange_type", "routing_key"})
_SEND_OPTIONS = """
    add_to_parent app_id argsrepr compression confirm_timeout content_encoding content_type
    correlation_id countdown declare delivery_mode eta expiration expires headers ignore_result
    immediate kwargsrepr link link_error mandatory message_id priority reply_to result_cls retry
    retry_policy route_name serializer shadow soft_time_limit stamped_headers time_limit timeout
    timestamp type user_id
"""
ROUTE_OPTIONS = DESTINATION | frozenset(_SEND_OPTIONS.split())
"""What a route may set: the send options that make sense for more than one message."""

# Names come from the program, but `send_task` may be given made-up ones; memory stays bounded.
_CACHE_SIZE = 10_000
_NAMED_IN_ERRORS = 10
_NOTHING: Mapping[str, object] = MappingProxyType({})


class Address(NamedTuple):
    """Where one message is published, and the queue that it will be in."""

    exchange: str
    routing_key: str
    queue: str


class Routed(NamedTuple):
    """The answer for one call: its address, and its other options, merged, none of them None."""

    address: Address
    options: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue and its binding: exchange and routing key are the queue's name unless given.

    Raises `ValueError` for a name that no broker could carry.
    """

    name: str
    exchange: str = ""
    routing_key: str = ""
    max_priority: int | None = None

    def __post_init__(self) -> None:
        queue_name(self.name)
        object.__setattr__(self, "exchange", _text("an exchange", self.exchange or self.name))
        object.__setattr__(
            self, "routing_key", _text("a routing key", self.routing_key or self.name)
        )
        top = self.max_priority
        if top is not None and not (isinstance(top, int) and 0 <= top <= 255):
            raise ValueError(
                f"max_priority of queue {self.name!r} is {self.max_priority!r}; "
                "expected a whole number from 0 to 255"
            )

    @classmethod
    def of(cls, value: object) -> Queue:
        """From a name, or from an object with `name` and perhaps `exchange`, `routing_key`."""
        if isinstance(value, Queue):
            return value
        if isinstance(value, str):
            return cls(value)
        exchange = getattr(value, "exchange", None)
        _direct_only(getattr(exchange, "type", None), f"the exchange of queue {value!r}")
        return cls(
            queue_name(value),
            str(_name(exchange)) if exchange else "",
            getattr(value, "routing_key", None) or "",
            getattr(value, "max_priority", None),
        )


@dataclass(frozen=True, slots=True)
class Route:
    """What one entry of `task_routes` says; None and a missing option mean: nothing said."""

    queue: str | None = None
    exchange: str | None = None
    routing_key: str | None = None
    options: Mapping[str, object] = field(default_factory=lambda: _NOTHING)
    """Priority, serializer and the other send options."""

    @classmethod
    def of(cls, value: object, where: str = "a route") -> Route:
        """From a queue (name or object) or a dict of send options.

        Raises `ImproperlyConfigured` for anything else, and for an unknown option.
        """
        if not isinstance(value, Mapping):
            if isinstance(value, str) or hasattr(value, "name"):
                return cls(queue=queue_name(value))
            raise ImproperlyConfigured(
                f"{where} is {value!r}; expected a queue name or a dict of send options"
            )
        for key in value:
            if key not in ROUTE_OPTIONS:
                nearest = difflib.get_close_matches(str(key), sorted(ROUTE_OPTIONS), n=1, cutoff=0)
                raise ImproperlyConfigured(
                    f"{where} has the option {key!r}, which doesn't exist; "
                    f"did you mean {nearest[0]!r}?"
                )
        return cls(*_destination(value), MappingProxyType(_others(value)))


@dataclass(frozen=True, slots=True)
class RouteMap:
    """One dict or run of pairs: exact names, then patterns in the order written."""

    exact: Mapping[str, Route]
    patterns: tuple[tuple[re.Pattern[str], Route], ...]

    @classmethod
    def of(cls, pairs: Iterable[tuple[object, object]]) -> RouteMap:
        """From pairs of a name, glob or compiled expression and what `Route.of` takes."""
        exact: dict[str, Route] = {}
        patterns: list[tuple[re.Pattern[str], Route]] = []
        for key, value in pairs:
            route = Route.of(value, f"task_routes[{key!r}]")
            if isinstance(key, re.Pattern):
                patterns.append((key, route))
            elif not isinstance(key, str):
                raise ImproperlyConfigured(
                    f"task_routes has the key {key!r}; "
                    "expected a task name, a glob or a compiled expression"
                )
            elif any(char in key for char in "*?["):
                patterns.append((re.compile(fnmatch.translate(key)), route))
            else:
                exact.setdefault(key, route)
        return cls(exact, tuple(patterns))

    def match(self, task_name: str) -> Route | None:
        """The route for a task name, or None."""
        if task_name in self.exact:
            return self.exact[task_name]
        return next((route for pattern, route in self.patterns if pattern.match(task_name)), None)

    def routes(self) -> Iterator[Route]:
        """All routes."""
        yield from self.exact.values()
        yield from (route for _, route in self.patterns)


def route_maps(routes: object) -> tuple[RouteMap, ...]:
    """`task_routes` in all its forms; raises `ImproperlyConfigured` for one that isn't known."""
    if not routes:
        return ()
    if isinstance(routes, Mapping):
        return (RouteMap.of(routes.items()),)
    if not isinstance(routes, Sequence) or isinstance(routes, str | bytes):
        raise _not_a_router("task_routes", routes)
    maps: list[RouteMap] = []
    pairs: list[tuple[object, object]] = []
    for number, item in enumerate(routes):
        if (
            isinstance(item, tuple | list)
            and len(item) == 2
            and isinstance(item[0], str | re.Pattern)
        ):
            pairs.append((item[0], item[1]))
            continue
        if not isinstance(item, Mapping | list | tuple):
            raise _not_a_router(f"task_routes[{number}]", item)
        # What is written first is asked first, so the pairs so far become a map of their own.
        maps += [RouteMap.of(pairs)] if pairs else []
        pairs = []
        maps += route_maps(item)
    return (*maps, RouteMap.of(pairs)) if pairs else tuple(maps)


class Router:
    """Answers where each task's messages go. Thread-safe; changes of settings need a new one."""

    def __init__(
        self,
        routes: object = None,
        queues: Iterable[object] | Mapping[str, object] | None = None,
        *,
        default_queue: str = "celery",
        default_exchange: str | None = None,
        default_routing_key: str | None = None,
        create_missing: bool = True,
    ) -> None:
        """From the settings of these names; `queues` holds what `Queue.of` takes."""
        default = Queue(default_queue, default_exchange or "", default_routing_key or "")
        self._default = default.name
        self._create_missing = create_missing
        self._maps = route_maps(routes)
        self._declared = _declared(queues) or {default.name: default}
        self._created: dict[str, Queue] = {}
        if create_missing:
            self._created.setdefault(default.name, default)
        self._bound = self._bindings()
        self._matched: dict[str, Route] = {}
        self._plain: dict[str, Routed] = {}

    @property
    def queues(self) -> tuple[Queue, ...]:
        """The declared queues: those of `task_queues`, else the default queue alone."""
        return tuple(self._declared.values())

    def queue(self, name: str) -> Queue:
        """The queue of this name; a new one if missing queues are created, else `QueueNotFound`."""
        found = self._declared.get(name) or self._created.get(name)
        if found is None:
            found = Queue(name)
            if not self._create_missing:
                raise QueueNotFound(
                    f"queue {name!r} isn't declared; known: {_list(self._nearest(name))}. "
                    "Add it to task_queues, or turn task_create_missing_queues on"
                )
            _remember(self._created, name, found)
        return found

    def route(self, task_name: str, options: Mapping[str, object] = _NOTHING) -> Routed:
        """The address and the merged options of one call; `options` are those of the call.

        Raises `QueueNotFound`, `Unroutable` (no queue, or more than one, has the exchange or
        routing key asked for), or `ValueError` for a name that can't be one.
        """
        if not options:
            plain = self._plain.get(task_name)
            return plain if plain is not None else self._route_plain(task_name)
        others = _others(options)
        if DESTINATION.isdisjoint(options):
            plain = self._plain.get(task_name) or self._route_plain(task_name)
            return Routed(plain.address, {**plain.options, **others})
        route = self._route(task_name)
        address = self._resolve(_prefer(_destination(options), route))
        return Routed(address, {**route.options, **others})

    def select(
        self, include: Iterable[str] | None = None, exclude: Iterable[str] = ()
    ) -> tuple[Queue, ...]:
        """The queues that a worker consumes: `include` (None: the declared ones) less `exclude`.

        Raises `QueueNotFound` for a name that isn't known, unless missing queues are created, and
        `ImproperlyConfigured` if nothing is left.
        """
        wanted = self._declared if include is None else {name: self.queue(name) for name in include}
        left_out = {self.queue(name).name for name in exclude}
        chosen = tuple(queue for name, queue in wanted.items() if name not in left_out)
        if not chosen:
            raise ImproperlyConfigured(
                f"no queue is left to consume from: of {_list(wanted)}, "
                f"{_list(sorted(left_out))} are excluded"
            )
        return chosen

    def _route(self, task_name: str) -> Route:
        found = self._matched.get(task_name)
        if found is None:
            matches = (routes.match(task_name) for routes in self._maps)
            found = next((route for route in matches if route is not None), Route())
            _remember(self._matched, task_name, found)
        return found

    def _route_plain(self, task_name: str) -> Routed:
        route = self._route(task_name)
        address = self._resolve((route.queue, route.exchange, route.routing_key))
        plain = Routed(address, route.options)
        _remember(self._plain, task_name, plain)
        return plain

    def _resolve(self, destination: Destination) -> Address:
        queue, exchange, key = destination
        if queue is not None and not (exchange and key):
            return _address(self.queue(queue))
        if exchange == "" or (exchange is None and key is None):
            return _address(self.queue(key or self._default))
        known = self._bound if queue is None else {**self._bound, queue: self.queue(queue)}
        takers = [
            each
            for each in known.values()
            if exchange in (None, each.exchange) and key in (None, each.routing_key)
        ]
        if len(takers) != 1:
            raise Unroutable(_why_not(destination, takers, known.values()))
        return _address(takers[0])

    def _bindings(self) -> dict[str, Queue]:
        """What an exchange or routing key can lead to: declared queues and those of routes.

        Queues that calls name are not among them, or else the answer would depend on the calls
        made before.
        """
        bound = dict(self._declared)
        if self._create_missing:
            named = (route.queue for routes in self._maps for route in routes.routes())
            for name in (self._default, *named):
                if name is not None:
                    bound.setdefault(name, self.queue(name))
        return bound

    def _nearest(self, name: str) -> list[str]:
        close = difflib.get_close_matches(name, self._declared, n=_NAMED_IN_ERRORS)
        return [*close, *sorted(self._declared.keys() - set(close))]


def queue_name(value: object) -> str:
    """The name of a queue (a text, or an object's `name`) if every broker can carry it.

    Raises `ValueError`: empty, over 255 bytes of UTF-8, a brace (Redis Cluster would take it for
    a hash tag), a control character (Redis keeps priorities apart with them).
    """
    name = _text("a queue name", _name(value))
    if "{" in name or "}" in name:
        raise ValueError(f"{name!r} can't be a queue name: it holds a brace. Use a name without")
    return name


def _text(what: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{value!r} can't be {what}: expected a text that isn't empty")
    return _carriable(what, value)


@functools.lru_cache(maxsize=_CACHE_SIZE)  # every send that names a queue comes through here
def _carriable(what: str, value: str) -> str:
    if any(unicodedata.category(char) in ("Cc", "Cs") for char in value):
        raise ValueError(f"{value!r} can't be {what}: it holds a control character or half of one")
    size = len(value.encode())
    if size > 255:
        raise ValueError(
            f"{value[:40]!r}… can't be {what}: it has {size} bytes, expected up to 255"
        )
    return value


def _name(value: object) -> object:
    return value if isinstance(value, str) else getattr(value, "name", value)


def _destination(options: Mapping[str, object]) -> Destination:
    queue, exchange, key = (options.get(name) for name in ("queue", "exchange", "routing_key"))
    _direct_only(options.get("exchange_type"), "exchange_type")
    exchange = _name(exchange)
    # The default exchange says something only together with a key: the queue's name.
    exchange = None if exchange == "" and not key else exchange
    return (
        None if queue is None else queue_name(queue),
        exchange if exchange in (None, "") else _text("an exchange", exchange),
        None if key in (None, "") else _text("a routing key", key),
    )


def _others(options: Mapping[str, object]) -> dict[str, object]:
    return {
        key: value for key, value in options.items() if value is not None and key not in DESTINATION
    }


def _prefer(call: Destination, route: Route) -> Destination:
    queue, exchange, routing_key = call
    if queue is not None:
        return call
    if exchange is None and routing_key is None:
        return route.queue, route.exchange, route.routing_key
    return (
        None,
        route.exchange if exchange is None else exchange,
        route.routing_key if routing_key is None else routing_key,
    )


def _address(queue: Queue) -> Address:
    return Address("", queue.name, queue.name)


def _declared(queues: Iterable[object] | Mapping[str, object] | None) -> dict[str, Queue]:
    values = queues.values() if isinstance(queues, Mapping) else queues or ()
    declared: dict[str, Queue] = {}
    for queue in map(Queue.of, values):
        if declared.setdefault(queue.name, queue) != queue:
            raise ImproperlyConfigured(
                f"task_queues declares {queue.name!r} twice, once as {declared[queue.name]} "
                f"and once as {queue}; keep one"
            )
    return declared


def _remember(cache: dict[str, T], key: str, value: T) -> None:
    if len(cache) >= _CACHE_SIZE:
        cache.clear()
    cache[key] = value


def _direct_only(kind: object, where: str) -> None:
    if kind not in (None, "", "direct"):
        raise ImproperlyConfigured(
            f"{where} is of type {kind!r}; this release routes through 'direct' exchanges only. "
            'Topic, fanout and headers exchanges come with the release "API"'
        )


def _not_a_router(where: str, value: object) -> ImproperlyConfigured:
    if callable(value) or isinstance(value, str):
        return ImproperlyConfigured(
            f"{where} is {value!r}, a routing function; those are called from the release "
            '"API" on. Until then write its rules as a dict {name or pattern: queue}'
        )
    return ImproperlyConfigured(
        f"{where} is {value!r}; expected a dict {{name or pattern: queue}} or a list of those"
    )


def _list(names: Iterable[str]) -> str:
    shown = [repr(name) for name in itertools.islice(names, _NAMED_IN_ERRORS + 1)]
    return ", ".join([*shown[:_NAMED_IN_ERRORS], *(["…"] if len(shown) > _NAMED_IN_ERRORS else [])])


def _why_not(destination: Destination, takers: Sequence[Queue], known: Iterable[Queue]) -> str:
    """The sentence for an exchange or routing key that leads to no queue, or to several."""
    _, exchange, key = destination
    parts = [("exchange", exchange), ("routing key", key)]
    asked = " and ".join(f"{word} {text!r}" for word, text in parts if text is not None)
    if takers:
        names = _list(each.name for each in takers)
        return f"{asked} leads to more than one queue: {names}. Say which with queue="
    bindings = [
        f"{each.name!r} (exchange {each.exchange!r}, routing key {each.routing_key!r})"
        for each in itertools.islice(known, _NAMED_IN_ERRORS)
    ]
    return (
        f"{asked} leads to no queue. Known: {', '.join(bindings)}. "
        "Name the queue with queue=, or declare one so bound in task_queues"
    )
