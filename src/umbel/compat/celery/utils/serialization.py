"""``celery.utils.serialization``."""

from __future__ import annotations

from typing import Any, Final

from umbel.compat.missing import guard

__all__ = ["strtobool"]

_WORDS: Final = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}


def strtobool(term: Any, table: dict[str, bool] | None = None) -> Any:
    """True for ``"true"``, ``"yes"``, ``"on"`` and ``"1"``, False for their opposites.

    What isn't text comes back as it is. Raises `TypeError` for any other text.
    """
    if not isinstance(term, str):
        return term
    words = _WORDS if table is None else table
    try:
        return words[term.lower()]
    except KeyError:
        raise TypeError(f"{term!r} is neither true nor false; use {', '.join(words)}") from None


guard(__name__)
