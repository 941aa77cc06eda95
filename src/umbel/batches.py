"""Messages that are collected, to be published in one step: ``with app.batch(): …``."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextvars import ContextVar
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

from umbel.message import Posting
from umbel.retry import RetryPolicy

if TYPE_CHECKING:
    from umbel.publish import Publisher


class Batch:
    """What was sent inside one ``with app.batch()``; threads may share it."""

    def __init__(self, publisher: Publisher, outer: Batch | None) -> None:
        self.publisher = publisher
        self.outer = outer
        self._lock = threading.Lock()
        self._postings: list[Posting] | None = []

    def take(self, postings: Sequence[Posting]) -> bool:
        """Add to the batch; False once it has ended, as for a coroutine that outlives it."""
        with self._lock:
            if self._postings is None:
                return False
            self._postings += postings
            return True

    def end(self) -> list[Posting]:
        """Take no more; what there is."""
        with self._lock:
            postings, self._postings = self._postings or [], None
        return postings


current_batch: ContextVar[Batch | None] = ContextVar("umbel_batch", default=None)
"""The innermost around this code."""


def collected(publisher: Publisher, postings: Sequence[Posting]) -> bool:
    """Whether a batch of `publisher` around this code has taken them."""
    batch = current_batch.get()
    while batch is not None:
        if batch.publisher is publisher and batch.take(postings):
            return True
        batch = batch.outer
    return False


class Batching:
    """``with app.batch():`` or, where an event loop is to go on while it sends, ``async with``.

    Where the block raises, nothing of it is sent. A batch inside a batch joins it at its end.
    """

    def __init__(self, publisher: Publisher, policy: RetryPolicy | None) -> None:
        self._publisher = publisher
        self._policy = policy

    def __enter__(self) -> None:
        self._batch = Batch(self._publisher, current_batch.get())
        self._token = current_batch.set(self._batch)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        postings = self._leave()
        if kind is None and postings:
            self._publisher.send(postings, self._policy)

    async def __aenter__(self) -> None:
        self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        postings = self._leave()
        if kind is None and postings:
            await self._publisher.asend(partial(just, postings), self._policy)

    def _leave(self) -> list[Posting]:
        current_batch.reset(self._token)
        return self._batch.end()


def just(postings: Sequence[Posting]) -> Sequence[Posting]:
    """What makes these."""
    return postings
