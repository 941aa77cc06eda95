"""Exchanges, bindings, and which binding takes a message.

A message that is published to an exchange goes to every queue that a binding of the exchange takes
it to, once to each:

========  ==========================================================================
direct    the routing key is the binding's
topic     the binding's key is a pattern over words between dots: ``*`` is exactly one
          word, ``#`` any number of words, none included
fanout    always
headers   the binding's arguments are among the message's headers
========  ==========================================================================

``#`` next to a dot means the same on every broker: ``a.#`` takes ``a``, ``a.b`` and ``a.b.c``,
``#.a`` takes ``a``, and ``a.#.b`` takes ``a.b``. Words may be empty: ``a..b`` has three; an empty
key has none. Source: the AMQP 0-9-1 specification, section 3.1.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from umbel.exceptions import ImproperlyConfigured

EXCHANGE_TYPES: Final = ("direct", "topic", "fanout", "headers")
_MATCH: Final = "x-match"
_NAMED_IN_ERRORS: Final = 10
_MATCHES: Final = ("all", "any", "all-with-x", "any-with-x")

Headers = Mapping[str, Any]


class Binding(msgspec.Struct, frozen=True):
    """One way from an exchange into a queue, as brokers keep it.

    `type` is the exchange's: an exchange is known by its bindings, and is gone with the last one.
    `arguments` (name, value) are what a headers exchange looks for.
    """

    queue: str
    exchange: str
    type: str = "direct"
    routing_key: str = ""
    arguments: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Exchange:
    """A named exchange. Raises `ImproperlyConfigured` for a type that there isn't.

    `durable`, `auto_delete`, `delivery_mode` and `arguments` are for servers that tell such
    exchanges apart; elsewhere an exchange lives as long as its bindings.
    """

    name: str = ""
    type: str = "direct"
    durable: bool = field(default=True, compare=False)
    auto_delete: bool = field(default=False, compare=False)
    delivery_mode: int | str | None = field(default=None, compare=False)
    arguments: Mapping[str, Any] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise ImproperlyConfigured(f"an exchange is named {self.name!r:.80}; expected a text")
        object.__setattr__(self, "type", exchange_type(self.type, f"exchange {self.name!r}"))

    def __str__(self) -> str:
        return self.name


def exchange_type(value: object, where: str) -> str:
    """A type of exchange; empty and None are direct. Raises `ImproperlyConfigured`."""
    if value in (None, ""):
        return "direct"
    if isinstance(value, str) and value in EXCHANGE_TYPES:
        return value
    raise ImproperlyConfigured(
        f"{where} is of type {value!r}; expected one of {', '.join(EXCHANGE_TYPES)}"
    )


def binding_arguments(value: object, where: str) -> tuple[tuple[str, Any], ...]:
    """Arguments of a binding in a fixed order. Raises `ImproperlyConfigured`."""
    if not value:
        return ()
    if not isinstance(value, Mapping):
        raise ImproperlyConfigured(f"{where} has the arguments {value!r:.80}; expected a dict")
    for name, each in value.items():
        if not isinstance(name, str) or not isinstance(each, str | int | float | None):
            raise ImproperlyConfigured(
                f"{where} has the argument {name!r}: {each!r:.80}; expected a text as its name, "
                "and a text, a number, a bool or None as its value"
            )
    match = value.get(_MATCH, "all")
    if match not in _MATCHES:
        raise ImproperlyConfigured(
            f"{where} has x-match {match!r}; expected one of {', '.join(_MATCHES)}"
        )
    return tuple(sorted(value.items()))


def takes(binding: Binding, routing_key: str, headers: Headers) -> bool:
    """Whether the binding takes a message of this key and these headers."""
    match binding.type:
        case "fanout":
            return True
        case "topic":
            return topic_matches(binding.routing_key, routing_key)
        case "headers":
            return headers_match(binding.arguments, headers)
    return binding.routing_key == routing_key


def takers(bindings: Iterable[Binding], routing_key: str, headers: Headers) -> tuple[str, ...]:
    """The queues that the bindings, all of one exchange, take a message to; each once."""
    taken = (each.queue for each in bindings if takes(each, routing_key, headers))
    return tuple(dict.fromkeys(taken))


def topic_matches(pattern: str, routing_key: str) -> bool:
    """Whether a topic pattern takes a routing key.

    As in globs, only the last ``#`` has to be tried again: at most one step per pair of words.
    """
    wanted, words = _words(pattern), _words(routing_key)
    at, word = 0, 0
    many, resume = -1, 0
    while word < len(words):
        if at < len(wanted) and wanted[at] == "#":
            many, resume = at, word
            at += 1
        elif at < len(wanted) and wanted[at] in ("*", words[word]):
            at += 1
            word += 1
        elif many >= 0:
            resume += 1
            at, word = many + 1, resume
        else:
            return False
    return all(each == "#" for each in wanted[at:])


def headers_match(arguments: Sequence[tuple[str, Any]], headers: Headers) -> bool:
    """Whether headers have what the arguments say: all of it, or with x-match ``any`` one of it.

    A value of None asks only that there is such a header. Names that begin with ``x-`` count with
    x-match ``all-with-x`` and ``any-with-x`` alone. Nothing to look for: all match, any doesn't.
    """
    match = dict(arguments).get(_MATCH, "all")
    with_x = match.endswith("-with-x")
    found = (
        name in headers and (value is None or _same(headers[name], value))
        for name, value in arguments
        if name != _MATCH and (with_x or not name.startswith("x-"))
    )
    return any(found) if match.startswith("any") else all(found)


def clash(bindings: Iterable[Binding], types: Mapping[str, str]) -> str | None:
    """A sentence where a binding's exchange is of another type in `types`; None: all fit."""
    known = dict(types)
    for each in bindings:
        found = known.setdefault(each.exchange, each.type)
        if found != each.type:
            return (
                f"exchange {each.exchange!r} is of type {found!r} in this broker, and queue "
                f"{each.queue!r} would be bound to it as one of type {each.type!r}; nothing was "
                "declared. Give one of the two another name, or unbind the queues of the old one"
            )
    return None


