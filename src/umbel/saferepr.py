"""Text for arguments, of bounded length, made with bounded work, without ever failing."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Mapping
from typing import Any, Final

_SCALARS: Final = frozenset({bool, type(None), float, complex})
_FLAT: Final[frozenset[type]] = frozenset({int, str, bool, type(None), float})
_BARE: Final[frozenset[type]] = frozenset({tuple, list, set, dict})

# Containers are known by their __repr__, not by their class: a subclass that has its own may
# have it to hide something, and is asked for it.
_BRACKETS: Final[Mapping[object, tuple[str, str]]] = {
    tuple.__repr__: ("(", ")"),
    list.__repr__: ("[", "]"),
    deque.__repr__: ("[", "]"),
    set.__repr__: ("{", "}"),
    frozenset.__repr__: ("{", "}"),
    dict.__repr__: ("{", "}"),
    OrderedDict.__repr__: ("{", "}"),
    defaultdict.__repr__: ("{", "}"),
    Counter.__repr__: ("{", "}"),
}


def safe_repr(value: object, maxlen: int = 1024, maxlevels: int = 3) -> str:
    """``repr(value)`` in at most `maxlen` characters, the last three ``...`` if it was cut.

    Containers nested deeper than `maxlevels` are shown as ``[...]``, ``{...}``, ``(...)``. An
    object whose own ``__repr__`` fails is named by its class. The text can always be encoded.
    """
    if type(value) in _BARE and not value:
        return repr(value)
    writer = _Writer(maxlen)
    try:
        writer.write(value, maxlevels)
    except _Full:
        pass
    # Whatever the user's classes do here must not stop a task from being sent.
    except Exception as exc:
        writer.parts.append(f"<unreadable: {type(exc).__name__}>")
    text = "".join(writer.parts)
    if len(text) > maxlen:
        text = text[: max(maxlen - 3, 0)] + "..."
    return encodable(text)


def is_flat(value: object) -> bool:
    """Whether it is a tuple or list of scalars, so that `repr` itself can't fail on it."""
    return (type(value) is tuple or type(value) is list) and _FLAT.issuperset(map(type, value))


def encodable(text: str) -> str:
    """`text`, with what no encoding can carry (half of a surrogate pair) made visible."""
    if text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode()


class _Full(Exception):
    """There is no room for more text."""


class _Writer:
    __slots__ = ("parts", "room")

    def __init__(self, maxlen: int) -> None:
        self.parts: list[str] = []
        self.room = maxlen

    def put(self, text: str) -> None:
        self.parts.append(text)
        self.room -= len(text)
        if self.room < 0:
            raise _Full

    def write(self, value: Any, levels: int) -> None:
        kind = type(value)
        if kind is int:
            # Decimal digits take quadratic time, and more than 4,300 of them raise.
            bits = value.bit_length()
            self.put(repr(value) if bits <= 4096 else f"<int of {bits} bits>")
        elif kind is str or kind is bytes or kind is bytearray:
            # The quotes need room too: a cut text always overflows, so the cut is shown.
            self.put(repr(value[: self.room + 1]))
        elif kind in _SCALARS:
            self.put(repr(value))
        elif kind.__repr__ in _BRACKETS:
            self._container(value, levels)
        else:
            self.put(_object(value))

    def _container(self, value: Any, levels: int) -> None:
        kind = type(value)
        if not value:
            self.put(repr(value))
            return
        start, end = _BRACKETS[kind.__repr__]
        if kind not in _BARE:
            start, end = f"{kind.__qualname__}({start}", f"{end})"
        if levels <= 0:
            self.put(f"{start}...{end}")
            return
        self.put(start)
        if isinstance(value, dict):
            self._pairs(value, levels - 1)
        else:
            self._items(value, levels - 1)
        self.put("," + end if kind is tuple and len(value) == 1 else end)

    def _items(self, items: Iterable[object], levels: int) -> None:
        for index, item in enumerate(items):
            if index:
                self.put(", ")
            self.write(item, levels)

    def _pairs(self, mapping: dict[Any, Any], levels: int) -> None:
        for index, (key, item) in enumerate(mapping.items()):
            if index:
                self.put(", ")
            self.write(key, levels)
            self.put(": ")
            self.write(item, levels)


def _object(value: object) -> str:
    try:
        return str.__str__(repr(value))
    # A __repr__ is the user's code and may raise anything.
    except Exception as exc:
        return f"<{type(value).__qualname__} object; its repr raised {type(exc).__name__}>"
