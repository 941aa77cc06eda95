"""Several results: whether they have ended, and waiting for all of them, or for the next.

::

    for result in as_completed(results): …          # also ``async for``
    values = ResultSet(results).get(timeout=60)     # in their order; also ``await …aget()``
"""

from __future__ import annotations

import builtins
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Self, TypeVar

from umbel.asyncresult import AsyncResult
from umbel.current import get_current_app
from umbel.exceptions import ImproperlyConfigured, StoreUnavailable, TimeoutError
from umbel.joining import Callback, OnInterval, OnMessage, Wait, called, refuse_to_wait
from umbel.message import Result
from umbel.polling import FEW, FIRST, GROWTH, LONGEST_OF_MANY
from umbel.ports import ResultStore
from umbel.resultstate import read_all, store_of
from umbel.states import FAILURE, READY_STATES, SUCCESS
from umbel.stored import as_dict, state_in
from umbel.waiting import Waiter, Want, Watch

if TYPE_CHECKING:
    import asyncio

    from umbel.app import Umbel

R_co = TypeVar("R_co", covariant=True)

_Ended = tuple[int, Result | None, BaseException | None]
"""Which has ended, and what is stored of it, or why that can't be read."""


class as_completed(Generic[R_co]):
    """The results one by one as their tasks end, for ``for`` and for ``async for``.

    Each has its final state, so that its `state`, `result` and `get` ask nobody any more. A result
    that isn't stored (`ignored`) comes first. Raises `TimeoutError` where not all have ended
    `timeout` seconds after the loop began.
    """

    def __init__(
        self,
        results: Iterable[AsyncResult[R_co]],
        timeout: float | None = None,
        *,
        interval: float = 0.5,
        on_interval: OnInterval | None = None,
    ) -> None:
        self._results = list(results)
        self._timeout = timeout
        self._interval = interval
        self._on_interval = on_interval

    def __iter__(self) -> Iterator[AsyncResult[R_co]]:
        wait, pause, left = self._wait(), FIRST, self._results
        while left:
            try:
                with wait.answers():
                    read_all([each for each in left if not each.ignored])
            except StoreUnavailable as error:
                if wait.is_over():
                    raise self._overdue(len(left)) from error
                raise
            ended = [each for each in left if each._is_over()]
            left = [each for each in left if not each._is_over()]
            yield from ended
            pause = FIRST if ended else min(pause * GROWTH, LONGEST_OF_MANY)
            if left:
                self._sleep(wait, left, pause)

    async def __aiter__(self) -> AsyncIterator[AsyncResult[R_co]]:
        import asyncio

        wait, loop = self._wait(), asyncio.get_running_loop()
        ended: asyncio.Queue[_Ended] = asyncio.Queue()
        watches: dict[Waiter, list[Watch]] = {}
        for number, each in enumerate(self._results):
            deliver = _Putting(ended, number)
            if each._is_over():
                deliver(None, None)
            else:
                watch = Watch(each.id, Want.READY, None, deliver, loop)
                watches.setdefault(each._waiter(), []).append(watch)
        for waiter, some in watches.items():
            waiter.watch(some)
        try:
            for count in range(len(self._results)):
                yield await self._next(wait, ended, len(self._results) - count)
        finally:
            for some in watches.values():
                for watch in some:
                    watch.over = True

    async def _next(self, wait: Wait, ended: asyncio.Queue[_Ended], left: int) -> AsyncResult[R_co]:
        import asyncio

        while ended.empty():
            seconds = wait.next_pause()
            if seconds is None:
                raise self._overdue(left)
            with contextlib.suppress(builtins.TimeoutError):
                async with asyncio.timeout(seconds):
                    ended.put_nowait(await ended.get())
            if wait.is_interval() and wait.on_interval is not None:
                await called(wait.on_interval)
        number, record, error = ended.get_nowait()
        if error is not None:
            raise error
        result = self._results[number]
        result._take(record)
        return result

    def _wait(self) -> Wait:
        return Wait(self._timeout, self._interval, self._on_interval)

    def _sleep(self, wait: Wait, left: Sequence[AsyncResult[Any]], pause: float) -> None:
        seconds = wait.next_pause()
        if seconds is None:
            raise self._overdue(len(left))
        few = left[:FEW]
        store = few[0].backend
        same = [each.id for each in few if each.backend is store]
        if len(same) < len(left):
            seconds = min(seconds, pause)
        store.wait(same, seconds)
        if wait.is_interval() and wait.on_interval is not None:
            wait.on_interval()

    def _overdue(self, left: int) -> TimeoutError:
        return TimeoutError(
            f"{left} of {len(self._results)} tasks have no result after {self._timeout} s. "
            "`umbel why ID` tells where one is"
        )


