"""Who waits for results on an event loop: one thread asks the store for all of them.

Ten thousand coroutines that wait cost no thread each. The thread waits in the store, as `get` does,
where few ids are asked for; of many it reads all at intervals of which it works a third at most.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from umbel.background import IDLE, Answer, Background, answer, own, settle
from umbel.exceptions import StoreUnavailable
from umbel.message import Result
from umbel.polling import FEW, FIRST, GROWTH, LONGEST_OF_MANY
from umbel.ports import ResultStore
from umbel.states import READY_STATES

if TYPE_CHECKING:
    import asyncio

_AT_ONCE: Final = 500
_LONGEST_WAIT: Final = 60.0
_LOOK_AGAIN: Final = 0.5
"""Seconds after which a change is seen that fell between a look and the wait after it."""

Record = Result | None
Deliver = Callable[[Record, BaseException | None], object]


class Want(Enum):
    """When a watch is over."""

    NOW = auto()
    """At the next look, whatever is stored."""
    CHANGE = auto()
    """Once something else is stored than it had seen."""
    READY = auto()
    """Once the task has ended."""


Wanted = tuple[str, Want, bytes | None]
"""An id, what is wanted, and the record that is known already."""


class Watch:
    """One wish to hear of one id. `deliver` gets the record, or the error of the store, once."""

    __slots__ = ("deliver", "loop", "over", "seen", "task_id", "want")

    def __init__(
        self,
        task_id: str,
        want: Want,
        seen: bytes | None,
        deliver: Deliver,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.task_id = task_id
        self.want = want
        self.seen = seen
        self.deliver = deliver
        self.loop = loop
        """Where `deliver` is called; None: by the thread itself."""
        self.over = False
        """Whoever waited has left, or has been told."""

    def is_met(self, record: Record) -> bool:
        if self.want is Want.NOW:
            return True
        if record is None:
            return False
        return record.state in READY_STATES or (
            self.want is Want.CHANGE and record.meta != self.seen
        )

    def met(self, record: Record, error: BaseException | None = None) -> Answer:
        self.over = True
        return Answer(self.loop, partial(self.deliver, record, error))


class Waiter(Background):
    """The waiting thread of one app in this process; `store` gives the store as it is now."""

    _blocked_in: ResultStore | None
    """Where the thread waits, rather than looking itself."""

    def __init__(self, store: Callable[[], ResultStore]) -> None:
        self._store = store
        super().__init__("umbel-results")

    def watch(self, watches: Sequence[Watch]) -> None:
        """Have each of them told what it wants to know."""
        with self._changed:
            self._wake()
            self._new.extend(watches)
            blocked = self._blocked_in
            self._blocked_in = None
        if blocked is not None:
            blocked.interrupt()

    async def wait(self, wants: Sequence[Wanted]) -> Record:
        """The record of the first that there is what is wanted of. Raises what reading raises."""
        import asyncio  # takes 30 ms, which only coroutines need to pay

        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        deliver = partial(settle, future)
        watches = [Watch(*wanted, deliver, loop) for wanted in wants]
        self.watch(watches)
        try:
            record: Record = await future
        finally:
            for each in watches:
                each.over = True
        return record

    def _renew(self) -> None:
        super()._renew()
        self._new: list[Watch] = []
        self._watches: dict[str, list[Watch]] = {}
        self._blocked_in = None
        self._pause = FIRST
        self._next_look = 0.0

    def _interrupt(self) -> None:
        with self._changed:
            blocked = self._blocked_in
            self._blocked_in = None
        if blocked is not None:
            blocked.interrupt()

    def _work(self) -> bool:
        with self._changed:
            if not (self._closing or self._new or self._watches):
                self._changed.wait(IDLE)
            if self._closing or not (self._new or self._watches):
                return self._end()
            new, self._new = self._new, []
        for watch in new:
            self._watches.setdefault(watch.task_id, []).append(watch)
        if len(self._watches) <= FEW or time.monotonic() >= self._next_look:
            self._look_at_all()
        else:
            answer(self._met({watch.task_id for watch in new}))
        self._sleep()
        return True

    def _look_at_all(self) -> None:
        self._drop_those_over()
        started = time.monotonic()
        answers = list(self._met(self._watches))
        ended = time.monotonic()
        answer(answers)
        self._drop_those_over()
        self._pause = FIRST if answers else min(self._pause * GROWTH, LONGEST_OF_MANY)
        self._next_look = ended + max(self._pause, 2 * (ended - started))

    def _met(self, task_ids: Iterable[str]) -> Iterator[Answer]:
        """The answers of those watches of these ids that are met by what the store has now."""
        ids = list(task_ids)
        for start in range(0, len(ids), _AT_ONCE):
            some = ids[start : start + _AT_ONCE]
            error: Exception | None = None
            records: Sequence[Record] = [None] * len(some)
            try:
                records = self._store().get(some)
            # Whatever a driver raises is for those who wait.
            except Exception as raised:
                error = raised
            for task_id, record in zip(some, records, strict=True):
                for watch in self._watches[task_id]:
                    if not watch.over and (error is not None or watch.is_met(record)):
                        yield watch.met(record, None if error is None else own(error))

    def _drop_those_over(self) -> None:
        for task_id, watches in tuple(self._watches.items()):
            left = [watch for watch in watches if not watch.over]
            if not left:
                del self._watches[task_id]
            elif len(left) < len(watches):
                self._watches[task_id] = left

    def _sleep(self) -> None:
        """Until there may be something to look at."""
        ids = tuple(self._watches)
        with self._changed:
            if self._new or self._closing or not ids:
                return
            if len(ids) > FEW:
                self._changed.wait(max(0.0, self._next_look - time.monotonic()))
                return
        changes = any(w.want is Want.CHANGE for watches in self._watches.values() for w in watches)
        try:
            store = self._store()
            with self._changed:
                if self._new or self._closing:
                    return
                self._blocked_in = store
            store.wait(ids, _LOOK_AGAIN if changes else _LONGEST_WAIT)
        # The next look raises it again, where there is somebody to tell.
        except Exception:
            with self._changed:
                self._changed.wait(FIRST)
        finally:
            with self._changed:
                self._blocked_in = None

    def _give_up(self) -> None:
        with self._changed:
            new, self._new = self._new, []
            kept, self._watches = self._watches, {}
        left = [*new, *(watch for watches in kept.values() for watch in watches)]
        error = "the app was closed while a result was waited for"
        answer([each.met(None, StoreUnavailable(error)) for each in left if not each.over])


class Waiters:
    """The waiters of one app: one for its own store, one for each other that is named."""

    def __init__(self, store: Callable[[], ResultStore]) -> None:
        self._own = Waiter(store)
        self._others: weakref.WeakKeyDictionary[ResultStore, Waiter]
        self._others = weakref.WeakKeyDictionary()

    def of(self, store: ResultStore | None) -> Waiter:
        """That of `store`; None is the app's own."""
        if store is None:
            return self._own
        made = Waiter(partial(_existing, weakref.ref(store)))
        return self._others.get(store) or self._others.setdefault(store, made)

    def close(self) -> None:
        for each in (self._own, *self._others.values()):
            each.close()


def _existing(store: weakref.ref[ResultStore]) -> ResultStore:
    found = store()
    if found is None:
        raise StoreUnavailable("the result store is gone that a result was waited for in")
    return found
