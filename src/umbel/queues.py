"""Queues as they are named in settings and options: their names, bindings and limits.

The classes have the signatures of Kombu's. What only servers with such queues can do (to expire,
to be deleted by themselves, to be bounded) is kept on the object and changes nothing elsewhere:
the embedded brokers keep a message until it is run, and a queue until it is purged.
"""

from __future__ import annotations

import difflib
import functools
import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from umbel.exceptions import ImproperlyConfigured
from umbel.exchanges import Binding, Exchange, binding_arguments
from umbel.message import MAX_PRIORITY
from umbel.saferepr import safe_repr

# Names come from the program, but `send_task` may be given made-up ones; memory stays bounded.
CACHE_SIZE: Final = 10_000
_PRIORITY_ARGUMENT: Final = "x-max-priority"


@dataclass(frozen=True, slots=True)
class Bound:
    """One more way into a queue; see `binding`."""

    exchange: Exchange
    routing_key: str = ""
    arguments: tuple[tuple[str, Any], ...] = ()


def binding(
    exchange: Exchange | str | None = None,
    routing_key: str = "",
    arguments: Mapping[str, Any] | None = None,
    unbind_arguments: Mapping[str, Any] | None = None,
) -> Bound:
    """A way from an exchange into a queue, for ``Queue(…, bindings=[binding(…)])``."""
    del unbind_arguments  # of servers; here a binding goes by what it was made with
    made = exchange_of(exchange)
    if not isinstance(routing_key, str):
        raise TypeError(
            f"routing_key of a binding to {made.name!r} is {safe_repr(routing_key, 80)}; expected "
            "a text"
        )
    return Bound(made, routing_key, binding_arguments(arguments, f"a binding to {made.name!r}"))


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Queue:
    """A queue and what leads to it. Exchange and routing key are its own name unless given.

    Raises `ValueError` for a name that no broker could carry, `ImproperlyConfigured` for what
    can't be bound.
    """

    name: str
    exchange: Exchange
    routing_key: str
    bindings: tuple[Bound, ...]
    """Further ones."""
    arguments: tuple[tuple[str, Any], ...]
    """Of the binding to `exchange`: what a headers exchange looks for."""
    max_priority: int | None
    """What is sent with a higher priority counts as this."""
    alias: str | None
    """Another name for it, in options and on command lines."""
    extras: Mapping[str, Any] = field(compare=False)
    """What is for servers alone, by Kombu's names."""

    def __init__(
        self,
        name: str = "",
        exchange: Exchange | str | Collection[Bound] | None = None,
        routing_key: str = "",
        channel: object = None,
        bindings: Iterable[Bound] | None = None,
        on_declared: Callable[..., object] | None = None,
        *,
        exchange_type: str | None = None,
        binding_arguments: Mapping[str, Any] | None = None,
        queue_arguments: Mapping[str, Any] | None = None,
        max_priority: int | None = None,
        alias: str | None = None,
        durable: bool = True,
        exclusive: bool = False,
        auto_delete: bool = False,
        expires: float | None = None,
        message_ttl: float | None = None,
        max_length: int | None = None,
        max_length_bytes: int | None = None,
        consumer_arguments: Mapping[str, Any] | None = None,
        no_ack: bool = False,
        no_declare: bool | None = None,
    ) -> None:
        if channel is not None or on_declared is not None:
            raise ImproperlyConfigured(
                f"queue {name!r} is given a channel or on_declared, and there are no channels; "
                "leave it out. Queues are declared when something is sent to them"
            )
        queue_name(name)
        if isinstance(exchange, list | tuple | set | frozenset):
            ways = (*_ways(exchange, name), *_ways(bindings, name))
            exchange = None
        else:
            ways = _ways(bindings, name)
        main = exchange_of(exchange, exchange_type, name)
        top: object = max_priority
        if not (queue_arguments is None or isinstance(queue_arguments, Mapping)):
            raise TypeError(
                f"queue_arguments of queue {name!r} is {safe_repr(queue_arguments, 80)}; expected "
                "a dict such as {'x-max-priority': 10}"
            )
        if top is None:
            top = (queue_arguments or {}).get(_PRIORITY_ARGUMENT)
        put = functools.partial(object.__setattr__, self)
        put("name", name)
        put("exchange", main)
        put("routing_key", _key(routing_key, main, name))
        put("bindings", ways)
        put("arguments", _arguments(binding_arguments, name))
        put("max_priority", _checked_top(name, top))
        put("alias", _checked_alias(name, alias))
        extras = {
            "durable": durable, "exclusive": exclusive, "auto_delete": auto_delete,
            "expires": expires, "message_ttl": message_ttl, "max_length": max_length,
            "max_length_bytes": max_length_bytes, "queue_arguments": queue_arguments,
            "consumer_arguments": consumer_arguments, "no_ack": no_ack, "no_declare": no_declare,
        }  # fmt: skip
        put("extras", extras)

    def __repr__(self) -> str:
        kind, key = self.exchange.type, self.routing_key
        return f"<Queue {self.name!r} of {kind} exchange {self.exchange.name!r} by {key!r}>"

    def __str__(self) -> str:
        return self.name

    @property
    def per_run(self) -> bool:
        """Whether each worker that consumes it has one of its own."""
        return False

    def of_run(self, run: str) -> Queue:
        """The queue that one run of a worker consumes for it."""
        del run
        return self

    @property
    def is_direct(self) -> bool:
        """Whether it is reached by its name, unless something else is asked for."""
        return self.exchange.type == "direct"

    @property
    def links(self) -> tuple[Binding, ...]:
        """The bindings that a broker must be told of: all but those by its own name."""
        ways = (Bound(self.exchange, self.routing_key, self.arguments), *self.bindings)
        made = (
            Binding(self.name, way.exchange.name, way.exchange.type, way.routing_key, way.arguments)
            for way in ways
        )
        own = Binding(self.name, self.name, "direct", self.name)
        return tuple(each for each in made if each != own)

    @classmethod
    def of(cls, value: object) -> Queue:
        """From a name, or from an object as Kombu's."""
        if isinstance(value, Queue):
            return value
        if isinstance(value, str):
            return cls(value)
        if type(value).__name__ == "Broadcast":
            alias = getattr(value, "alias", None) or queue_name(value)
            return Broadcast(alias, exchange=_taken_over(getattr(value, "exchange", None)))
        own = getattr(value, "exchange", None)
        return cls(
            queue_name(value),
            _taken_over(own),
            getattr(value, "routing_key", None) or "",
            bindings=[_bound(each) for each in getattr(value, "bindings", None) or ()],
            binding_arguments=getattr(value, "binding_arguments", None),
            queue_arguments=getattr(value, "queue_arguments", None),
            max_priority=getattr(value, "max_priority", None),
            alias=getattr(value, "alias", None),
        )

    @classmethod
    def from_dict(cls, name: str, options: Mapping[str, Any]) -> Queue:
        """From a value of `task_queues` as a dict. Raises `ImproperlyConfigured`."""
        given = dict(options)
        key = given.pop("binding_key", None) or given.pop("routing_key", None) or ""
        given.pop("routing_key", None)
        exchange = exchange_of(given.pop("exchange", None), given.pop("exchange_type", None), name)
        for option in given:
            if option not in _DICT_KEYS:
                near = difflib.get_close_matches(str(option), sorted(_DICT_KEYS), n=1, cutoff=0)
                raise ImproperlyConfigured(
                    f"task_queues[{name!r}] has the key {option!r}, which doesn't exist; "
                    f"did you mean {near[0]!r}?"
                )
        return cls(name, exchange, key, **{k: v for k, v in given.items() if k in _QUEUE_KEYS})

    def capped(self, top: int | None) -> int | None:
        """The highest priority that counts here: its own, else `top`; None: no limit."""
        return top if self.max_priority is None else self.max_priority


