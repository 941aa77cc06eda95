"""Plain data: what JSON has a form for. Any other value is lowered to it, or refused by place.

Other serializers lower to what they have a form for, each by a `Form` of its own.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Set
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any, Final
from uuid import UUID

import msgspec

from umbel import jsontypes
from umbel.saferepr import safe_repr

# Lowering takes two frames of the stack per level. With 1,000 by default, this leaves 400 to
# the caller; and what one Python can write, every other can read.
MAX_DEPTH: Final = 300

# The interpreter refuses to read integers of more than 4,300 digits, about 14,284 bits.
_MAX_INT_BITS: Final = 14_000

SCALARS: Final = frozenset({str, int, bool, type(None)})
"""What needs no look before it is written; a float may be infinite."""
_TEXT: Final = frozenset({str})


class Refused(Exception):
    """A part that can't be carried; `steps` lead to it, the innermost first."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.steps: list[str] = []

    def where(self, place: str, names: Mapping[str, str]) -> str:
        """The place as ``kwargs['rows'][3]``; `names` as in `serialization.dumps`."""
        steps = self.steps[::-1]
        if steps and steps[0] in names:
            place = names[steps.pop(0)]
        shown, hidden = steps[:12], steps[12:]
        return place + "".join(shown) + ("[…]" if hidden else "")


def is_plain(value: Any, depth: int = 0) -> bool:
    """Whether msgspec writes `value` so that it comes back as it is (tuples as lists)."""
    kind = type(value)
    if kind is dict:
        if not _TEXT.issuperset(map(type, value)) or jsontypes.TYPE in value:
            return False
        items: Collection[Any] = value.values()
    elif kind is list or kind is tuple:
        items = value
    elif kind is float:
        return math.isfinite(value)
    else:
        return kind in SCALARS
    if depth >= MAX_DEPTH:
        return False
    # One pass in C settles most containers, which hold scalars only.
    if SCALARS.issuperset(map(type, items)):
        return True
    for item in items:
        if type(item) in SCALARS or is_plain(item, depth + 1):
            continue
        return False
    return True


@dataclasses.dataclass(frozen=True, slots=True)
class Form:
    """What a serializer can carry beside text, numbers, booleans, None, lists and dicts."""

    name: str
    """As in "can't be sent as JSON"."""
    carry: Callable[[object], object]
    """What a value of another type is sent as; None: it can't be."""
    key: Callable[[object], object]
    """What a key is sent as. Raises Refused."""
    escape: Callable[[dict[Any, Any]], dict[Any, Any]]
    int: Callable[[int], int]
    """What an integer is sent as. Raises Refused."""


def lower(value: Any, depth: int = 0, form: Form | None = None) -> Any:
    """`value` as exact built-in types, tagged and escaped; Refused for what can't be sent."""
    form = form or JSON
    if type(value) in SCALARS and type(value) is not int:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, int):
        return form.int(value)
    if depth >= MAX_DEPTH:
        raise Refused(f"nested more than {MAX_DEPTH} levels deep, or contains itself")
    if isinstance(value, (list, tuple)):
        return _lower_items(value, depth, form)
    if isinstance(value, dict):
        return form.escape(_lower_dict(value, depth, form))
    to_json = getattr(value, "__json__", None)
    if callable(to_json) and not isinstance(value, type):
        return lower(to_json(), depth + 1, form)
    carried = form.carry(value)
    if carried is None:
        raise Refused(
            f"object of type {_type_name(value)} can't be sent as {form.name}; {_advice(value)}"
        )
    return carried


def _lower_int(value: int) -> int:
    if value.bit_length() > _MAX_INT_BITS:
        raise Refused(
            f"an integer of {value.bit_length()} bits can't be sent as JSON; send it as text "
            "in hexadecimal: hex(value)"
        )
    return int.__int__(value)


def _lower_items(items: list[Any] | tuple[Any, ...], depth: int, form: Form) -> list[Any]:
    lowered: list[Any] = []
    for index, item in enumerate(items):
        try:
            lowered.append(lower(item, depth + 1, form))
        except Refused as exc:
            exc.steps.append(f"[{index}]")
            raise
    return lowered


def _lower_dict(mapping: dict[Any, Any], depth: int, form: Form) -> dict[Any, Any]:
    lowered: dict[Any, Any] = {}
    for key, item in mapping.items():
        name = form.key(key)
        if name in lowered:
            raise Refused(
                f"two of its keys become {safe_repr(name, 80)} in {form.name}; use text keys"
            )
        try:
            lowered[name] = lower(item, depth + 1, form)
        except Refused as exc:
            exc.steps.append(f"[{safe_repr(key, 80)}]")
            raise
    return lowered


def _lower_key(key: object) -> str:
    if isinstance(key, str):
        return str.__str__(key)
    if key is None or isinstance(key, (int, float)):
        return json.dumps(key)
    raise refused_key(key, "JSON")


def refused_key(key: object, form: str) -> Refused:
    """That this key can't be sent in the form of this name."""
    return Refused(
        f"the key {safe_repr(key, 80)} of type {_type_name(key)} can't be sent as {form}; "
        "use text keys, or a list of pairs: list(value.items())"
    )


JSON: Final = Form("JSON", jsontypes.to_tag, _lower_key, jsontypes.escape, _lower_int)


def _type_name(value: object) -> str:
    kind = type(value)
    module = kind.__module__
    return kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"


def _advice(value: object) -> str:
    """What to send in place of `value`, as the second half of a sentence."""
    match value:
        case Enum():
            return "send its value: value.value"
        case Set() | Iterator() | range():
            return "send a list: list(value)"
        case bytearray() | memoryview():
            return "send bytes: bytes(value)"
        case timedelta():
            return "send its seconds: value.total_seconds()"
        case date() | time() | Decimal() | UUID():
            return "send its text: str(value), or annotate the parameter with its type"
        case PurePath():
            return "send its text: str(value)"
        case BaseException():
            return "send its text: str(value), or raise it"
        case msgspec.Struct():
            return "send plain data: msgspec.to_builtins(value)"
        case Mapping():
            return "send a dict: dict(value)"
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return "send a dict: dataclasses.asdict(value)"
        case _ if hasattr(value, "item") and hasattr(value, "dtype"):
            return "send plain numbers: value.tolist()"
        case _:
            return (
                "send plain data that the task finds it by (an id, a path), "
                "or give its class a __json__() method"
            )
