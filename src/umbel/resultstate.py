"""What is stored of one message, as it is when it is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from umbel.current import get_current_app
from umbel.exceptions import ImproperlyConfigured
from umbel.message import Result
from umbel.ports import ResultStore
from umbel.states import FAILURE, READY_STATES, SUCCESS
from umbel.stored import Meta, decode_meta, state_in, value_in
from umbel.waiting import Waiter, Want

if TYPE_CHECKING:
    from umbel.app import Umbel
    from umbel.asyncresult import AsyncResult


NOTHING_READ: Final[Mapping[str, Result | None]] = MappingProxyType({})


class ResultState:
    """The state of a message, its value, and what else there is. A final state is read once.

    What begins with ``_`` is for the other modules of results.
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
        return self._backend or store_of(self.app)

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
        return done_in(self._read())

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

    # How it is read

    def _read(self) -> Meta | None:
        """What is stored; a final state is read once."""
        meta = self._known()
        return self._take(self.backend.get([self.id])[0]) if meta is None else meta

    async def _aread(self) -> Meta | None:
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

    def _waiter(self) -> Waiter:
        app = self.app
        if self._backend is None and app.connections.store_url is None:
            raise _no_store()
        app.configure()
        return app.waiters.of(self._backend)


def read_all(
    results: Sequence[ResultState], known: Mapping[str, Result | None] = NOTHING_READ
) -> list[Meta | None]:
    """What is stored of each, in one trip to each store; of `known` ids that is said already."""
    by_store: dict[int, list[ResultState]] = {}
    stores: dict[int, ResultStore] = {}
    found: dict[int, Meta | None] = {}
    for each in results:
        found[id(each)] = each._known()
        if found[id(each)] is None and each.id in known:
            found[id(each)] = each._take(known[each.id])
        elif found[id(each)] is None:
            store = each.backend
            stores[id(store)] = store
            by_store.setdefault(id(store), []).append(each)
    for key, some in by_store.items():
        records = stores[key].get([each.id for each in some])
        found |= {id(each): each._take(record) for each, record in zip(some, records, strict=True)}
    return [found[id(each)] for each in results]


def store_of(app: Umbel) -> ResultStore:
    """The opened result store of `app`. Raises `ImproperlyConfigured` where it has none."""
    store = app.store
    if store is None:
        raise _no_store()
    return store


def _no_store() -> ImproperlyConfigured:
    return ImproperlyConfigured(
        "result_backend is 'disabled://', so no results are kept. Name one, for example "
        "sqlite:///results.db, or leave it unset to keep results with the messages"
    )


def done_in(meta: Meta | None) -> datetime | None:
    """When the task ended, aware; None where it hasn't, or that can't be read."""
    if meta is None or not meta.date_done:
        return None
    try:
        return datetime.fromisoformat(meta.date_done)
    except ValueError:
        return None
