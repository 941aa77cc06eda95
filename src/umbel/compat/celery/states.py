"""``celery.states``: the names of states, and their order."""

from __future__ import annotations

from typing import Final

from umbel.compat.missing import guard
from umbel.states import (
    ALL_STATES,
    EXCEPTION_STATES,
    FAILURE,
    IGNORED,
    PENDING,
    PROPAGATE_STATES,
    READY_STATES,
    RECEIVED,
    REJECTED,
    RETRY,
    REVOKED,
    STARTED,
    SUCCESS,
    UNREADY_STATES,
)

__all__ = [
    "ALL_STATES",
    "EXCEPTION_STATES",
    "FAILURE",
    "IGNORED",
    "PENDING",
    "PROPAGATE_STATES",
    "READY_STATES",
    "RECEIVED",
    "REJECTED",
    "RETRY",
    "REVOKED",
    "STARTED",
    "SUCCESS",
    "UNREADY_STATES",
    "precedence",
    "state",
]

_BEFORE_OTHERS: Final = (SUCCESS, FAILURE)
_AFTER_OTHERS: Final = (REVOKED, STARTED, RECEIVED, REJECTED, RETRY, PENDING)
_PLACES: Final = {
    **{name: place for place, name in enumerate(_BEFORE_OTHERS)},
    **{name: place for place, name in enumerate(_AFTER_OTHERS, len(_BEFORE_OTHERS) + 1)},
}


def precedence(state: str) -> int:
    """The place of a state, the furthest first; states of one's own come behind FAILURE."""
    return _PLACES.get(state, len(_BEFORE_OTHERS))


class state(str):
    """A state that compares by how far it is: ``state(PENDING) < state(SUCCESS)``."""

    __slots__ = ()

    def __gt__(self, other: str) -> bool:
        return precedence(self) < precedence(other)

    def __ge__(self, other: str) -> bool:
        return precedence(self) <= precedence(other)

    def __lt__(self, other: str) -> bool:
        return precedence(self) > precedence(other)

    def __le__(self, other: str) -> bool:
        return precedence(self) >= precedence(other)


guard(__name__)
