"""What a setting is, and the kinds of value that one can have.

A `Kind` checks a value and brings it into the one form that the other parts read: durations
become float seconds, names become a tuple, "no limit" becomes None.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import timedelta, tzinfo
from enum import Enum
from math import isfinite, isnan

from umbel.compression import find_compression
from umbel.exceptions import ImproperlyConfigured
from umbel.exchanges import EXCHANGE_TYPES


class State(Enum):
    """What setting a setting does in this release."""

    HONOURED = "honoured"
    LATER = "later"
    NEVER = "never"


class WrongValue(ValueError):
    """A value that the kind doesn't take; the message may be empty or a hint what to do."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of value."""

    text: str
    """What is expected, as it stands after "expected" in a message."""
    accept: Callable[[object], object]
    """The value in its one form; raises `WrongValue`."""
    parse: Callable[[str], object] | None = None
    """Reads the text of an environment variable; None where no text can carry the value."""


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """One known setting."""

    name: str
    default: object
    kind: Kind = field(repr=False)
    old_name: str | None
    """The upper-case name of Celery 3; None for settings of Umbel's own."""
    meaning: str
    state: State
    sentence: str
    """What happens to it, where it isn't honoured: a sentence without its subject."""

    @property
    def type(self) -> str:
        """The values that it takes, in words."""
        return self.kind.text

    @property
    def warns(self) -> bool:
        """Setting it is answered with a warning."""
        return self.state is not State.HONOURED


def optional(kind: Kind) -> Kind:
    """`kind`, or None; in the environment ``none``, unless any text is a value."""

    def accept(value: object) -> object:
        return None if value is None else kind.accept(value)

    def parse(text: str) -> object:
        assert kind.parse is not None
        return None if text.lower() == "none" else kind.parse(text)

    carries_any_text = kind.parse is None or kind.parse is str
    return Kind(f"{kind.text}, or None", accept, kind.parse if carries_any_text else parse)


def _exactly(*types: type) -> Callable[[object], object]:
    def accept(value: object) -> object:
        # True is an int to Python, but never what somebody means by a number.
        if isinstance(value, types) and (bool in types or not isinstance(value, bool)):
            return value
        raise WrongValue

    return accept


def _bool_from(text: str) -> bool:
    word = text.lower()
    if word in ("1", "true", "yes", "on"):
        return True
    if word in ("0", "false", "no", "off"):
        return False
    raise WrongValue("write true or false")


