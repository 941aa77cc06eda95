"""Which queue or exchange a message goes to.

A `Router` is built from settings and answers for a task name and the options of one call. Three
levels each may say something, and the first one that does wins, option by option::

    options of the call   >   the route of the task's name in `task_routes`   >   defaults

The destination counts as one option: a call that names a queue takes nothing of the exchange or
the routing key of a route, and one that names an exchange nothing of its queue. Options that are
None say nothing. The forms of `task_routes` are those of `umbel.routes`.

What is asked for, and where it is published::

    a queue of a direct exchange                the default exchange "", by the queue's name
    a queue of another exchange                 its exchange, by the key of the call, else its own
    exchange and routing key                    there; the broker's bindings decide
    an exchange alone                           to its only queue; fanout and headers: there
    a routing key alone                         see `Router.route`
    nothing                                     as for the default queue
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, TypeVar

from umbel.exceptions import (
    ImproperlyConfigured,
    LaterSetting,
    QueueNotFound,
    RoutingKeyAlone,
    Unroutable,
)
from umbel.exchanges import Binding, Exchange, takes
from umbel.queues import CACHE_SIZE, Bound, Broadcast, Queue, binding, queue_name, worker_direct
from umbel.routes import (
    DESTINATION,
    NO_CALL,
    NOTHING,
    ROUTE_OPTIONS,
    Call,
    Destination,
    NamedExchange,
    NamedQueue,
    Route,
    RouteFunction,
    RouteMap,
    declared,
    destination,
    others,
    route_rules,
)
from umbel.settings import Settings
from umbel.warning import warn

__all__ = [
    "DESTINATION",
    "ROUTE_OPTIONS",
    "Address",
    "Bound",
    "Broadcast",
    "Call",
    "Exchange",
    "Queue",
    "Route",
    "RouteMap",
    "Routed",
    "Router",
    "binding",
    "declared",
    "queue_name",
    "worker_direct",
]

T = TypeVar("T")

_NAMED_IN_ERRORS: Final = 10
_FOR_SERVERS: Final = ("expires", "message_ttl", "max_length", "max_length_bytes")


class Address(NamedTuple):
    """Where one message is published.

    `queue` is the queue that was meant, empty where only the broker knows; `top` the highest
    priority that counts there, None where all do.
    """

    exchange: str
    routing_key: str
    queue: str
    top: int | None = None


class Routed(NamedTuple):
    """The answer for one call: its address, and its other options, merged, none of them None."""

    address: Address
    options: Mapping[str, object]


class Router:
    """Answers where each task's messages go. Thread-safe; changes of settings need a new one."""

    def __init__(
        self,
        routes: object = None,
        queues: Iterable[object] | Mapping[str, object] | None = None,
        *,
        default_queue: str = "celery",
        default_exchange: str | None = None,
        default_exchange_type: str | None = None,
        default_routing_key: str | None = None,
        create_missing: bool = True,
        missing_exchange_type: str | None = None,
        max_priority: int | None = None,
    ) -> None:
        """From the settings of these names; `queues` holds what `Queue.of` takes."""
        default = Queue(
            default_queue,
            default_exchange,
            default_routing_key or "",
            exchange_type=default_exchange_type,
        )
        self._default = default.name
        self._create_missing = create_missing
        self._missing_type = missing_exchange_type
        self._top = max_priority
        self._rules = route_rules(routes)
        self.asks = any(isinstance(rule, RouteFunction) for rule in self._rules)
        """Whether a function has a say, so that no answer may be kept."""
        self._declared = _declared(queues) or {default.name: default}
        self._aliases = {q.alias: q for q in self._declared.values() if q.alias is not None}
        self._created: dict[str, Queue] = {}
        if create_missing:
            self._created.setdefault(default.name, default)
        self._bound = self._reachable()
        self._matched: dict[str, Route] = {}
        self._plain: dict[str, Routed] = {}
        self._warned: dict[str, None] = {}

    @classmethod
    def of(cls, conf: Settings) -> Router:
        """Where messages go by these settings. Raises `ImproperlyConfigured`."""
        return cls(
            conf.task_routes,
            conf.task_queues,
            default_queue=conf.task_default_queue,
            default_exchange=conf.task_default_exchange,
            default_exchange_type=conf.task_default_exchange_type,
            default_routing_key=conf.task_default_routing_key,
            create_missing=conf.task_create_missing_queues,
            missing_exchange_type=conf.task_create_missing_queue_exchange_type,
            max_priority=conf.task_queue_max_priority,
        )

    @property
    def queues(self) -> tuple[Queue, ...]:
        """The declared queues: those of `task_queues`, else the default queue alone."""
        return tuple(self._declared.values())

    def queue(self, name: str) -> Queue:
        """The queue of this name; a new one if missing queues are created, else `QueueNotFound`."""
        found = self._declared.get(name) or self._aliases.get(name) or self._created.get(name)
        if found is None:
            found = Queue(name, exchange_type=self._missing_type)
            if not self._create_missing:
                raise QueueNotFound(
                    f"queue {name!r} isn't declared; known: {_list(self._nearest(name))}. "
                    "Add it to task_queues, or turn task_create_missing_queues on"
                )
            _remember(self._created, name, found)
        return found

    def links(self, queue: str) -> tuple[Binding, ...]:
        """The bindings that a queue of this name is declared with."""
        known = self._declared.get(queue) or self._created.get(queue)
        return () if known is None else known.links

    def behind(self, exchange: str) -> tuple[list[str], list[Binding]]:
        """The known queues that an exchange leads to, and their bindings; none of a broadcast,
        whose queues are made by those who consume them."""
        own = self._created.get(exchange)
        known = {**self._bound, **({} if own is None else {own.name: own})}
        queues = [
            queue
            for queue in known.values()
            if not queue.per_run
            if queue.name == exchange or any(link.exchange == exchange for link in queue.links)
        ]
        return [queue.name for queue in queues], [link for each in queues for link in each.links]

    def route(
        self, task_name: str, options: Mapping[str, object] = NOTHING, call: Call = NO_CALL
    ) -> Routed:
        """The address and the merged options of one call; `options` are those of the call.

        A routing key alone counts where the default queue's exchange takes one, or where exactly
        one known queue has it; else it is left aside, as Celery does. Either warns, once per task
        and key, unless it is for the default queue's exchange. Raises `QueueNotFound`,
        `Unroutable` (an exchange with several queues and no key), or `ValueError` for a name that
        can't be one.
        """
        if self.asks:
            return self._answer(task_name, self._ask(task_name, options, call), options)
        if not options:
            plain = self._plain.get(task_name)
            return plain if plain is not None else self._route_plain(task_name)
        if DESTINATION.isdisjoint(options):
            plain = self._plain.get(task_name) or self._route_plain(task_name)
            return Routed(plain.address, {**plain.options, **others(options)})
        return self._answer(task_name, self._route(task_name), options)

    def select(
        self, include: Iterable[str] | None = None, exclude: Iterable[str] = ()
    ) -> tuple[Queue, ...]:
        """The queues that a worker consumes: `include` (None: the declared ones) less `exclude`.

        Raises `QueueNotFound` for a name that isn't known, unless missing queues are created, and
        `ImproperlyConfigured` if nothing is left.
        """
        wanted = self.queues if include is None else [self.queue(name) for name in include]
        left_out = {self.queue(name).name for name in exclude}
        chosen = {queue.name: queue for queue in wanted if queue.name not in left_out}
        if not chosen:
            raise ImproperlyConfigured(
                f"no queue is left to consume from: of {_list(queue.name for queue in wanted)}, "
                f"{_list(sorted(left_out))} are excluded"
            )
        return tuple(chosen.values())

    def _answer(self, task_name: str, route: Route, options: Mapping[str, object]) -> Routed:
        address = self._resolve(_prefer(destination(options), route), task_name)
        return Routed(address, {**route.options, **others(options)})

    def _ask(self, task_name: str, options: Mapping[str, object], call: Call) -> Route:
        for rule in self._rules:
            if isinstance(rule, RouteMap):
                found = rule.match(task_name)
            else:
                found = rule.ask(task_name, options, call)
            if found is not None:
                return found
        return Route()

    def _route(self, task_name: str) -> Route:
        found = self._matched.get(task_name)
        if found is None:
            found = self._ask(task_name, NOTHING, NO_CALL)
            _remember(self._matched, task_name, found)
        return found

    def _route_plain(self, task_name: str) -> Routed:
        route = self._route(task_name)
        address = self._resolve((route.queue, route.exchange, route.routing_key), task_name)
        plain = Routed(address, route.options)
        _remember(self._plain, task_name, plain)
        return plain

    def _resolve(self, asked: Destination, task_name: str) -> Address:
        named, exchange, key = asked
        if named is not None and not (exchange and key):
            return self._to_queue(self._known(named), key)
        if exchange is None:
            return self._by_key_alone(key, task_name) if key else self._to_default(None)
        if exchange == "":
            return self._directly(self.queue(key or self._default))
        name = str(exchange)
        if key is None:
            return self._by_exchange_alone(name, exchange)
        meant = None if named is None else self._known(named)
        meant = meant or self._taker(name, key)
        if meant is None:
            return Address(name, key, "", self._top)
        return Address(name, key, meant.name, meant.capped(self._top))

    def _to_queue(self, queue: Queue, key: str | None) -> Address:
        if queue.is_direct:
            return self._directly(queue)
        top = queue.capped(self._top)
        return Address(queue.exchange.name, key or queue.routing_key, queue.name, top)

    def _directly(self, queue: Queue) -> Address:
        if queue.per_run:
            return Address(queue.exchange.name, queue.routing_key, queue.name, self._top)
        return Address("", queue.name, queue.name, queue.capped(self._top))

    def _to_default(self, key: str | None) -> Address:
        return self._to_queue(self.queue(self._default), key)

    def _by_exchange_alone(self, name: str, exchange: NamedExchange) -> Address:
        bound = [queue for queue in self._bound.values() if queue.exchange.name == name]
        own = exchange if isinstance(exchange, Exchange) else None
        kinds = {own.type} if own is not None else {queue.exchange.type for queue in bound}
        if len(bound) == 1 and kinds <= {"direct", "topic"}:
            return self._to_queue(bound[0], None)
        if bound and kinds <= {"direct", "topic"}:
            raise Unroutable(
                f"exchange {name!r} leads to more than one queue: "
                f"{_list(queue.name for queue in bound)}. "
                "Say which with queue=, or give a routing_key"
            )
        return Address(name, "", bound[0].name if len(bound) == 1 else "", self._top)

    def _by_key_alone(self, key: str, task_name: str) -> Address:
        default = self.queue(self._default) if self._has_default else None
        if default is not None and not default.is_direct:
            return self._to_default(key)
        having = [queue for queue in self._bound.values() if queue.routing_key == key]
        if len(having) == 1:
            address = self._to_queue(having[0], None)
            queue = having[0].name
            self._warn(task_name, key, f"it leads to queue {queue!r}. Write queue={queue!r}")
            return address
        address = self._to_default(None)
        self._warn(
            task_name,
            key,
            f"it is left aside, and the message goes to queue {self._default!r}. Write queue=, or "
            "exchange= beside it",
        )
        return address

    @property
    def _has_default(self) -> bool:
        return self._create_missing or self._default in self._declared

    def _warn(self, task_name: str, key: str, what: str) -> None:
        said = f"{task_name}\0{key}"
        if said not in self._warned:
            _remember(self._warned, said, None)
            warn(
                f"task {task_name!r} is sent with routing_key={key!r} and no exchange: {what}",
                RoutingKeyAlone,
            )

    def _known(self, named: str | Queue) -> Queue:
        return self.queue(named) if isinstance(named, str) else named

    def _taker(self, exchange: str, key: str) -> Queue | None:
        """A known queue that a key of an exchange leads to."""
        return next(
            (
                queue
                for queue in self._bound.values()
                for link in (*queue.links, Binding(queue.name, queue.name, "direct", queue.name))
                if link.exchange == exchange and takes(link, key, NOTHING)
            ),
            None,
        )

    def _reachable(self) -> dict[str, Queue]:
        """What an exchange or routing key can lead to: declared queues and those of routes.

        Queues that calls name are not among them, or else the answer would depend on the calls
        made before.
        """
        bound = dict(self._declared)
        routes = (r for rule in self._rules if isinstance(rule, RouteMap) for r in rule.routes())
        names: list[NamedQueue] = [self._default, *(route.queue for route in routes)]
        for named in names:
            if isinstance(named, Queue):
                bound.setdefault(named.name, named)
            elif named is not None and self._create_missing and named not in self._aliases:
                bound.setdefault(named, self.queue(named))
        return bound

    def _nearest(self, name: str) -> list[str]:
        close = difflib.get_close_matches(name, self._declared, n=_NAMED_IN_ERRORS)
        return [*close, *sorted(self._declared.keys() - set(close))]


