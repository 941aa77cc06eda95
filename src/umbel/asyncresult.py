"""The result of one task, by its id: its state, its value, and waiting for it.

What waits has a twin for coroutines, whose name begins with ``a``; ``await result`` is `aget`.
"""

from __future__ import annotations

import builtins
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from datetime import datetime
from inspect import iscoroutine
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, NoReturn, Self, TypeVar

from umbel.absent import without
from umbel.current import get_current_app
from umbel.exceptions import ImproperlyConfigured, IncompleteStream, TimeoutError
from umbel.joining import refuse_to_wait
from umbel.message import Result
from umbel.ports import ResultStore
from umbel.states import (
    EXCEPTION_STATES,
    FAILURE,
    PENDING,
    PROPAGATE_STATES,
    READY_STATES,
    SUCCESS,
)
from umbel.stored import Meta, decode_exception, decode_meta

if TYPE_CHECKING:
    from umbel.app import Umbel
    from umbel.waiting import Waiter

R_co = TypeVar("R_co", covariant=True)

LONGEST_WAIT: Final = 60.0
"""Seconds; a wait without an end asks again now and then, since a store may have been emptied
meanwhile."""

Callback = Callable[[str, Any], object]
OnMessage = Callable[[dict[str, Any]], object]
OnInterval = Callable[[], object]


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
class AsyncResult(Generic[R_co]):
    """What has become of one message. Equal to another of the same id, and to the id as text.

    A state of ``PENDING`` also means that nothing is known of the id; `Umbel.why` tells more.
    """

    __slots__ = ("_backend", "_meta", "app", "id", "ignored", "parent", "task_name")

    def __init__(
        self,
        id: str,
        backend: ResultStore | None = None,
        task_name: str | None = None,
        app: Umbel | None = None,
        parent: AsyncResult[Any] | None = None,
        *,
        ignored: bool = False,
    ) -> None:
        if not isinstance(id, str) or not id:
            raise ValueError(f"the id of a result is {id!r}; expected the text that delay() gave")
        self.id = id
        self.app = app if app is not None else get_current_app()
        self.task_name = task_name
        self.ignored = ignored
        """No result is stored: `get` returns None at once."""
        self.parent = parent
        """The result of the step before, in a chain."""
        self._backend = backend
        self._meta: Meta | None = None

    @property
    def task_id(self) -> str:
        return self.id

    @property
    def backend(self) -> ResultStore:
        """The opened store that is asked: the one that was named, else the app's."""
        store = self._backend or self.app.store
        if store is None:
            raise no_store()
        return store

    @property
    def supports_native_join(self) -> bool:
        """Always: several results are read in one trip, whatever the store."""
        return True

    # What is stored

    @property
    def state(self) -> str:
        """One of `umbel.states`, or a state of the task's own."""
        return state_in(self._read())

    status = state

    @property
    def result(self) -> Any:
        """The return value; the exception, where the state is one of an exception; or None."""
        return value_in(self._read())

    info = result

    @property
    def traceback(self) -> str | None:
        """The traceback as text, where the task failed or is retried."""
        meta = self._read()
        return None if meta is None else meta.traceback

    @property
    def date_done(self) -> datetime | None:
        """When the task ended, aware."""
        meta = self._read()
        return None if meta is None or not meta.date_done else _parse(meta.date_done)

    @property
    def children(self) -> list[AsyncResult[Any]] | None:
        """The results of what the task sent; None where nothing is stored yet."""
        meta = self._read()
        if meta is None or meta.children is None:
            return None
        ids = [child_id for child in meta.children for child_id in _ids_in(child)]
        return [AsyncResult(each, self._backend, app=self.app) for each in ids]

    @property
    def name(self) -> str | None:
        """The task's name, where it is known here or stored (`result_extended`)."""
        stored = self._extra("name")
        return stored if isinstance(stored, str) else self.task_name

    @property
    def args(self) -> Any:
        return self._extra("args")

    @property
    def kwargs(self) -> Any:
        return self._extra("kwargs")

    @property
    def worker(self) -> Any:
        return self._extra("worker")

    @property
    def retries(self) -> Any:
        return self._extra("retries")

    @property
    def queue(self) -> Any:
        return self._extra("queue")

    def ready(self) -> bool:
        """Whether the task has ended: SUCCESS, FAILURE or REVOKED."""
        return self.state in READY_STATES

    def successful(self) -> bool:
        return self.state == SUCCESS

    def failed(self) -> bool:
        return self.state == FAILURE

    def exists(self) -> bool:
        """Whether anything is stored of this id."""
        return self._read() is not None

    async def astate(self) -> str:
        """`state`, read without holding up the event loop. Once the task has ended, all that is
        stored is known, and `state`, `result` and the like don't read any more."""
        return state_in(await self._aread())

    async def aready(self) -> bool:
        """`ready`, without holding up the event loop."""
        return await self.astate() in READY_STATES

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
        from umbel.waiting import Want

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
        from umbel.waiting import Want, Watch

        def deliver(record: Result | None, error: BaseException | None) -> None:
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
        value = value_in(meta)
        failed = meta is not None and meta.status in PROPAGATE_STATES
        if propagate and failed and isinstance(value, BaseException):
            raise value
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

    # How it is read

    def _read(self) -> Meta | None:
        """What is stored; a final state is read once."""
        meta = self._known()
        return self._take(self.backend.get([self.id])[0]) if meta is None else meta

    async def _aread(self) -> Meta | None:
        from umbel.waiting import Want

        meta = self._known()
        if meta is not None:
            return meta
        return self._take(await self._waiter().wait([(self.id, Want.NOW, None)]))

    def _known(self) -> Meta | None:
        """The final state, where this object or this process (`result_cache_max`) knows it."""
        meta = self._meta
        if meta is None and (kept := self.app.kept_results) is not None:
            meta = self._meta = kept.get(self.id)
        return meta

    def _is_over(self) -> bool:
        """Whether nothing is to be waited for."""
        return self.ignored or self._known() is not None

    def _take(self, record: Result | None) -> Meta | None:
        """What a record says; of a final one it is kept."""
        if record is None:
            return self._meta
        meta = decode_meta(record.meta, self.app.result_format)
        if meta.status in READY_STATES:
            self._meta = meta
            if (kept := self.app.kept_results) is not None:
                kept.put(self.id, meta)
        return meta

    def _lose(self) -> None:
        self._meta = None
        if (kept := self.app.kept_results) is not None:
            kept.drop(self.id)

    def _extra(self, key: str) -> Any:
        meta = self._read()
        return None if meta is None else meta.extra.get(key)

    def _parents(self) -> Iterator[AsyncResult[Any]]:
        node = self.parent
        while node is not None:
            yield node
            node = node.parent

    def _waiter(self) -> Waiter:
        app = self.app
        if self._backend is None and app.connections.store_url is None:
            raise no_store()
        app.configure()
        return app.waiters.of(self._backend)

    # How it is waited for

    def _wait(self, wait: Wait, follow: bool, on_message: OnMessage | None) -> None:
        family = [self, *self._parents()] if follow else [self]
        told: Meta | None = None
        while True:
            meta, *others = read_all(family)
            if on_message is not None and meta is not None and meta != told:
                on_message(as_dict(meta))
                told = meta
            if meta is not None and meta.status in READY_STATES:
                return
            for each in others:
                _raise_failure(each)
            left = wait.next_pause()
            if left is None:
                raise self._overdue(wait.timeout, meta)
            self.backend.wait([each.id for each in family if each._known() is None], left)
            if wait.is_interval() and wait.on_interval is not None:
                wait.on_interval()

    async def _await_end(self, wait: Wait, follow: bool, on_message: OnMessage | None) -> None:
        import asyncio

        from umbel.waiting import Want

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
                        _raise_failure(parent._take(record))
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