_QUEUE_TEXT: Final = """
    alias auto_delete binding_arguments bindings consumer_arguments durable exclusive expires
    max_length max_length_bytes max_priority message_ttl no_ack queue_arguments
"""
_OTHER_TEXT: Final = """
    binding_key delivery_mode exchange exchange_arguments exchange_auto_delete exchange_durable
    exchange_type queue_auto_delete queue_durable routing_key
"""
_QUEUE_KEYS: Final = frozenset(_QUEUE_TEXT.split())
_DICT_KEYS: Final = _QUEUE_KEYS | frozenset(_OTHER_TEXT.split())


class Broadcast(Queue):
    """Each worker that consumes it gets each message: a fanout exchange, one queue per worker.

    Such a queue lives as long as its worker's run. With `queue` and without `unique` all workers
    share that queue, and each message is run once.
    """

    __slots__ = ()

    def __init__(
        self,
        name: str | None = None,
        queue: str | None = None,
        unique: bool = False,
        auto_delete: bool = True,
        exchange: Exchange | str | None = None,
        alias: str | None = None,
        **options: Any,
    ) -> None:
        known_as = alias or name or queue or ""
        super().__init__(
            queue or known_as,
            exchange_of(exchange, "fanout", name or known_as),
            alias=known_as,
            auto_delete=auto_delete,
            **options,
        )
        shared = queue is not None and not unique
        object.__setattr__(self, "extras", {**self.extras, "shared": shared})

    @property
    def shared(self) -> bool:
        """Whether all workers consume one queue."""
        return bool(self.extras["shared"])

    @property
    def per_run(self) -> bool:
        return not self.shared

    def of_run(self, run: str) -> Queue:
        if self.shared:
            return self
        return Queue(f"bcast.{self.name}.{run}", self.exchange, self.routing_key)