def _prefer(call: Destination, route: Route) -> Destination:
    queue, exchange, routing_key = call
    if queue is not None:
        return call
    if exchange is None and routing_key is None:
        return route.queue, route.exchange, route.routing_key
    return (
        route.queue if exchange is None else None,
        route.exchange if exchange is None else exchange,
        route.routing_key if routing_key is None else routing_key,
    )


def _declared(queues: Iterable[object] | Mapping[str, object] | None) -> dict[str, Queue]:
    values: list[Queue] = []
    if isinstance(queues, Mapping):
        for name, value in queues.items():
            value = {} if value is None else value
            if isinstance(value, Mapping):
                values.append(Queue.from_dict(str(name), value))
            else:
                values.append(Queue.of(value))
    else:
        values += map(Queue.of, queues or ())
    declared: dict[str, Queue] = {}
    for queue in values:
        if declared.setdefault(queue.name, queue) != queue:
            raise ImproperlyConfigured(
                f"task_queues declares {queue.name!r} twice, once as {declared[queue.name]!r} "
                f"and once as {queue!r}; keep one"
            )
        _warn_of_extras(queue)
    _check_types(declared.values())
    return declared


def _warn_of_extras(queue: Queue) -> None:
    given = [name for name in _FOR_SERVERS if queue.extras.get(name) is not None]
    if given:
        warn(
            f"queue {queue.name!r} has {', '.join(given)}, which no broker of this release keeps: "
            "messages wait until they are run. It is honoured by the release that brings RabbitMQ",
            LaterSetting,
        )


def _check_types(queues: Iterable[Queue]) -> None:
    """An exchange is of one type, whatever brokers say."""
    kinds: dict[str, Queue] = {}
    for queue in queues:
        for link in queue.links:
            other = kinds.setdefault(link.exchange, queue)
            kind = next(each.type for each in other.links if each.exchange == link.exchange)
            if kind != link.type:
                raise ImproperlyConfigured(
                    f"exchange {link.exchange!r} is of type {kind!r} for queue {other.name!r} and "
                    f"of type {link.type!r} for queue {queue.name!r}; keep one of the two"
                )


def _remember(cache: dict[str, T], key: str, value: T) -> None:
    if len(cache) >= CACHE_SIZE:
        cache.clear()
    cache[key] = value


def _list(names: Iterable[str]) -> str:
    shown = [repr(name) for name in itertools.islice(names, _NAMED_IN_ERRORS + 1)]
    return ", ".join([*shown[:_NAMED_IN_ERRORS], *(["…"] if len(shown) > _NAMED_IN_ERRORS else [])])
