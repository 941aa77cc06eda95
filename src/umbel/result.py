"""The result of a task, by its id: its state, its value, and waiting for it."""

from __future__ import annotations

import json
import signal as signals
import time
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from umbel.current import get_current_app
from umbel.exceptions import ImproperlyConfigured, TimeoutError
from umbel.ports import ResultStore, Revocation
from umbel.request import executing
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

R_co = TypeVar("R_co", covariant=True)

# A wait without an end asks again now and then, since a store may have been emptied meanwhile.
_LONGEST_WAIT: Final = 60.0


class AsyncResult(Generic[R_co]):
    """What has become of one message. Equal to another of the same id, and to the id as text.

    A state of ``PENDING`` also means that nothing is known of the id; `Umbel.why` tells more.
    """

    __slots__ = ("_meta", "app", "id", "ignored", "parent", "task_name")

    def __init__(
        self,
        id: str,
        app: Umbel | None = None,
        *,
        task_name: str | None = None,
        ignored: bool = False,
        parent: AsyncResult[Any] | None = None,
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
        self._meta: Meta | None = None

    @property
    def task_id(self) -> str:
        return self.id

    @property
    def state(self) -> str:
        """One of `umbel.states`, or a state of the task's own."""
        meta = self._read()
        return PENDING if meta is None else meta.status

    status = state

    @property
    def result(self) -> Any:
        """The return value; the exception, where the state is one of an exception; or None."""
        meta = self._read()
        if meta is None:
            return None
        if meta.status in EXCEPTION_STATES and isinstance(meta.result, dict):
            return decode_exception(meta.result, meta.traceback)
        return meta.result

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
        ids = [_child_id(child) for child in meta.children]
        return [AsyncResult(each, self.app) for each in ids if each]

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

    def as_tuple(self) -> tuple[tuple[str, Any], None]:
        """``((id, parent), None)``, as messages and stores hold it; see `result_from_tuple`."""
        parent = self.parent
        return (self.id, None if parent is None else parent.as_tuple()), None

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

    def get(
        self,
        timeout: float | None = None,
        propagate: bool = True,
        interval: float | None = None,
        callback: Callable[[str, Any], object] | None = None,
        disable_sync_subtasks: bool = True,
    ) -> R_co:
        """The return value, once there is one; at the latest after `timeout` seconds.

        Raises `TimeoutError`; with `propagate` what the task raised, or `TaskRevokedError` (else
        it returns that exception); and `RuntimeError` inside a task, where waiting for another
        one can wait for ever. `callback` is called with id and value. `interval` is taken for
        Celery's sake and has no meaning: waiting costs nothing here.
        """
        if disable_sync_subtasks:
            self._refuse_inside_a_task()
        if self.ignored:
            return None  # type: ignore[return-value]  # Celery's answer where there is no result
        meta = self._wait(timeout)
        value = self.result
        if propagate and meta.status in PROPAGATE_STATES and isinstance(value, BaseException):
            raise value
        if callback is not None:
            callback(self.id, value)
        return value  # type: ignore[no-any-return]  # what the store holds of the task's R_co

    wait = get

    def forget(self) -> None:
        """Delete the stored result."""
        self._store().forget([self.id])
        self._meta = None

    def revoke(self, terminate: bool = False, signal: str | None = None) -> None:
        """Ask that the task isn't run; with `terminate`, that a running one is ended.

        Holds for 3 hours, over restarts of everything, and for as long as a message of this id
        waits or is due later. `signal` ends a running task: ``SIGTERM`` unless named.
        """
        self.app.revoke([self.id], terminate=terminate, signal=signal)

    def _wait(self, timeout: float | None) -> Meta:
        deadline = None if timeout is None else time.monotonic() + timeout
        store = self._store()
        while True:
            meta = self._read()
            if meta is not None and meta.status in READY_STATES:
                return meta
            left = _LONGEST_WAIT if deadline is None else deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(
                    f"task {self.id} has no result after {timeout} s; its state is {self.state}. "
                    f"`umbel why {self.id}` tells where it is"
                )
            store.wait([self.id], min(left, _LONGEST_WAIT))

    def _read(self) -> Meta | None:
        """What is stored; a final state is read once."""
        meta = self._meta
        if meta is None:
            record = self._store().get([self.id])[0]
            if record is None:
                return None
            meta = decode_meta(record.meta, self.app.result_format)
            if meta.status in READY_STATES:
                self._meta = meta
        return meta

    def _extra(self, key: str) -> Any:
        meta = self._read()
        return None if meta is None else meta.extra.get(key)

    def _store(self) -> ResultStore:
        store = self.app.store
        if store is None:
            raise ImproperlyConfigured(
                "result_backend is 'disabled://', so no results are kept. Name one, for example "
                "sqlite:///results.db, or leave it unset to keep results with the messages"
            )
        return store

    def _refuse_inside_a_task(self) -> None:
        entry = executing()
        if entry is not None:
            raise RuntimeError(
                f"{entry.request.task} waits for the result of task {self.id} inside a worker: "
                "with all processes waiting like this, none would be left to run it. Let the "
                "other task go on with the result, or say get(disable_sync_subtasks=False)"
            )

    def __eq__(self, other: object) -> bool:
        if isinstance(other, AsyncResult):
            return other.id == self.id
        return other == self.id if isinstance(other, str) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.id)

    def __str__(self) -> str:
        return self.id

    def __repr__(self) -> str:
        return f"<AsyncResult: {self.id}>"


def result_from_tuple(value: Any, app: Umbel | None = None) -> AsyncResult[Any]:
    """The result that `as_tuple` was asked of; a list will do, and so will a result or its id.

    Raises `ValueError`.
    """
    match value:
        case AsyncResult():
            return value
        case str():
            return AsyncResult(value, app)
        case [[str() as task_id, parent], None | []]:
            return AsyncResult(
                task_id, app, parent=None if parent is None else result_from_tuple(parent, app)
            )
    raise ValueError(
        f"{value!r:.80} is no result of a task; expected what as_tuple() gives: "
        "((id, parent), None)"
    )


def revocation_payload(revocation: Revocation) -> bytes:
    """The control command that tells workers to look at the log: Celery's ``revoke``."""
    return json.dumps(
        {
            "method": "revoke",
            "arguments": {
                "task_id": revocation.task_id,
                "terminate": revocation.terminate,
                "signal": revocation.signal,
            },
            "destination": None,
        }
    ).encode()


def _child_id(child: object) -> str | None:
    """The id in a stored result tuple, ``[[id, parent], parts]``."""
    match child:
        case [[str() as child_id, *_], *_]:
            return child_id
    return None


def _parse(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def signal_name(value: str | int | None) -> str:
    """The name of the signal that ends a running task: ``SIGTERM`` unless named, as ``"SIGKILL"``,
    ``"KILL"`` or 9. Raises `ValueError`."""
    if value is None:
        return "SIGTERM"
    try:
        if isinstance(value, int):
            return signals.Signals(value).name
        name = value.upper()
        return signals.Signals[name if name.startswith("SIG") else f"SIG{name}"].name
    except (ValueError, KeyError, AttributeError):
        known = ", ".join(each.name for each in signals.Signals)
        raise ValueError(f"there is no signal {value!r} here; there are {known}") from None
