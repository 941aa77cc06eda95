"""The result of one task, by its id: its state, its value, and waiting for it.

What waits has a twin for coroutines, whose name begins with ``a``; ``await result`` is `aget`.
"""

from __future__ import annotations

import builtins
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, NoReturn, Self, TypeVar

from umbel.absent import without
from umbel.exceptions import IncompleteStream, StoreUnavailable, TimeoutError
from umbel.joining import Callback, OnInterval, OnMessage, Wait, called, refuse_to_wait
from umbel.message import Result
from umbel.ports import ResultStore
from umbel.resultstate import NOTHING_READ, ResultState, read_all
from umbel.states import READY_STATES
from umbel.stored import Meta, as_dict, raise_failure, state_in, value_in
from umbel.waiting import Want, Watch

if TYPE_CHECKING:
    from umbel.app import Umbel

R_co = TypeVar("R_co", covariant=True)

_log: Final = logging.getLogger("umbel")

_GRAPH: Final = (
    "comes with the release 'Workflows'. Until then iterdeps(intermediate=True) gives the pairs of "
    "a result and its children"
)
_ABSENT: Final = {
    "graph": _GRAPH,
    "build_graph": _GRAPH,
    "revoke_by_stamped_headers": "comes with the release 'Events and remote control'. Until then "
    "revoke() takes tasks by their ids",
}


class Change(NamedTuple):
    """A state that a task has come to, and what is stored with it."""

    state: str
    info: Any


