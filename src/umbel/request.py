"""What a task knows of the message it runs for (`self.request`), and which task runs here.

One context variable holds the running tasks of this thread or coroutine, the innermost first.
The worker's executor sets it, and so does calling a task like a function; nothing else does.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, Protocol

import msgspec

from umbel.message import Delivery, Posting


class Child(Protocol):
    """A task that was sent by the running one: an `AsyncResult`."""

    @property
    def id(self) -> str: ...


class Context:
    """The request that a task is executed for.

    Outside a worker, and in a task that is called like a function, it holds these defaults.
    Headers that aren't Celery's are attributes too; `headers` has them and nothing else.
    """

    id: str | None = None
    task: str | None = None
    args: list[Any] | tuple[Any, ...] | None = None
    kwargs: dict[str, Any] | None = None
    argsrepr: str = ""
    kwargsrepr: str = ""
    called_directly: bool = True
    is_eager: bool = False
    retries: int = 0
    eta: str | None = None
    expires: str | None = None
    timelimit: tuple[float | None, float | None] | None = None
    """(hard, soft), in seconds."""
    time_limit: float | None = None
    soft_time_limit: float | None = None
    ignore_result: bool | None = False
    """None: the sender left it to the task."""
    root_id: str | None = None
    parent_id: str | None = None
    group: str | None = None
    taskset: str | None = None
    group_index: int | None = None
    callbacks: list[Any] | None = None
    errbacks: list[Any] | None = None
    chain: list[Any] | None = None
    chord: dict[str, Any] | None = None
    shadow: str | None = None
    lang: str | None = None
    origin: str | None = None
    hostname: str | None = None
    logfile: str | None = None
    loglevel: int | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    replaced_task_nesting: int = 0
    stamped_headers: list[str] | None = None
    stamps: dict[str, Any] | None = None
    utc: bool = True
    delivery_info: dict[str, Any] | None = None
    """``exchange``, ``routing_key``, ``priority``, ``redelivered``."""
    properties: dict[str, Any] | None = None
    headers: dict[str, Any] | None = None

    delivery: Delivery | None = None
    expires_at: float | None = None
    """`expires` in unix seconds."""
    due_at: float | None = None
    """`eta` in unix seconds."""
    started_at: float | None = None
    """When the worker began to run it, in unix seconds."""

    def __init__(self, *args: Mapping[str, Any], **attributes: Any) -> None:
        self.children: list[Child] = []
        self.follow_ups: list[Posting] = []
        """What `Task.retry` wants to be sent in one step with the end of this delivery."""

        if args or attributes:  # a worker gives none, and makes one for each message
            self.update(*args, **attributes)

    def update(self, *args: Mapping[str, Any], **attributes: Any) -> None:
        """Set these attributes."""
        for each in (*args, attributes):
            for name, value in each.items():
                setattr(self, name, value)

    def clear(self) -> None:
        """Bring back every default."""
        self.__dict__.clear()
        self.children, self.follow_ups = [], []

    def as_execution_options(self) -> dict[str, Any]:
        """The options of a call that would be the same as this one; none of them None."""
        options = {
            "task_id": self.id,
            "root_id": self.root_id,
            "parent_id": self.parent_id,
            "group_id": self.group,
            "group_index": self.group_index,
            "shadow": self.shadow,
            "chain": self.chain,
            "link": self.callbacks,
            "link_error": self.errbacks,
            "expires": self.expires,
            "time_limit": self.time_limit,
            "soft_time_limit": self.soft_time_limit,
            "headers": self.headers,
            "retries": self.retries or None,
            "reply_to": self.reply_to,
            "replaced_task_nesting": self.replaced_task_nesting or None,
            "ignore_result": self.ignore_result,
            "stamped_headers": self.stamped_headers,
            **(self.stamps or {}),
        }
        return {name: value for name, value in options.items() if value is not None}

    def __getattr__(self, name: str) -> Any:
        # Asked only for what is no attribute: a stranger's header can't hide one of ours.
        custom = self.headers
        if custom is not None and name in custom:
            return custom[name]
        raise AttributeError(
            f"the request has no {name!r}; it has Celery's attributes and the message's headers"
        )

    def get(self, key: str, default: Any = None) -> Any:
        """The attribute `key`, or `default` where there is none."""
        return getattr(self, key, default)

    def __repr__(self) -> str:
        return f"<Context: {self.task}[{self.id}]>"


class Running(msgspec.Struct, eq=False):
    """A task that is being executed here, and the one around it."""

    task: object
    request: Context
    outer: Running | None
    entered: bool = False
    """Whether the function has been called; what it calls itself are other executions."""


current_request: ContextVar[Running | None] = ContextVar("umbel_current_request", default=None)


class running:
    """Make `task` the one that runs here, for the length of a ``with`` block."""

    __slots__ = ("_entry", "_token")
    _token: Token[Running | None]

    def __init__(self, task: object, request: Context) -> None:
        self._entry = Running(task, request, current_request.get())

    def __enter__(self) -> Context:
        self._token = current_request.set(self._entry)
        return self._entry.request

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        current_request.reset(self._token)


def request_of(task: object) -> Context | None:
    """The request of the innermost running execution of `task`, or None."""
    entry = current_request.get()
    while entry is not None and entry.task is not task:
        entry = entry.outer
    return None if entry is None else entry.request


def enter(task: object) -> bool:
    """Enter the execution of `task` that a worker or `apply` began here; whether that was the
    first time. Not where the task is called like a function."""
    entry = current_request.get()
    if entry is None or entry.task is not task or entry.entered or entry.request.called_directly:
        return False
    entry.entered = True
    return True


class Requests:
    """The requests that a task runs for in this thread or coroutine."""

    def __init__(self, task: object) -> None:
        self._task = task

    @property
    def top(self) -> Context | None:
        """The innermost, or None."""
        return request_of(self._task)

    def push(self, request: Context) -> None:
        """Put one on top."""
        current_request.set(Running(self._task, request, current_request.get()))

    def pop(self) -> Context | None:
        """Take off the one on top, and what was pushed inside of it; None where there is none."""
        entry = current_request.get()
        while entry is not None and entry.task is not self._task:
            entry = entry.outer
        if entry is None:
            return None
        current_request.set(entry.outer)
        return entry.request

    def __len__(self) -> int:
        entry, found = current_request.get(), 0
        while entry is not None:
            found += entry.task is self._task
            entry = entry.outer
        return found


def executing() -> Running | None:
    """The task that a worker executes here, or None; tasks called like functions don't count."""
    entry = current_request.get()
    while entry is not None and entry.request.called_directly:
        entry = entry.outer
    return entry
