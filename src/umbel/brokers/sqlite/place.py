"""The order in which a queue's messages are handed out, as one 64-bit integer per message.

::

    -2**62 + n            set aside, to be buried
    -2**61 + n            revoked while it waited
    (9 - priority) << 56 + n    all others, 9 first

Lower places go first; `n` is the message's number in the order of arrival.
"""

from __future__ import annotations

from typing import Final

from umbel.message import MAX_PRIORITY

_LOST: Final = -(2**62)
_FRONT: Final = -(2**61)
_BITS: Final = 56

LOST_END: Final = _FRONT
"""Places below this one are of messages that are to be buried."""


def place(n: int, priority: int, *, lost: bool = False, front: bool = False) -> int:
    """Where message `n` stands in its queue."""
    if lost:
        return _LOST + n
    if front:
        return _FRONT + n
    return (MAX_PRIORITY - priority << _BITS) + n