class _Putting:
    """Puts what a watch hears of one result into the queue of all."""

    def __init__(self, queue: asyncio.Queue[_Ended], number: int) -> None:
        self._queue = queue
        self._number = number

    def __call__(self, record: Result | None, error: BaseException | None) -> None:
        self._queue.put_nowait((self._number, record, error))


class ResultSet(Generic[R_co]):
    """Several results, in their order; each is there once."""

    def __init__(self, results: Iterable[AsyncResult[R_co]] = (), app: Umbel | None = None) -> None:
        self.results: list[AsyncResult[R_co]] = []
        self._app = app
        self.update(results)

    @property
    def app(self) -> Umbel:
        """The one that it was given, else that of the first result, else the current one."""
        if self._app is not None:
            return self._app
        return self.results[0].app if self.results else get_current_app()

    @property
    def backend(self) -> ResultStore:
        """The store of the first result, else the app's."""
        if self.results:
            return self.results[0].backend
        return store_of(self.app)

    @property
    def supports_native_join(self) -> bool:
        """Always: all are read in one trip, whatever the store."""
        return True

    # What is in it

    def add(self, result: AsyncResult[R_co]) -> None:
        """Put it at the end, unless it is there."""
        if result not in self.results:
            self.results.append(result)

    def remove(self, result: AsyncResult[R_co] | str) -> None:
        """Take a result, or the one of this id, out. Raises `KeyError` where it isn't there."""
        for place, each in enumerate(self.results):
            if each == result:
                del self.results[place]
                return
        raise KeyError(result)

    def discard(self, result: AsyncResult[R_co] | str) -> None:
        """Take it out, where it is there."""
        if result in self.results:
            self.remove(result)

    def update(self, results: Iterable[AsyncResult[R_co]]) -> None:
        """Add those that aren't there."""
        there = {each.id for each in self.results}
        for each in results:
            if each.id not in there:
                there.add(each.id)
                self.results.append(each)

    def clear(self) -> None:
        self.results.clear()

    def __iter__(self) -> Iterator[AsyncResult[R_co]]:
        return iter(self.results)

    def __aiter__(self) -> AsyncIterator[AsyncResult[R_co]]:
        """The results as they are ready; see `as_completed`."""
        return as_completed(self.results).__aiter__()

    def __getitem__(self, place: int) -> AsyncResult[R_co]:
        return self.results[place]

    def __len__(self) -> int:
        return len(self.results)

    def __contains__(self, result: object) -> bool:
        return result in self.results

    def __eq__(self, other: object) -> bool:
        return other.results == self.results if isinstance(other, ResultSet) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # it can be changed

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: [{', '.join(each.id for each in self.results)}]>"

    # How they are; each asks the store once for all of them

    def successful(self) -> bool:
        """Whether all have succeeded."""
        return all(state == SUCCESS for state in self._states())

    def failed(self) -> bool:
        """Whether any has failed."""
        return any(state == FAILURE for state in self._states())

    def waiting(self) -> bool:
        """Whether any hasn't ended."""
        return any(state not in READY_STATES for state in self._states())

    def ready(self) -> bool:
        """Whether all have ended."""
        return not self.waiting()

    def completed_count(self) -> int:
        """How many have succeeded."""
        return sum(state == SUCCESS for state in self._states())

    def maybe_throw(self, callback: Callback | None = None, propagate: bool = True) -> None:
        """`AsyncResult.maybe_throw` of each."""
        read_all(self.results)
        for each in self.results:
            each.maybe_throw(propagate, callback)

    maybe_reraise = maybe_throw

    # Waiting

    def get(
        self,
        timeout: float | None = None,
        propagate: bool = True,
        interval: float = 0.5,
        callback: Callback | None = None,
        no_ack: bool = True,
        on_message: OnMessage | None = None,
        disable_sync_subtasks: bool = True,
        on_interval: OnInterval | None = None,
    ) -> list[R_co]:
        """The values in the order of the results, once all are there; at the latest after
        `timeout` seconds.

        Raises `TimeoutError`, and with `propagate` what a task raised, as soon as one has. With a
        `callback` it is called with id and value of each as it ends, and the list is empty.
        `on_message` is called with each final record, `on_interval` every `interval` seconds.
        Raises `RuntimeError` inside a task; see `AsyncResult.get`.
        """
        if disable_sync_subtasks:
            self._refuse_to_wait()
        ended = as_completed(self.results, timeout, interval=interval, on_interval=on_interval)
        for each in ended:
            if on_message is not None and (meta := each._known()) is not None:
                on_message(as_dict(meta))
            value = _value(each, propagate)
            if callback is not None:
                callback(each.id, value)
        return [] if callback is not None else [_value(each, False) for each in self.results]

    join = get

    def join_native(
        self,
        timeout: float | None = None,
        propagate: bool = True,
        interval: float = 0.5,
        callback: Callback | None = None,
        no_ack: bool = True,
        on_message: OnMessage | None = None,
        on_interval: OnInterval | None = None,
        disable_sync_subtasks: bool = True,
    ) -> list[R_co]:
        """`get`, under the name and with the order of parameters that Celery has for it."""
        return self.get(
            timeout,
            propagate,
            interval,
            callback,
            no_ack,
            on_message,
            disable_sync_subtasks,
            on_interval,
        )

    async def aget(
        self,
        timeout: float | None = None,  # noqa: ASYNC109  # as `get`
        propagate: bool = True,
        interval: float = 0.5,
        callback: Callback | None = None,
        no_ack: bool = True,
        on_message: OnMessage | None = None,
        disable_sync_subtasks: bool = True,
        on_interval: OnInterval | None = None,
    ) -> list[R_co]:
        """`get` for coroutines; ``await results`` is the same."""
        if disable_sync_subtasks:
            self._refuse_to_wait()
        ended = as_completed(self.results, timeout, interval=interval, on_interval=on_interval)
        async for each in ended:
            if on_message is not None and (meta := each._known()) is not None:
                await called(on_message, as_dict(meta))
            value = _value(each, propagate)
            if callback is not None:
                await called(callback, each.id, value)
        return [] if callback is not None else [_value(each, False) for each in self.results]

    def __await__(self) -> Generator[Any, None, list[R_co]]:
        return self.aget().__await__()

    def iter_native(
        self,
        timeout: float | None = None,
        interval: float = 0.5,
        no_ack: bool = True,
        on_message: OnMessage | None = None,
        on_interval: OnInterval | None = None,
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """(id, record) of each as it ends."""
        ended = as_completed(self.results, timeout, interval=interval, on_interval=on_interval)
        for each in ended:
            if (meta := each._known()) is not None:
                if on_message is not None:
                    on_message(as_dict(meta))
                yield each.id, as_dict(meta)

    def then(
        self,
        callback: Callable[[Self], object],
        on_error: Callable[[BaseException], object] | None = None,
        weak: bool = False,
    ) -> None:
        """Have `callback` called with this set once all have ended; see `AsyncResult.then`."""
        if not self.results:
            callback(self)
            return
        missing = set(range(len(self.results)))
        lock = threading.Lock()

        def one_ended(number: int, _: AsyncResult[R_co]) -> None:
            with lock:
                missing.discard(number)
                last = not missing
            if last:
                callback(self)

        for number, each in enumerate(self.results):
            each.then(partial(one_ended, number), on_error)

    # Changing what is stored

    def forget(self) -> None:
        """Delete all that is stored of them."""
        for each in self.results:
            each.forget()

    def revoke(
        self,
        connection: object = None,
        terminate: bool = False,
        signal: str | int | None = None,
        wait: bool = False,
        timeout: float | None = None,
    ) -> None:
        """`AsyncResult.revoke` of all of them, in one step."""
        if self.results:
            ids = [each.id for each in self.results]
            self.app.revoke(ids, terminate=terminate, signal=signal)

    def _states(self) -> list[str]:
        return [state_in(meta) for meta in read_all(self.results)]

    def _refuse_to_wait(self) -> None:
        for each in self.results:
            if not each._is_over():
                refuse_to_wait(each.id)


class GroupResult(ResultSet[Any]):
    """The results of a group; it comes with the release 'Workflows'.

    Until then it is there to be imported and asked for: nothing is an instance of it. Making or
    restoring one raises `ImproperlyConfigured`.
    """

    def __init__(self, *_: Any, **__: Any) -> None:
        raise _no_groups()

    @classmethod
    def restore(cls, *_: Any, **__: Any) -> NoReturn:
        """The results of a group that was saved."""
        raise _no_groups()


def _no_groups() -> ImproperlyConfigured:
    return ImproperlyConfigured(
        "GroupResult comes with the release 'Workflows'. Until then, send tasks one by one, and "
        "wait for them with umbel.result.ResultSet"
    )


def _value(result: AsyncResult[Any], propagate: bool) -> Any:
    """That of one that has ended. Raises with `propagate` what it has ended with."""
    return None if result.ignored else result.maybe_throw(propagate)
