"""Messages by their id, and the next ones of a queue: read in pieces, so that nobody waits long.

There is no index: it would cost each publish and each turn, and Celery's messages would not be in
it. A list is read from the end that is published to, towards the one that is taken from, so that
what stays in it is seen however much comes and goes meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from umbel.brokers.redis import forms
from umbel.brokers.redis.keys import Keys
from umbel.brokers.redis.link import Link
from umbel.codec import unpack
from umbel.ports import Delayed, Leased, Location, Ready, SetAside, Stored

CHUNK: Final = 500


@dataclass(frozen=True, slots=True)
class Seen:
    """A message that waits or is due later: where, and as what."""

    queue: str
    step: int | None
    """Of the list that it is in; None: it is due later."""
    raw: bytes
    """The element or the record."""
    task_id: str
    n: float
    after: int = 0
    """How many are behind the last one that is before it in the list: its distance from the end
    that is taken from."""
    due_at: float = 0.0
    unknown_since_at: float | None = None


def waiting(link: Link, keys: Keys, queue: str, ids: frozenset[str]) -> Iterator[Seen]:
    """The messages of these ids in the lists of a queue, and among what is due later."""
    for step in keys.serve:
        yield from _in_list(link, keys, queue, step, ids)
    yield from _due(link, keys, queue, ids)


def _in_list(link: Link, keys: Keys, queue: str, step: int, ids: frozenset[str]) -> Iterator[Seen]:
    name, first = keys.list(queue, step), 0
    needles = _needles(ids)
    while True:
        size, elements = link.calls([("LLEN", name), ("LRANGE", name, first, first + CHUNK - 1)])
        for index, element in enumerate(elements, first):
            if not _may_be(element, needles):
                continue
            state, raw = forms.split(element)
            task_id = forms.id_of(unpack(raw))
            if task_id in ids:
                n = 0.0 if state is None else state.n
                yield Seen(queue, step, element, task_id, n, size - 1 - index)
        if len(elements) < CHUNK:
            return
        first += CHUNK


def _due(link: Link, keys: Keys, queue: str, ids: frozenset[str]) -> Iterator[Seen]:
    needles = _needles(ids)
    for record, score in _scan(link, "ZSCAN", keys.side(queue, "due")):
        if not _may_be(record, needles):
            continue
        _, state, raw = forms.parts(record)
        task_id = forms.id_of(unpack(raw))
        if task_id in ids:
            yield Seen(
                queue, None, record, task_id, state.n, 0, float(score), state.unknown_since_at
            )


def _scan(link: Link, command: str, name: str) -> Iterator[tuple[bytes, bytes]]:
    """All pairs of a hash or a sorted set, each once."""
    cursor, seen = b"0", set()
    while True:
        cursor, flat = link.call(command, name, cursor, "COUNT", CHUNK)
        for first, second in zip(flat[::2], flat[1::2], strict=True):
            if first not in seen:
                seen.add(first)
                yield first, second
        if cursor == b"0":
            return


def _needles(ids: Iterable[str]) -> Sequence[bytes]:
    """What an envelope of one of these ids has in it, in whatever way it was written."""
    return [msgspec.json.encode(task_id)[1:-1] for task_id in ids if task_id.isascii()]


def _may_be(blob: bytes, needles: Sequence[bytes]) -> bool:
    # An id with other letters may be written in several ways: look at each.
    return not needles or any(needle in blob for needle in needles)


def owners(link: Link, keys: Keys) -> list[str]:
    """The owners of all living runs."""
    runs = [run.decode() for run in link.call("ZRANGE", keys.own("runs"), 0, -1)]
    if not runs:
        return []
    replies = link.calls([("SMEMBERS", keys.own(f"run:{run}:owners")) for run in runs])
    return sorted(owner.decode() for found in replies for owner in found)


def leased(
    link: Link, keys: Keys, ids: frozenset[str]
) -> Iterator[tuple[str, float, Leased, bytes]]:
    """(task id, number, place, record) of what is leased under these ids."""
    needles = _needles(ids)
    for owner in owners(link, keys):
        begun, flat = link.calls(
            [
                ("HGET", keys.own(f"owner:{owner}"), "begin"),
                ("HGETALL", keys.own(f"leases:{owner}")),
            ]
        )
        for lease, record in zip(map(int, flat[::2]), flat[1::2], strict=True):
            if not _may_be(record, needles):
                continue
            queue, state, raw = forms.parts(record)
            task_id = forms.id_of(unpack(raw))
            if task_id in ids:
                place = Leased(queue, owner, lease, lease <= int(begun or 0))
                yield task_id, state.n, place, record


def lost(
    link: Link, keys: Keys, queue: str, ids: frozenset[str]
) -> Iterator[tuple[str, float, SetAside, bytes]]:
    """(task id, number, place, record) of what awaits burial under these ids."""
    for record in link.call("ZRANGE", keys.side(queue, "lost"), 0, -1):
        _, state, raw = forms.parts(record)
        task_id = forms.id_of(unpack(raw))
        known = state.lost
        if task_id in ids and known is not None:
            yield task_id, state.n, SetAside(queue, str(known.loss), known.detail), record


def stored(link: Link, keys: Keys, queues: Sequence[str], task_id: str) -> list[Stored]:
    """The messages of this id that aren't dead, in the order of their arrival."""
    ids = frozenset([task_id])
    found: list[tuple[float, Location, bytes, bytes]] = []
    for queue in queues:
        sizes = _sizes(link, keys, queue)
        for seen in waiting(link, keys, queue, ids):
            place: Location
            if seen.step is None:
                place = Delayed(queue, seen.due_at, seen.unknown_since_at)
                envelope = forms.parts(seen.raw)[2]
            else:
                before = keys.serve[: keys.serve.index(seen.step)]
                place = Ready(queue, seen.after + sum(sizes[step] for step in before))
                envelope = forms.split(seen.raw)[1]
            found.append((seen.n, place, seen.raw, envelope))
        for _, n, aside, record in lost(link, keys, queue, ids):
            found.append((n, aside, record, forms.parts(record)[2]))
    for _, n, held, record in leased(link, keys, ids):
        found.append((n, held, record, forms.parts(record)[2]))
    found.sort(key=lambda each: each[0])
    return [Stored(place, raw, unpack(envelope)) for _, place, raw, envelope in found]


def present(link: Link, keys: Keys, queues: Sequence[str], ids: frozenset[str]) -> frozenset[str]:
    """Which of these ids there is a message of that isn't dead."""
    found = {task_id for task_id, *_ in leased(link, keys, ids)}
    for queue in queues:
        found.update(seen.task_id for seen in waiting(link, keys, queue, ids))
        found.update(task_id for task_id, *_ in lost(link, keys, queue, ids))
    return frozenset(found)


def _sizes(link: Link, keys: Keys, queue: str) -> dict[int, int]:
    replies = link.calls([("LLEN", keys.list(queue, step)) for step in keys.serve])
    return dict(zip(keys.serve, replies, strict=True))
