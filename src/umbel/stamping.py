"""Stamps: named values on signatures, which go with their messages as they are.

In a signature's options, ``stamped_headers`` has the names of the stamps, and each stamp is an
option of its name. In a message's headers, ``stamps`` is a dict of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import Any, Final

from umbel.saferepr import safe_repr

NAMES: Final = "stamped_headers"
"""The key that says which of the others are stamps; without it, all are."""

Stamps = Mapping[str, Any] | None


class StampingVisitor(ABC):
    """Says which stamps each signature gets (`Signature.stamp`).

    Each method is called with what is to be stamped, and with the stamps so far as keywords. It
    returns the stamps to add; with a key ``stamped_headers`` only those that it names are stamps,
    and the others are options. None adds nothing.
    """

    @abstractmethod
    def on_signature(self, sig: Any, **headers: Any) -> Stamps:
        """For each single task."""

    def on_chain_start(self, sig: Any, **headers: Any) -> Stamps:
        """Before the steps of a chain, for all of them."""
        return None

    def on_chain_end(self, sig: Any, **headers: Any) -> None:  # noqa: B027  # to be overridden
        """After the steps of a chain."""

    def on_callback(self, callback: Any, **headers: Any) -> Stamps:
        """For what is linked, before `on_signature` for it."""
        return None

    def on_errback(self, errback: Any, **headers: Any) -> Stamps:
        """For what is linked for errors, before `on_signature` for it."""
        return None

    def on_group_start(self, sig: Any, **headers: Any) -> Stamps:
        """Groups come with the release 'Workflows'."""
        return None

    def on_group_end(self, sig: Any, **headers: Any) -> None:  # noqa: B027  # to be overridden
        """Groups come with the release 'Workflows'."""

    def on_chord_header_start(self, sig: Any, **headers: Any) -> Stamps:
        """Chords come with the release 'Workflows'."""
        return None

    def on_chord_header_end(self, sig: Any, **headers: Any) -> None:  # noqa: B027  # to be overridden
        """Chords come with the release 'Workflows'."""

    def on_chord_body(self, sig: Any, **headers: Any) -> Stamps:
        """Chords come with the release 'Workflows'."""
        return None


def added(headers: Mapping[str, Any], more: Stamps) -> dict[str, Any]:
    """`headers` with the stamps of `more`, which win, and with the names of all stamps."""
    names = [*stamp_names(headers), *stamp_names(more or {})]
    both = {**headers, **(more or {})}
    return {**both, NAMES: list(dict.fromkeys(names))} if both else {}


def stamp_names(headers: Mapping[str, Any]) -> list[str]:
    """The names of the stamps in what `Signature.stamp` or a visitor gives."""
    if NAMES in headers:
        return checked_names(headers[NAMES])
    return list(headers)


def checked_names(value: object) -> list[str]:
    """The names in `stamped_headers`, each once; none of them for None. Raises `TypeError`."""
    if value is None:
        return []
    if isinstance(value, Collection) and not isinstance(value, (str, bytes, Mapping)):
        names = list(dict.fromkeys(value))
        if all(isinstance(name, str) for name in names):
            return names
    raise TypeError(
        f"{NAMES} is {safe_repr(value, 80)}; expected a list of the names of stamps, such as "
        "['tenant']"
    )


def put(options: dict[str, Any], headers: Mapping[str, Any], append: bool) -> None:
    """Stamp a signature's `options`; `append` keeps the value that a stamp has, in a list."""
    if not headers:
        return
    names, had = stamp_names(headers), checked_names(options.get(NAMES))
    for name, value in headers.items():
        if name == NAMES:
            continue
        if append and name in had and name in names:
            new = _listed(value)
            value = [*new, *(each for each in _listed(options[name]) if each not in new)]
        options[name] = value
    options[NAMES] = list(dict.fromkeys([*had, *names]))


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple, set, frozenset)) else [value]