class Wait:
    """The time that is left of one wait, and its intervals."""

    def __init__(
        self, timeout: float | None, interval: float, on_interval: OnInterval | None
    ) -> None:
        self.timeout = timeout
        self.on_interval = on_interval
        self._interval = interval
        now = time.monotonic()
        self._end = None if timeout is None else now + timeout
        self._next = now + interval

    def next_pause(self) -> float | None:
        """Seconds to wait until something is to be done again; None once the time is over."""
        now = time.monotonic()
        left = LONGEST_WAIT if self._end is None else min(self._end - now, LONGEST_WAIT)
        if left <= 0:
            return None
        return left if self.on_interval is None else max(0.0, min(left, self._next - now))

    def is_interval(self) -> bool:
        """Whether `on_interval` is due."""
        now = time.monotonic()
        if self.on_interval is None or now < self._next:
            return False
        self._next = now + self._interval
        return True


def read_all(results: Sequence[AsyncResult[Any]]) -> list[Meta | None]:
    """What is stored of each, in one trip to each store."""
    by_store: dict[int, list[AsyncResult[Any]]] = {}
    stores: dict[int, ResultStore] = {}
    found: dict[int, Meta | None] = {}
    for each in results:
        found[id(each)] = each._known()
        if found[id(each)] is None:
            store = each.backend
            stores[id(store)] = store
            by_store.setdefault(id(store), []).append(each)
    for key, some in by_store.items():
        records = stores[key].get([each.id for each in some])
        found |= {id(each): each._take(record) for each, record in zip(some, records, strict=True)}
    return [found[id(each)] for each in results]


def state_in(meta: Meta | None) -> str:
    return PENDING if meta is None else meta.status


def value_in(meta: Meta | None) -> Any:
    """The value, or the exception, or None."""
    if meta is None:
        return None
    if meta.status in EXCEPTION_STATES and isinstance(meta.result, dict):
        return decode_exception(meta.result, meta.traceback)
    return meta.result


def as_dict(meta: Meta) -> dict[str, Any]:
    """A record as Celery hands it to callbacks."""
    return {
        "status": meta.status,
        "result": value_in(meta),
        "traceback": meta.traceback,
        "children": meta.children,
        "date_done": meta.date_done,
        **meta.extra,
        "task_id": meta.task_id,
    }


def no_store() -> ImproperlyConfigured:
    return ImproperlyConfigured(
        "result_backend is 'disabled://', so no results are kept. Name one, for example "
        "sqlite:///results.db, or leave it unset to keep results with the messages"
    )


def _raise_failure(meta: Meta | None) -> None:
    """Raise what a step before ended with."""
    value = value_in(meta)
    if meta is not None and meta.status in PROPAGATE_STATES and isinstance(value, BaseException):
        raise value


async def called(function: Callable[..., object], *args: object) -> None:
    """Call it, and await what it returns, where that is a coroutine."""
    value = function(*args)
    if iscoroutine(value):
        await value


def _told(
    on_error: Callable[[BaseException], object] | None, raised: BaseException, task_id: str
) -> None:
    """Tell `on_error` of it, or the log."""
    try:
        if on_error is None:
            raise raised
        on_error(raised)
    except BaseException:
        logging.getLogger("umbel").exception("A callback for the result of %s raised.", task_id)


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


def _parse(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None
