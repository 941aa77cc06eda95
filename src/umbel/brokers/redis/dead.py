"""Dead letters: read, and deleted. They are written with the settlement that leaves them."""

from __future__ import annotations

from collections.abc import Sequence

from umbel.arguments import is_unicode
from umbel.brokers.redis import forms
from umbel.brokers.redis.routes import Routes
from umbel.brokers.redis.routing import Router
from umbel.brokers.redis.server import Server, askable, encode
from umbel.codec import pack
from umbel.message import Posting
from umbel.ports import DeadLetter, Stored


def letters(server: Server, queue: str | None, limit: int | None) -> tuple[DeadLetter, ...]:
    """Dead letters, oldest first."""
    names = server.queue_names() if queue is None else askable([queue])
    if not names or limit == 0:
        return ()
    last = -1 if limit is None else limit - 1
    numbers = server.calls(*(("ZRANGE", server.keys.side(name, "dead"), 0, last) for name in names))
    found = sorted(
        (int(n), name) for name, of_it in zip(names, numbers, strict=True) for n in of_it
    )
    return tuple(letter for letter in _read(server, found[:limit]) if letter is not None)


def of_id(server: Server, task_id: str) -> list[DeadLetter]:
    """The dead letters of an id, newest first."""
    return [letter for letter in _read(server, _places(server, task_id)) if letter is not None]


def stored(server: Server, task_id: str) -> list[Stored]:
    """The same, as they are kept."""
    places = _places(server, task_id)
    letters = zip(places, _kept(server, places), strict=True)
    found = [(forms.letter(queue, raw), raw) for (_, queue), raw in letters if raw is not None]
    return [Stored(letter, raw, letter.message) for letter, raw in found]


def _places(server: Server, task_id: str) -> list[tuple[int, str]]:
    """(number, queue) of the dead letters of an id, newest first."""
    if not is_unicode(task_id):
        return []
    lower, upper = task_id.encode() + b"\0", task_id.encode() + b"\1"
    found = server.call("ZRANGEBYLEX", server.keys.own("dead-ids"), b"[" + lower, b"(" + upper)
    places = []
    for member in found:
        n, _, queue = member[len(lower) :].partition(b"\0")
        places.append((int(n), queue.decode()))
    places.sort(reverse=True)
    return places


def _read(server: Server, places: Sequence[tuple[int, str]]) -> list[DeadLetter | None]:
    return [
        None if kept is None else forms.letter(queue, kept)
        for (_, queue), kept in zip(places, _kept(server, places), strict=True)
    ]


def _kept(server: Server, places: Sequence[tuple[int, str]]) -> list[bytes | None]:
    if not places:
        return []
    return server.calls(*(("HGET", server.keys.side(queue, "letters"), n) for n, queue in places))


def requeue(server: Server, router: Router, task_id: str, posting: Posting) -> bool:
    """See `Inspector.dead_requeue`."""
    if not task_id or not of_id(server, task_id):
        return False
    raw, now = pack(posting.message), server.clock.wall()

    def attempt(known: Routes) -> int | None:
        arguments = router.arguments(known, [(posting, raw)], now)
        script = server.scripts.dead_requeue
        reply: int = server.run(script, task_id, known.version, *arguments)
        return None if reply == 2 else reply

    return router.routed(attempt) == 1


def delete(server: Server, task_ids: Sequence[str] | None, queue: str | None) -> int:
    """Delete dead letters by id, by queue, by both, or all; how many."""
    ids = None if task_ids is None else askable(task_ids)
    if queue is not None and not is_unicode(queue):
        return 0
    deleted: int = server.run(server.scripts.dead_delete, encode((ids, queue)))
    return deleted