def _number_from(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        return float(text)


def _whole(least: int, most: int | None = None) -> Callable[[object], object]:
    def accept(value: object) -> object:
        if not isinstance(value, int) or isinstance(value, bool):
            raise WrongValue
        if value < least or (most is not None and value > most):
            raise WrongValue
        return value

    return accept


def _seconds(value: object) -> float:
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            seconds = float(value)
        except OverflowError:  # a whole number above every float
            raise WrongValue from None
        if isfinite(seconds) and seconds >= 0:
            return seconds
    raise WrongValue


def _some_seconds(value: object) -> float:
    if seconds := _seconds(value):
        return seconds
    raise WrongValue


def _no_limit_if_0(accept: Callable[[object], object]) -> Callable[[object], object]:
    def accept_or_none(value: object) -> object:
        return None if value is None else accept(value) or None

    return accept_or_none


def _number(value: object) -> object:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and not isnan(value):
        return value
    raise WrongValue


def _nonempty(value: object) -> str:
    if isinstance(value, str) and value:
        return value
    raise WrongValue


def _names(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (_nonempty(value),)
    if isinstance(value, (list, tuple, set, frozenset)):
        return tuple(_nonempty(name) for name in value)
    raise WrongValue


_OF_SEVERAL = ("redis", "rediss", "redis+socket", "unix", "sentinel", "redis+cluster")
_BETWEEN_URLS = re.compile(r";(?=[a-z0-9+]+://)", re.I)


def _url(value: object) -> str:
    urls = value if isinstance(value, (list, tuple)) else _BETWEEN_URLS.split(_nonempty(value))
    if len(urls) > 1 and not all(_is_of_redis(url) for url in urls):
        raise WrongValue(
            "several are the ways to one server, such as one on Redis; a second file would be "
            "another queue, where nobody looks. Name one"
        )
    return ";".join(map(_nonempty, urls)) if urls else _nonempty(None)


def _is_of_redis(url: object) -> bool:
    return isinstance(url, str) and url.partition("://")[0] in _OF_SEVERAL


BOOL = Kind("True or False", _exactly(bool), _bool_from)
INT = Kind("a whole number", _exactly(int), int)
COUNT = Kind("a whole number from 0", _whole(0), int)
POSITIVE = Kind("a whole number from 1", _whole(1), int)
PRIORITY = Kind("a whole number from 0 to 9", _whole(0, 9), int)
LIMIT = Kind(
    "a whole number, or None (or 0) for no limit",
    _no_limit_if_0(_whole(0)),
    lambda text: None if text.lower() == "none" else int(text),
)
NUMBER = Kind("a number", _number, _number_from)
SECONDS = Kind("a number of seconds from 0, or a timedelta", _seconds, float)
SOME_SECONDS = Kind("a number of seconds above 0, or a timedelta", _some_seconds, float)
SECONDS_LIMIT = Kind(
    "a number of seconds, or a timedelta, or None (or 0) for no limit",
    _no_limit_if_0(_seconds),
    lambda text: None if text.lower() == "none" else float(text),
)
STR = Kind("a str", _exactly(str), str)
NONEMPTY = Kind("a str that isn't empty", _nonempty, str)
STR_OR_BYTES = Kind("a str or bytes", _exactly(str, bytes), str)
INT_OR_STR = Kind("a whole number or a str", _exactly(int, str), str)
NUMBER_OR_STR = Kind("a number or a str", _exactly(int, float, str), str)
NAMES = Kind("a list of names", _names)
MAPPING = Kind("a dict", _exactly(Mapping))
SWITCH_OR_MAPPING = Kind("True, False or a dict", _exactly(bool, Mapping), _bool_from)
OBJECT = Kind("any object", lambda value: value)
URL = Kind(
    "a URL, several of Redis, or None", lambda value: None if value is None else _url(value), str
)
TIMEZONE = Kind(
    "the name of a zone such as 'Europe/Berlin', or a tzinfo, or None",
    lambda value: value if value is None or isinstance(value, tzinfo) else _nonempty(value),
    str,
)


def one_of(choices: Mapping[object, object], hints: Mapping[object, str], text: str) -> Kind:
    """A value of `choices`, which maps what may be written to what it means.

    `hints` says of values that one might expect to work why they don't.
    """

    def accept(value: object) -> object:
        try:
            return choices[value]
        except KeyError:
            raise WrongValue(hints.get(value, "")) from None
        except TypeError:  # not hashable
            raise WrongValue from None

    return Kind(text, accept, str)


def _serializer(value: object) -> str:
    name = _nonempty(value)
    return "json" if name == "application/json" else name


SERIALIZER = Kind("the name of a serializer, such as 'json'", _serializer, str)


def _serializers(value: object) -> tuple[str, ...]:
    names = tuple(map(_serializer, _names(value)))
    if not names:
        raise WrongValue("an empty list would refuse every message")
    return names


SERIALIZERS = Kind("a list of names of serializers, such as ['json']", _serializers)


def _compression(value: object) -> str:
    try:
        return find_compression(value).name
    except ImproperlyConfigured as error:
        raise WrongValue(str(error)) from None


COMPRESSION = Kind("the name of a compression, such as 'zlib'", _compression, str)

POOL = one_of(
    {
        "prefork": "prefork",
        "processes": "prefork",
        "threads": "threads",
        "asyncio": "asyncio",
        "solo": "solo",
    },
    {
        "gevent": "greenlets are honoured by a later release; prefork runs the same tasks",
        "eventlet": "eventlet is at its end and won't be supported; prefork runs the same tasks",
    },
    "'prefork', 'threads', 'asyncio' or 'solo'",
)

_DELIVERY_MODES: Mapping[object, int] = {
    2: 2, "2": 2, "persistent": 2, 1: 1, "1": 1, "transient": 1,
}  # fmt: skip


def _delivery_mode(value: object) -> int:
    if isinstance(value, (int, str)) and not isinstance(value, bool) and value in _DELIVERY_MODES:
        return _DELIVERY_MODES[value]
    raise WrongValue


DELIVERY_MODE = Kind("2 (or 'persistent') or 1 (or 'transient')", _delivery_mode, str)

EXCHANGE_TYPE = one_of(
    {name: name for name in EXCHANGE_TYPES}, {}, "'direct', 'topic', 'fanout' or 'headers'"
)
START_METHOD = one_of({"fork": "fork", "spawn": "spawn"}, {}, "'fork' or 'spawn'")

PRIORITY_ORDER = one_of(
    {"high-first": "high-first", "low-first": "low-first"}, {}, "'high-first' or 'low-first'"
)


def _protocol(value: object) -> int:
    if type(value) is int and value == 2:
        return value
    raise WrongValue("version 1 went with Celery 4" if value == 1 else "")


PROTOCOL = Kind("2", _protocol, int)


def _concurrency(value: object) -> object:
    return None if value is None or value == "auto" else _whole(1)(value)


CONCURRENCY = Kind(
    "a whole number from 1, or None (or 'auto') for the processors it may use",
    _concurrency,
    lambda text: text if text == "auto" else None if text.lower() == "none" else int(text),
)

_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


def _level(value: object) -> object:
    if isinstance(value, str) and value.upper() in _LEVELS:
        return value.upper()
    return _whole(0)(value)


LEVEL = Kind(
    "a log level such as 'WARNING', or its number",
    _level,
    lambda text: int(text) if text.isdecimal() else text,
)


def _queues(value: object) -> object:
    if value is None:
        return None
    if isinstance(value, Mapping):
        for name, queue in value.items():
            _nonempty(name)
            if not isinstance(queue, Mapping):
                _named(queue)
        return value
    if not isinstance(value, (list, tuple, set, frozenset)):
        raise WrongValue
    for queue in value:
        _named(queue)
    return value


def _named(queue: object) -> None:
    _nonempty(queue if isinstance(queue, str) else getattr(queue, "name", None))


QUEUES = Kind("a list of queues (names, or objects with a name), or a dict by name", _queues)


def _routes(value: object) -> object:
    # Only the outline: `umbel.routes` reads the rules and knows what is wrong with one.
    is_rule = callable(value) or hasattr(value, "route_for_task")
    if value is None or is_rule or isinstance(value, (Mapping, list, tuple, str)):
        return value
    raise WrongValue


ROUTES = Kind(
    "a dict of task name or glob to a queue or a dict of options, a function or its dotted name, "
    "or a list of those",
    _routes,
)

PUBLISH_POLICY_DEFAULT: Mapping[str, object] = {
    "max_retries": 3,
    "interval_start": 0.0,
    "interval_max": 1.0,
    "interval_step": 0.2,
}
_POLICY_KEYS: Collection[str] = (*PUBLISH_POLICY_DEFAULT, "retry_errors")


def _publish_policy(value: object) -> dict[str, object]:
    if not isinstance(value, Mapping):
        raise WrongValue
    parts = {key: _policy_part(key, part) for key, part in value.items()}
    return {**PUBLISH_POLICY_DEFAULT, **parts}


def _policy_part(key: object, part: object) -> object:
    if key not in _POLICY_KEYS:
        raise WrongValue(f"the key {key!r} isn't known; known: {', '.join(_POLICY_KEYS)}")
    try:
        if key == "max_retries":
            return None if part is None else _whole(0)(part)
        return _exceptions(part) if key == "retry_errors" else _seconds(part)
    except WrongValue:
        raise WrongValue(f"its {key!r} can't be {part!r}") from None


def _exceptions(value: object) -> tuple[type[BaseException], ...]:
    parts = () if value is None else value if isinstance(value, (tuple, list)) else (value,)
    errors = [part for part in parts if isinstance(part, type) and issubclass(part, BaseException)]
    if len(errors) != len(parts):
        raise WrongValue
    return tuple(errors)


PUBLISH_POLICY = Kind(
    f"a dict with any of {', '.join(_POLICY_KEYS)}; numbers from 0, and seconds for intervals",
    _publish_policy,
)