def worker_direct(hostname: str | Queue) -> Queue:
    """The queue of one worker alone, which it consumes where `worker_direct` is on."""
    if isinstance(hostname, Queue):
        return hostname
    return Queue(f"{hostname}.dq2", Exchange("C.dq2"), hostname)


def exchange_of(value: object, kind: str | None = None, otherwise: str = "") -> Exchange:
    """From a name or an object; `otherwise` names one where there is none."""
    if isinstance(value, Exchange) and value.name and kind in (None, value.type):
        return value
    name = value if value is None or isinstance(value, str) else getattr(value, "name", value)
    own = getattr(value, "type", None)
    return Exchange(text("an exchange", name or otherwise), kind or own or "direct")


def queue_name(value: object) -> str:
    """The name of a queue (a text, or an object's `name`) if every broker can carry it.

    Raises `ValueError`: empty, over 255 bytes of UTF-8, a brace (Redis Cluster would take it for
    a hash tag), a control character (Redis keeps priorities apart with them).
    """
    name = text("a queue name", value if isinstance(value, str) else getattr(value, "name", value))
    if "{" in name or "}" in name:
        raise ValueError(f"{name!r} can't be a queue name: it holds a brace. Use a name without")
    return name


def text(what: str, value: object) -> str:
    """A name that every broker can carry. Raises `ValueError`."""
    if not isinstance(value, str) or not value:
        raise ValueError(f"{value!r} can't be {what}: expected a text that isn't empty")
    return _carriable(what, value)


@functools.lru_cache(maxsize=CACHE_SIZE)  # every send that names a queue comes through here
def _carriable(what: str, value: str) -> str:
    if any(unicodedata.category(char) in ("Cc", "Cs") for char in value):
        raise ValueError(f"{value!r} can't be {what}: it holds a control character or half of one")
    size = len(value.encode())
    if size > 255:
        raise ValueError(
            f"{value[:40]!r}… can't be {what}: it has {size} bytes, expected up to 255"
        )
    return value


def _key(key: str, exchange: Exchange, name: str) -> str:
    """A queue's routing key: by default its name where keys count, else none."""
    if key:
        return text("a routing key", key)
    return name if exchange.type in ("direct", "topic") else ""


def _ways(bindings: object, name: str) -> tuple[Bound, ...]:
    """The bindings that a queue is given. Raises `TypeError`."""
    expected = "binding(exchange, routing_key), one or several in a list"
    if bindings is None:
        return ()
    if not isinstance(bindings, Iterable):
        raise TypeError(
            f"bindings of queue {name!r} is {safe_repr(bindings, 80)}; expected {expected}"
        )
    ways = tuple(bindings)
    for way in ways:
        if not isinstance(way, Bound):
            raise TypeError(
                f"bindings of queue {name!r} names {safe_repr(way, 80)}; expected {expected}"
            )
    return ways


def _arguments(value: object, name: str) -> tuple[tuple[str, Any], ...]:
    return binding_arguments(value, f"the binding of queue {name!r}")


def _checked_alias(name: str, alias: object) -> str | None:
    if alias is None or isinstance(alias, str):
        return alias
    raise TypeError(
        f"alias of queue {name!r} is {safe_repr(alias, 80)}; expected a text, or None for no "
        "other name"
    )


def _checked_top(name: str, top: object) -> int | None:
    if top is None:
        return None
    if isinstance(top, bool) or not (isinstance(top, int) and 0 <= top <= 255):
        raise ValueError(
            f"max_priority of queue {name!r} is {safe_repr(top, 80)}; expected a whole number "
            "from 0 to 255"
        )
    return min(top, MAX_PRIORITY)


def _taken_over(exchange: object) -> Exchange | None:
    """An exchange object of another library; None where it has no name."""
    if exchange is None or isinstance(exchange, Exchange):
        return exchange
    if isinstance(exchange, str):
        return Exchange(exchange) if exchange else None
    return exchange_of(exchange) if getattr(exchange, "name", None) else None


def _bound(value: object) -> Bound:
    if isinstance(value, Bound):
        return value
    return binding(
        _taken_over(getattr(value, "exchange", None)),
        getattr(value, "routing_key", None) or "",
        getattr(value, "arguments", None),
    )
