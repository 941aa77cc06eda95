"""What the command line and a dashboard ask: counts, the next messages, where a message is."""

from __future__ import annotations

from collections.abc import Sequence

from umbel.arguments import is_unicode
from umbel.brokers.redis import dead, forms, looking
from umbel.brokers.redis.server import Server, askable
from umbel.codec import unpack
from umbel.message import Message, Unreadable
from umbel.ports import QueueStats, RunRecord, Stored


def queues(server: Server) -> tuple[QueueStats, ...]:
    """See `Inspector.queues`."""
    rows = server.run(server.scripts.stats, server.now)
    stats = [QueueStats(row[0].decode(), *row[1:]) for row in rows]
    return tuple(sorted(stats, key=lambda each: each.name))


def runs(server: Server) -> tuple[RunRecord, ...]:
    """See `Inspector.runs`."""
    keys = server.keys
    alive = [run.decode() for run in server.call("ZRANGE", keys.own("runs"), 0, -1)]
    if not alive:
        return ()
    asked = [("HMGET", keys.own(f"run:{run}"), "info", "seen") for run in alive]
    return tuple(
        RunRecord(run, info, float(seen))
        for run, (info, seen) in zip(alive, server.calls(*asked), strict=True)
        if seen is not None
    )


def peek(server: Server, queue: str, limit: int) -> tuple[Message | Unreadable, ...]:
    """See `Inspector.peek`."""
    if limit <= 0 or not is_unicode(queue):
        return ()
    server.promote()
    keys = server.keys
    asked = [("LRANGE", keys.list(queue, step), -limit, -1) for step in keys.serve]
    elements = [element for of_step in server.calls(*asked) for element in of_step[::-1]]
    return tuple(unpack(forms.split(element)[1]) for element in elements[:limit])


def stored(server: Server, task_id: str) -> tuple[Stored, ...]:
    """See `Inspector.stored`."""
    server.promote()
    names = server.queue_names()
    living = server.looked(lambda: looking.stored(server.link, server.keys, names, task_id))
    return (*living, *dead.stored(server, task_id))


def purge(server: Server, queues: Sequence[str]) -> int:
    """See `Inspector.purge`."""
    names = askable(queues)
    purged: int = server.run(server.scripts.purge, *names) if names else 0
    return purged
