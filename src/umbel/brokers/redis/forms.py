"""States, records and dead letters, as the scripts write them, read into our values."""

from __future__ import annotations

from typing import Final
from urllib.parse import unquote_to_bytes

from umbel.codec import unpack
from umbel.message import Delivery, Loss, Lost, Message, Unreadable
from umbel.ports import DeadLetter, Revocation

_MARK: Final = b'{"umbel":'
_NONE: Final = b"-"


def text(word: bytes) -> str:
    """A word of a state or a dead letter."""
    return "" if word == _NONE else unquote_to_bytes(word).decode("utf-8", "replace")


class State:
    """What is counted beside a message; the words are those of lua/common.lua."""

    __slots__ = ("words",)

    def __init__(self, state: bytes) -> None:
        self.words = state.split(b" ")

    @property
    def n(self) -> float:
        return float(self.words[0])

    @property
    def is_plain(self) -> bool:
        return len(self.words) == 2

    @property
    def unknown_since_at(self) -> float | None:
        if self.is_plain or self.words[5] == _NONE:
            return None
        return float(self.words[5])

    @property
    def lost(self) -> Lost | None:
        if self.is_plain or self.words[7] == _NONE:
            return None
        info = b"" if self.words[9] == _NONE else unquote_to_bytes(self.words[9])
        return Lost(Loss(text(self.words[7])), text(self.words[8]), info)


def split(element: bytes) -> tuple[State | None, bytes]:
    """(state, envelope) of a list's element; a stranger's has no state."""
    if not element.startswith(_MARK):
        return None, element
    first = element.find(b'"', len(_MARK))
    last = element.find(b'"', first + 1)
    comma = element.find(b",", last)
    if not 0 < first < last < comma:
        return None, element
    return State(element[first + 1 : last]), b"{" + element[comma + 1 :]


def parts(record: bytes) -> tuple[str, State, bytes]:
    """(queue, state, envelope)."""
    queue, state, raw = record.split(b"\0", 2)
    return queue.decode(), State(state), raw


def delivery(lease: int, queue: bytes, state: bytes, raw: bytes) -> Delivery:
    """From what a turn hands out."""
    message = unpack(raw)
    if state.count(b" ") == 1:
        return Delivery(lease, queue.decode(), message)
    known = State(state)
    words = known.words
    return Delivery(
        lease,
        queue.decode(),
        message,
        redeliveries=int(words[2]),
        redelivered=words[3] == b"1",
        unknown_since_at=known.unknown_since_at,
        lost=known.lost,
    )


def id_of(message: Message | Unreadable) -> str:
    return message.id if isinstance(message, Message) else ""


def letter(queue: str, stored: bytes) -> DeadLetter:
    """From a value of a queue's hash of dead letters."""
    head, _, raw = stored.partition(b"\0")
    task_id, reason, error, died_at, redeliveries, history, _ = head.split(b" ")
    entries = (entry.split(b":", 1) for entry in history.split(b","))
    return DeadLetter(
        id=text(task_id),
        queue=queue,
        message=unpack(raw),
        reason=text(reason),
        error=text(error),
        died_at=float(died_at),
        redeliveries=int(redeliveries),
        history=tuple((float(at), text(note)) for at, note in entries),
    )


def revocation(entry: bytes) -> Revocation:
    _, _, terminate, signal, task_id = entry.split(b"\0", 4)
    return Revocation(task_id.decode(), terminate == b"1", signal.decode())
