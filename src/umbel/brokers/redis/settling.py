"""Settlements as lua/settling.lua wants them: what is said, and the arguments that it names."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from umbel.brokers.redis.routes import Routes
from umbel.brokers.redis.routing import Router
from umbel.codec import pack
from umbel.exceptions import Unroutable
from umbel.message import Result, Settlement

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class ResultsBeside:
    """Where the result store of the same server keeps results, so that a settlement can store them:
    its database, and the beginning of the keys of task metas."""

    database: int
    prefix: str = "celery-task-meta-"


class Settling:
    """Prepares the settlements of one call. `blobs` are the script's arguments from the second on,
    which the settlements name by number."""

    __slots__ = ("_known", "_now", "_results", "_router", "blobs")

    def __init__(
        self, router: Router, results: ResultsBeside, known: Routes | None, now: float
    ) -> None:
        """`known`: the routes, None where there are no follow-ups."""
        self._router = router
        self._results = results
        self._known = known
        self._now = now
        self.blobs: list[bytes] = []

    @property
    def version(self) -> str | None:
        """Of the routes that the follow-ups were routed by."""
        return None if self._known is None else self._known.version

    def all(self, settlements: Sequence[Settlement]) -> list[object]:
        return [self._one(each) for each in settlements]

    def _one(self, each: Settlement) -> object:
        """Where a follow-up has no queue, with the sentence."""
        postings: list[tuple[str, int, str, int]] = []
        refusal = None
        if each.follow_ups and self._known is not None:
            try:
                for posting in each.follow_ups:
                    raw = pack(posting.message)
                    led = self._router.lead(self._known, posting, raw, self._now)
                    for queue, step, due, _ in led:
                        postings.append((queue, step, due, self._add(raw)))
            except Unroutable as error:
                refusal = str(error)
        results = [self._result(result) for result in each.results]
        if not (postings or refusal or results or each.how > 1 or each.dead is not None):
            return each.lease
        return (
            each.lease,
            int(each.how),
            postings or None,
            None if each.dead is None else (each.dead.reason, each.dead.error),
            results or None,
            each.note,
            repr(self._now + each.delay) if each.delay > 0 else None,
            each.unknown,
            each.redelivered,
            refusal,
        )

    def _result(self, result: Result) -> tuple[object, ...]:
        left = 0
        if result.expires_at is not None:
            # What is over already goes at once, but is told.
            left = max(1, math.ceil((result.expires_at - self._now) * 1000))
        key = self._results.prefix + result.task_id
        return self._results.database, key, self._add(result.meta), left

    def _add(self, blob: bytes) -> int:
        """The number that the script knows it by: the first argument is the request."""
        self.blobs.append(blob)
        return len(self.blobs) + 1


def perhaps_routed(
    router: Router,
    settlements: Sequence[Settlement],
    attempt: Callable[[Routes | None], Found | None],
) -> Found:
    """`Router.routed`; without follow-ups no route matters."""
    if any(each.follow_ups for each in settlements):
        return router.routed(attempt)
    reply = attempt(None)
    assert reply is not None
    return reply
