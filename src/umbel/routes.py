"""`task_routes` in all its forms: what each says about a task.

::

    {name or pattern: route}        a map: the exact name, then the first pattern as written
    (pattern, route)                pairs in a list: a run of them is one map
    function(name, args, kwargs, options, task=…) -> route or None
    an object with route_for_task(name, args, kwargs) -> route or None
    "proj.routes.by_name"           the dotted name of any of these; of a class: one of it
    a list of all of these          the first that has an answer

A route is a queue (name or object) or a dict of send options.
"""

from __future__ import annotations

import difflib
import fnmatch
import importlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from umbel.exceptions import ImproperlyConfigured
from umbel.exchanges import Exchange
from umbel.queues import Queue, exchange_of, queue_name, text

NamedQueue = str | Queue | None
NamedExchange = str | Exchange | None
Destination = tuple[NamedQueue, NamedExchange, str | None]
"""Queue, exchange, routing key. An exchange is a text where its type isn't known."""

DESTINATION: Final = frozenset({"queue", "exchange", "exchange_type", "routing_key"})
_SEND_OPTIONS: Final = """
    add_to_parent app_id argsrepr compression confirm_timeout content_encoding content_type
    correlation_id countdown declare delivery_mode eta expiration expires headers ignore_result
    immediate kwargsrepr link link_error mandatory message_id priority reply_to result_cls retry
    retry_policy route_name serializer shadow soft_time_limit stamped_headers time_limit timeout
    timestamp type user_id
"""
ROUTE_OPTIONS: Final = DESTINATION | frozenset(_SEND_OPTIONS.split())
"""What a route may set: the send options that make sense for more than one message."""
NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Call:
    """What routing functions are told of a call beyond its options; `task` None is unknown here."""

    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    task: Any = None


NO_CALL: Final = Call()


@dataclass(frozen=True, slots=True)
class Route:
    """What one route says; None and a missing option mean: nothing said."""

    queue: NamedQueue = None
    exchange: NamedExchange = None
    routing_key: str | None = None
    options: Mapping[str, object] = field(default_factory=lambda: NOTHING)
    """Priority, serializer and the other send options."""

    @classmethod
    def of(cls, value: object, where: str = "a route") -> Route:
        """From a queue (name or object) or a dict of send options.

        Raises `ImproperlyConfigured` for anything else, and for an unknown option.
        """
        if not isinstance(value, Mapping):
            if isinstance(value, str) or hasattr(value, "name"):
                value = {"queue": value}
                return cls(*destination(value), MappingProxyType(others(value)))
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
        return cls(*destination(value), MappingProxyType(others(value)))


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


@dataclass(frozen=True, slots=True)
class RouteFunction:
    """A function that is asked about every call."""

    function: Callable[..., object]
    is_method: bool
    """A `route_for_task`, which is told less."""

    def ask(self, task_name: str, options: Mapping[str, object], call: Call) -> Route | None:
        """Its answer. What it raises goes to the caller."""
        if self.is_method:
            answer = self.function(task_name, call.args, call.kwargs)
        else:
            told = dict(options)
            answer = self.function(task_name, call.args, call.kwargs, told, task=call.task)
        if answer is None:
            return None
        return Route.of(answer, f"what {self.function!r} said of task {task_name!r}")


Rule = RouteMap | RouteFunction


def route_rules(routes: object, where: str = "task_routes") -> tuple[Rule, ...]:
    """`task_routes` in all its forms; raises `ImproperlyConfigured` for one that isn't known."""
    if routes is None or (isinstance(routes, Sequence | Mapping) and not routes):
        return ()
    if isinstance(routes, Mapping):
        return (RouteMap.of(routes.items()),)
    if isinstance(routes, str):
        return _named(routes, where)
    if not isinstance(routes, Sequence) or isinstance(routes, bytes):
        return (_function(routes, where),)
    rules: list[Rule] = []
    pairs: list[tuple[object, object]] = []
    for number, item in enumerate(routes):
        if _is_pair(item):
            pairs.append((item[0], item[1]))
            continue
        # What is written first is asked first, so the pairs so far become a map of their own.
        rules += [RouteMap.of(pairs)] if pairs else []
        pairs = []
        rules += route_rules(item, f"{where}[{number}]")
    return (*rules, RouteMap.of(pairs)) if pairs else tuple(rules)


def destination(options: Mapping[str, object]) -> Destination:
    """Where options say that a message goes. Raises `ValueError`, `ImproperlyConfigured`."""
    queue, exchange, key = (options.get(name) for name in ("queue", "exchange", "routing_key"))
    kind = options.get("exchange_type")
    named: NamedExchange = None
    if exchange is not None:
        name = exchange if isinstance(exchange, str) else getattr(exchange, "name", exchange)
        # The default exchange says something only together with a key: the queue's name.
        if name == "":
            named = "" if key else None
        elif isinstance(exchange, str) and kind is None:
            named = text("an exchange", exchange)
        else:
            named = exchange_of(exchange, None if kind is None else str(kind))
    return (
        queue_name(queue) if isinstance(queue, str) else None if queue is None else Queue.of(queue),
        named,
        None if key in (None, "") else text("a routing key", key),
    )


def others(options: Mapping[str, object]) -> dict[str, object]:
    """The options beside the destination, none of them None.

    A queue that is given as an object is made to exist, as if `declare` named it.
    """
    kept = {
        key: value for key, value in options.items() if value is not None and key not in DESTINATION
    }
    queue = options.get("queue")
    if queue is not None and not isinstance(queue, str):
        kept["declare"] = [*declared(kept.get("declare")), Queue.of(queue)]
    return kept


def declared(value: object) -> list[Queue]:
    """The queues that the option `declare` names. Raises `ValueError` for what isn't one."""
    if value is None:
        return []
    given = value if isinstance(value, list | tuple | set | frozenset) else [value]
    return [Queue.of(each) for each in given if type(each).__name__ != "Exchange"]


def _is_pair(item: object) -> bool:
    return (
        isinstance(item, tuple | list) and len(item) == 2 and isinstance(item[0], str | re.Pattern)
    )


def _named(name: str, where: str) -> tuple[Rule, ...]:
    """What stands under a dotted name, ``proj.routes.by_name`` or ``proj.routes:by_name``."""
    module, _, attribute = name.replace(":", ".").rpartition(".")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ImproperlyConfigured(
            f"{where} is {name!r}, and there is nothing of that name to import: {error}. Expected "
            "a function as 'proj.routes.by_name', or a dict {name or pattern: queue}"
        ) from error
    if isinstance(found, str):
        raise ImproperlyConfigured(f"{where} is {name!r}, which is a text again: {found!r}")
    return route_rules(found() if isinstance(found, type) else found, where)


def _function(router: object, where: str) -> RouteFunction:
    method = getattr(router, "route_for_task", None)
    if callable(method):
        return RouteFunction(method, is_method=True)
    if callable(router):
        return RouteFunction(router, is_method=False)
    raise ImproperlyConfigured(
        f"{where} is {router!r}; expected a dict {{name or pattern: queue}}, a function, "
        "an object with route_for_task, the dotted name of one, or a list of those"
    )
