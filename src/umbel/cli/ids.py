"""Types of arguments that are task ids."""

from __future__ import annotations

from umbel.cli.exits import WrongUse
from umbel.cli.output import quoted


def id_of_task(value: str) -> str:
    """An id that `umbel call` or delay() may have given."""
    if not value:
        raise WrongUse("the id is empty; expected the text that `umbel call` or delay() gave")
    return id_of_dead(value)


def id_of_dead(value: str) -> str:
    """The id of a dead letter: empty, where a stranger's message had none."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise WrongUse(f"the id {quoted(value)} isn't UTF-8, so no task can have it") from None
    return value
