"""The log of revocations, and putting revoked messages first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from umbel.brokers.redis import forms, looking
from umbel.brokers.redis.server import Server, askable
from umbel.ports import Revocation

KEPT: Final = 3 * 3600.0
"""Seconds that an entry is kept at least."""
HEARD_KEPT: Final = 3600.0
"""Seconds for which a command that was heard isn't carried out again."""
LOOK_FOR_OLD: Final = 600.0
"""Seconds between two looks for the messages of old entries."""


def version(server: Server) -> int:
    """The version of the log."""
    return int(server.call("GET", server.keys.own("revocations:version")) or 0)


def revoke(server: Server, revocations: Sequence[Revocation], once: str) -> frozenset[str]:
    """See `Coordinator.revoke`."""
    if not revocations:
        return frozenset()
    arguments: list[str | int] = [once, int(HEARD_KEPT * 1000)]
    for each in revocations:
        arguments += [int(each.terminate), each.signal, each.task_id]
    if not server.run(server.scripts.revoke, server.now, *arguments):
        return frozenset()
    return _expedite(server, frozenset(each.task_id for each in revocations))


def _expedite(server: Server, ids: frozenset[str]) -> frozenset[str]:
    """Put what waits or is due later first in its queue; the ids that were found."""
    seen = [
        each
        for queue in server.queue_names()
        for each in looking.waiting(server.link, server.keys, queue, ids)
    ]
    if not seen:
        return frozenset()
    arguments: list[str | int | bytes] = []
    for each in seen:
        arguments += [each.queue, "" if each.step is None else each.step, each.raw]
    moved = server.run(server.scripts.expedite, *arguments)
    return frozenset(each.task_id for each, is_moved in zip(seen, moved, strict=True) if is_moved)


def since(server: Server, known: int) -> tuple[int, tuple[Revocation, ...]]:
    """See `Coordinator.revoked`."""
    _, _, _, (number, entries) = server.calls(
        ("MULTI",),
        ("GET", server.keys.own("revocations:version")),
        ("ZRANGEBYSCORE", server.keys.own("revocations"), f"({known}", "+inf"),
        ("EXEC",),
    )
    return int(number or 0), tuple(map(forms.revocation, entries))


def unrevoke(server: Server, task_ids: Sequence[str]) -> None:
    """See `Coordinator.unrevoke`."""
    if ids := askable(task_ids):
        server.run(server.scripts.unrevoke, *ids)


def forget(server: Server, old: Sequence[bytes]) -> None:
    """Drop old entries of which no message can be met any more."""
    ids = frozenset(forms.revocation(entry).task_id for entry in old)
    names = server.queue_names()
    present = server.looked(lambda: looking.present(server.link, server.keys, names, ids))
    gone = [entry for entry in old if forms.revocation(entry).task_id not in present]
    if gone:
        server.call("ZREM", server.keys.own("revocations"), *gone)
