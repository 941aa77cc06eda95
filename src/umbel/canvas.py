"""Signatures: calls that are written down, to be sent later, linked and chained.

::

    add.s(2)                      a call with its last arguments; what comes before is put first
    add.si(2, 2)                  one that takes nothing from before
    add.s(2, 2) | add.s(3)        a chain: the second gets what the first has returned

In messages a signature is an object with exactly six keys::

    {"task": name, "args": [], "kwargs": {}, "options": {}, "subtask_type": null,
     "immutable": false}
"""

from __future__ import annotations

from typing import Any, NoReturn

from umbel.chains import chain
from umbel.signatures import (
    CHAIN,
    KEYS,
    Signature,
    check_links,
    form_of,
    from_dict,
    options_have_chord,
    refuse_kind,
    signature,
)

__all__ = [
    "CHAIN",
    "KEYS",
    "Signature",
    "chain",
    "check_links",
    "chord",
    "chunks",
    "form_of",
    "from_dict",
    "group",
    "options_have_chord",
    "signature",
    "xmap",
    "xstarmap",
]


def group(*_: Any, **__: Any) -> NoReturn:
    """Tasks side by side; it comes with the release 'Workflows'."""
    refuse_kind("group")


def chord(*_: Any, **__: Any) -> NoReturn:
    """A task after all of a group; it comes with the release 'Workflows'."""
    refuse_kind("chord")


def chunks(*_: Any, **__: Any) -> NoReturn:
    """Many calls in few messages; it comes with the release 'Workflows'."""
    refuse_kind("chunks")


def xmap(*_: Any, **__: Any) -> NoReturn:
    """Many calls in one message; it comes with the release 'Workflows'."""
    refuse_kind("xmap")


def xstarmap(*_: Any, **__: Any) -> NoReturn:
    """As `xmap`, with several arguments; it comes with the release 'Workflows'."""
    refuse_kind("xstarmap")
