"""Celery's extra types in JSON, and the escape for user data that looks like one of them.

An extra type is an object with exactly two keys, ``{"__type__": name, "__value__": value}``:

============  ==========================================  =====================
name          value                                       becomes
============  ==========================================  =====================
``datetime``  ISO 8601 text                               ``datetime``
``date``      ISO 8601 text                               ``date``
``time``      ISO 8601 text                               ``time``
``decimal``   its digits as text                          ``Decimal``
``uuid``      ``{"hex": "…"}``                            ``UUID``
``bytes``     text, for bytes that are valid UTF-8        ``bytes``
``base64``    base64 text, for all other bytes            ``bytes``
============  ==========================================  =====================

**The escape.** A dict of the user's with exactly those two keys is sent with a third,
``"__plain__": 1``, which Umbel takes off again. A Celery worker sees plain data with one
key more; without the escape it would see another value or refuse the message. A dict that
has the three keys already, the third a positive integer, is sent with that integer plus one.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from umbel.exceptions import DecodeError

EXTRA_TYPES: Final = (datetime, date, time, Decimal, UUID, bytes)
TYPE: Final = "__type__"
_VALUE: Final = "__value__"
_PLAIN: Final = "__plain__"
_TAG_KEYS: Final = frozenset({TYPE, _VALUE})
_ESCAPED_KEYS: Final = frozenset({TYPE, _VALUE, _PLAIN})


def to_tag(value: object) -> dict[str, Any] | None:
    """The JSON object that stands for `value`, or None if its type isn't one of the extra ones."""
    match value:
        case datetime():
            return _tag("datetime", value.isoformat())
        case date():
            return _tag("date", value.isoformat())
        case time():
            return _tag("time", value.isoformat())
        case Decimal():
            return _tag("decimal", str(value))
        case UUID():
            return _tag("uuid", {"hex": value.hex})
        case bytes():
            try:
                return _tag("bytes", value.decode("utf-8"))
            except UnicodeDecodeError:
                return _tag("base64", base64.b64encode(value).decode("ascii"))
        case _:
            return None


def _tag(name: str, value: object) -> dict[str, Any]:
    return {TYPE: name, _VALUE: value}


def escape(mapping: dict[str, Any]) -> dict[str, Any]:
    """`mapping` so that reading it gives `mapping`, whatever its keys look like."""
    if mapping.keys() == _TAG_KEYS:
        return {**mapping, _PLAIN: 1}
    if mapping.keys() == _ESCAPED_KEYS and _is_count(mapping[_PLAIN]):
        return {**mapping, _PLAIN: mapping[_PLAIN] + 1}
    return mapping


def restore(mapping: dict[str, Any]) -> Any:
    """What a JSON object, whose own values are restored already, stands for.

    DecodeError for an unknown type name or a value that isn't of the named type.
    """
    if mapping.keys() == _TAG_KEYS:
        return _from_tag(mapping[TYPE], mapping[_VALUE])
    if mapping.keys() == _ESCAPED_KEYS and _is_count(mapping[_PLAIN]):
        if mapping[_PLAIN] == 1:
            del mapping[_PLAIN]
        else:
            mapping[_PLAIN] -= 1
    return mapping


def _is_count(value: object) -> bool:
    # Not isinstance: True is no count, and would come back as 1.
    return type(value) is int and value >= 1


def _from_tag(name: object, value: Any) -> Any:
    reader = _READERS.get(name) if isinstance(name, str) else None
    if reader is None:
        raise DecodeError(
            f"a value of the unknown type {name!r}; known: {', '.join(sorted(_READERS))}"
        )
    try:
        return reader(value)
    except (ValueError, TypeError, ArithmeticError, LookupError, AttributeError) as exc:
        raise DecodeError(f"a value tagged as {name} that isn't one: {value!r:.80}") from exc


def _read_uuid(value: Mapping[str, str]) -> UUID:
    return UUID(hex=value["hex"])


def _read_bytes(value: str) -> bytes:
    return value.encode("utf-8")


def _read_base64(value: str) -> bytes:
    return base64.b64decode(value, validate=True)


def _read_decimal(value: str) -> Decimal:
    if not isinstance(value, str):
        raise TypeError("a decimal travels as text")
    return Decimal(value)


_READERS: Final[Mapping[str, Callable[[Any], object]]] = {
    "datetime": datetime.fromisoformat,
    "date": date.fromisoformat,
    "time": time.fromisoformat,
    "decimal": _read_decimal,
    "uuid": _read_uuid,
    "bytes": _read_bytes,
    "base64": _read_base64,
}