@without("result", _ABSENT)
class AsyncResult(ResultState, Generic[R_co]):
    """What has become of one message. Equal to another of the same id, and to the id as text.

    A state of ``PENDING`` also means that nothing is known of the id; `Umbel.why` tells more.
    """

    __slots__ = ()

    @property
    def children(self) -> list[AsyncResult[Any]] | None:
        """The results of what the task sent; None where nothing is stored yet."""
        return self._children_in(self._read())

    def _children_in(self, meta: Meta | None) -> list[AsyncResult[Any]] | None:
        if meta is None or meta.children is None:
            return None
        ids = [child_id for child in meta.children for child_id in _ids_in(child)]
        return [AsyncResult(each, self._backend, app=self.app) for each in ids]

    # Waiting

    def get(
        self,
        timeout: float | None = None,
        propagate: bool = True,
        interval: float = 0.5,
        no_ack: bool = True,
        follow_parents: bool = True,
        callback: Callback | None = None,
        on_message: OnMessage | None = None,
        on_interval: OnInterval | None = None,
        disable_sync_subtasks: bool = True,
    ) -> R_co:
        """The return value, once there is one; at the latest after `timeout` seconds.

        Raises `TimeoutError`; with `propagate` what the task raised, or `TaskRevokedError` (else
        it returns that exception), and with `follow_parents` what a step before it in its chain
        raised; and `RuntimeError` inside a task, where waiting for another one can wait for ever.

        `callback` is called with id and value, `on_message` with each record that is seen while
        waiting, the last one too, `on_interval` every `interval` seconds. `no_ack` is taken for
        Celery's sake and has no meaning.
        """
        if self.ignored:
            return None  # type: ignore[return-value]  # Celery's answer where there is no result
        if disable_sync_subtasks:
            refuse_to_wait(self.id)
        self._wait(Wait(timeout, interval, on_interval), follow_parents and propagate, on_message)
        return self.maybe_throw(propagate, callback)  # type: ignore[no-any-return]  # R_co's value

    wait = get

    async def aget(
        self,
        timeout: float | None = None,  # noqa: ASYNC109  # as `get`
        propagate: bool = True,
        interval: float = 0.5,
        no_ack: bool = True,
        follow_parents: bool = True,
        callback: Callback | None = None,
        on_message: OnMessage | None = None,
        on_interval: OnInterval | None = None,
        disable_sync_subtasks: bool = True,
    ) -> R_co:
        """`get` for coroutines: the event loop goes on meanwhile. ``await result`` is the same.

        Any number may wait at once, on any number of loops. What `callback`, `on_message` and
        `on_interval` return is awaited, where it can be.
        """
        if self.ignored:
            return None  # type: ignore[return-value]  # as `get`
        if disable_sync_subtasks:
            refuse_to_wait(self.id)
        wait = Wait(timeout, interval, on_interval)
        await self._await_end(wait, follow_parents and propagate, on_message)
        value = self.maybe_throw(propagate)
        if callback is not None:
            await called(callback, self.id, value)
        return value  # type: ignore[no-any-return]  # as `get`

    def __await__(self) -> Generator[Any, None, R_co]:
        return self.aget().__await__()

    async def __aiter__(self) -> AsyncIterator[Change]:
        """The states that are seen while the task goes on, the present one first, the final one
        last. Of states that follow each other at once the last one is seen."""
        meta, seen, want = self._known(), None, Want.NOW
        while not self.ignored:
            if meta is None:
                record = await self._waiter().wait([(self.id, want, seen)])
                seen = None if record is None else record.meta
                meta = self._take(record)
            want = Want.CHANGE
            if meta is not None:
                yield Change(meta.status, value_in(meta))
                if meta.status in READY_STATES:
                    return
                meta = None

    def then(
        self,
        callback: Callable[[Self], object],
        on_error: Callable[[BaseException], object] | None = None,
        weak: bool = False,
    ) -> None:
        """Have `callback` called with this result once the task has ended, however it has.

        It is called in a thread of this process's own that all such callbacks share; what it
        raises, and what the store does, goes to `on_error`, or into the log. `weak` is taken for
        Celery's sake and has no meaning.
        """

        def deliver(record: Result | None, error: BaseException | None) -> None:
            if error is not None and on_error is None:
                _log.warning(
                    "Nobody is told of the result of %s: %s", self.id, str(error) or repr(error)
                )
                return
            try:
                if error is not None:
                    raise error
                self._take(record)
                callback(self)
            # Whatever the callback raises; the thread serves others too.
            except BaseException as raised:
                _told(on_error, raised, self.id)

        if self._known() is not None or self.ignored:
            deliver(None, None)
        else:
            self._waiter().watch([Watch(self.id, Want.READY, None, deliver)])

    def maybe_throw(self, propagate: bool = True, callback: Callback | None = None) -> Any:
        """The value as it is now; raises it where it is the exception of a final state."""
        meta = self._read()
        if propagate:
            raise_failure(meta)
        value = value_in(meta)
        if callback is not None:
            callback(self.id, value)
        return value

    maybe_reraise = maybe_throw

    def throw(self, error: BaseException, traceback: object = None) -> NoReturn:
        """Raise `error`."""
        raise error

    # What came before and after

    def iterdeps(
        self, intermediate: bool = False
    ) -> Iterator[tuple[AsyncResult[Any] | None, AsyncResult[Any]]]:
        """(parent, result) of this task, of those that it sent, of those that they sent, ….

        Raises `IncompleteStream` at one that hasn't ended, unless `intermediate`.
        """
        waiting: deque[tuple[AsyncResult[Any] | None, AsyncResult[Any]]] = deque([(None, self)])
        while waiting:
            parent, node = waiting.popleft()
            yield parent, node
            if node.ready():
                waiting.extend((node, child) for child in node.children or ())
            elif not intermediate:
                raise IncompleteStream(f"task {node.id} hasn't ended; its state is {node.state}")

    def collect(
        self, intermediate: bool = False, **options: Any
    ) -> Iterator[tuple[AsyncResult[Any], Any]]:
        """(result, value) of each of `iterdeps`, waiting for it; `options` are `get`'s."""
        for _, node in self.iterdeps(intermediate):
            yield node, node.get(**options)

    def get_leaf(self) -> Any:
        """The value of the last of `collect`."""
        value = None
        for _, value in self.collect():  # noqa: B007  # the last one is the answer
            pass
        return value

    def as_tuple(self) -> tuple[tuple[str, Any], None]:
        """``((id, parent), None)``, as messages and stores hold it; see `result_from_tuple`."""
        parent = self.parent
        return (self.id, None if parent is None else parent.as_tuple()), None

    def as_list(self) -> list[str]:
        """Its id, and those of the steps before it."""
        return [self.id, *(each.id for each in self._parents())]

    def _parents(self) -> Iterator[AsyncResult[Any]]:
        node = self.parent
        while node is not None:
            yield node
            node = node.parent

    # Changing what is stored

    def forget(self) -> None:
        """Delete the stored result, and those of the steps before it."""
        results = [self, *self._parents()]
        self.backend.forget([each.id for each in results])
        for each in results:
            each._lose()

    async def aforget(self) -> None:
        """`forget`, without holding up the event loop."""
        import asyncio

        await asyncio.to_thread(self.forget)

    def revoke(
        self,
        connection: object = None,
        terminate: bool = False,
        signal: str | int | None = None,
        wait: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Ask that the task isn't run; with `terminate`, that a running one is ended.

        Holds for 3 hours, over restarts of everything, and for as long as a message of this id
        waits or is due later. `signal` ends a running task: ``SIGTERM`` unless named. When this
        returns the broker has it, so there is nothing to `wait` for.
        """
        self.app.revoke([self.id], terminate=terminate, signal=signal)

    async def arevoke(self, terminate: bool = False, signal: str | int | None = None) -> None:
        """`revoke`, without holding up the event loop."""
        import asyncio

        await asyncio.to_thread(self.revoke, terminate=terminate, signal=signal)

    # How it is waited for

    def _wait(self, wait: Wait, follow: bool, on_message: OnMessage | None) -> None:
        family = [self, *self._parents()] if follow else [self]
        told: Meta | None = None
        # Whoever wants to see each record begins with the one that there is.
        looks_first = on_message is not None
        while True:
            left = wait.next_pause()
            try:
                known = NOTHING_READ
                if left is not None and not looks_first and self._known() is None:
                    known = self._waited(family, left)
                looks_first = False
                with wait.answers():
                    meta, *others = read_all(family, known)
            except StoreUnavailable as error:
                if wait.is_over():
                    raise self._overdue(wait.timeout, None) from error
                raise
            if on_message is not None and meta is not None and meta != told:
                on_message(as_dict(meta))
                told = meta
            if meta is not None and meta.status in READY_STATES:
                return
            for each in others:
                raise_failure(each)
            if left is None:
                raise self._overdue(wait.timeout, meta)
            if wait.is_interval() and wait.on_interval is not None:
                wait.on_interval()

    def _waited(
        self, family: Sequence[AsyncResult[Any]], seconds: float
    ) -> Mapping[str, Result | None]:
        """Wait for news of any of them; the records, where the store knows them by now."""
        ids = [each.id for each in family if each._known() is None]
        records = self.backend.wait(ids, seconds)
        return NOTHING_READ if records is None else dict(zip(ids, records, strict=True))

    async def _await_end(self, wait: Wait, follow: bool, on_message: OnMessage | None) -> None:
        import asyncio

        want = Want.READY if on_message is None else Want.CHANGE
        meta, seen = self._known(), None
        while meta is None or meta.status not in READY_STATES:
            left = wait.next_pause()
            wanted = [(self.id, want, seen)]
            if left is None:  # a last look
                wanted = [(self.id, Want.NOW, None)]
            elif follow:
                wanted += [(p.id, Want.READY, None) for p in self._parents() if p._known() is None]
            try:
                async with asyncio.timeout(left):
                    record = await self._waiter().wait(wanted)
            except builtins.TimeoutError:
                if wait.is_interval() and wait.on_interval is not None:
                    await called(wait.on_interval)
                continue
            if record is not None and record.task_id != self.id:
                for parent in self._parents():
                    if parent.id == record.task_id:
                        raise_failure(parent._take(record))
                continue
            meta, before = self._take(record), seen
            seen = None if record is None else record.meta
            if on_message is not None and meta is not None and seen != before:
                await called(on_message, as_dict(meta))
            if left is None and (meta is None or meta.status not in READY_STATES):
                raise self._overdue(wait.timeout, meta)

    def _overdue(self, timeout: float | None, meta: Meta | None) -> TimeoutError:
        return TimeoutError(
            f"task {self.id} has no result after {timeout} s; its state is {state_in(meta)}. "
            f"`umbel why {self.id}` tells where it is"
        )

    def __eq__(self, other: object) -> bool:
        if isinstance(other, AsyncResult):
            return other.id == self.id
        return other == self.id if isinstance(other, str) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.id)

    def __copy__(self) -> Self:
        return self._again(self.app, self._backend)

    def __reduce__(self) -> tuple[Any, ...]:
        """The app isn't pickled: what is restored belongs to the app that is current there."""
        return _restored, (type(self), self.id, self.task_name, self.parent, self.ignored)

    def __str__(self) -> str:
        return self.id

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.id}>"

    def _again(self, app: Umbel | None, backend: ResultStore | None) -> Self:
        return type(self)(self.id, backend, self.task_name, app, self.parent, ignored=self.ignored)