def has_own_name(bindings: Sequence[Binding]) -> bool:
    """Whether these are of an exchange that the queue of its name is bound to without saying."""
    return not bindings or bindings[0].type == "direct"


def taken(queue: str, run: str) -> str:
    """The sentence for a queue that can't be a run's own."""
    return (
        f"queue {queue!r} exists and isn't one of run {run!r} alone, so it can't end with that "
        "run; nothing was declared. Give the broadcast queue another name"
    )


def undeclared(queue: str, known: Iterable[str]) -> str:
    """The sentence for a message to a queue that isn't there."""
    names = ", ".join(repr(name) for name in sorted(known)) or "none"
    return (
        f"queue {queue!r} isn't declared in this broker; declared queues: {names}. "
        "Declare it, or send to one of these."
    )


def unbound(exchange: str, routing_key: str, bindings: Sequence[Binding]) -> str:
    """The sentence for a message that none of an exchange's bindings takes."""
    if not bindings:
        return (
            f"exchange {exchange!r} (routing key {routing_key!r}) has no queue bound to it in this "
            "broker. Start a worker that consumes one, or declare one so bound in task_queues"
        )
    shown = [f"{each.queue!r} by {each.routing_key!r}" for each in bindings[:_NAMED_IN_ERRORS]]
    return (
        f"no queue that is bound to the {bindings[0].type} exchange {exchange!r} takes routing key "
        f"{routing_key!r}; bound are: {', '.join([*shown, *['…'][: len(bindings) - len(shown)]])}. "
        "Send with a key that one of these takes, or bind a queue by this one"
    )


def _words(key: str) -> list[str]:
    return key.split(".") if key else []


def _same(found: object, wanted: object) -> bool:
    """Equal, and neither of the two alone a bool: 1 isn't true."""
    return found == wanted and isinstance(found, bool) == isinstance(wanted, bool)