def result_from_tuple(value: Any, app: Umbel | None = None) -> AsyncResult[Any]:
    """The result that `as_tuple` was asked of; a list will do, and so will a result or its id.

    Raises `ValueError`.
    """
    match value:
        case AsyncResult():
            return value
        case str():
            return AsyncResult(value, app=app)
        case [[str() as task_id, parent], None | []]:
            return AsyncResult(
                task_id, app=app, parent=None if parent is None else result_from_tuple(parent, app)
            )
    raise ValueError(
        f"{value!r:.80} is no result of a task; expected what as_tuple() gives: "
        "((id, parent), None)"
    )


def _told(
    on_error: Callable[[BaseException], object] | None, raised: BaseException, task_id: str
) -> None:
    """Tell `on_error` of it, or the log."""
    try:
        if on_error is None:
            raise raised
        on_error(raised)
    except BaseException:
        _log.exception("A callback for the result of %s raised.", task_id)


def _restored(
    kind: type[AsyncResult[Any]],
    task_id: str,
    task_name: str | None,
    parent: AsyncResult[Any] | None,
    ignored: bool,
) -> AsyncResult[Any]:
    return kind(task_id, None, task_name, None, parent, ignored=ignored)


def _ids_in(child: object) -> Iterator[str]:
    """The ids in a stored result tuple, ``[[id, parent], parts]``: its own, or those of its parts,
    where it is a group's."""
    match child:
        case [[str() as child_id, *_], None | []]:
            yield child_id
        case [[str(), *_], [*parts]]:
            for part in parts:
                yield from _ids_in(part)
