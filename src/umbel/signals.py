"""Signals: functions of yours that are called when something happens to a task or a worker.

::

    from umbel.signals import task_failure

    @task_failure.connect
    def report(sender, task_id, exception, **kwargs): ...

    @task_failure.connect(sender=add)            # of one task only
    def report_add(exception, **kwargs): ...

A receiver is called with keyword arguments: `signal`, `sender` and those that the signal's text
below names. It must accept ``**kwargs``, since later releases add arguments. What it raises is
logged and ends nothing. Receivers are held weakly: a function defined inside another one, or a
method of an object that nobody keeps, is gone when its last reference is; ``weak=False`` keeps it.

*Caller* below is the process that sends a task, *worker* the first process of a worker, *pool
process* the one that runs the task.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass
from types import MethodType
from typing import TypeVar, overload

from umbel.retry import RetryPolicy

logger = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., object])

RECEIVER_RETRY = RetryPolicy(None, interval_start=0, interval_step=1, interval_max=30)
"""What ``connect(retry=True)`` means: until it succeeds, after 0, 1, 2, … 30, 30 s."""

_lock = threading.Lock()


def _renew_lock() -> None:
    global _lock
    _lock = threading.Lock()


# A fork while another thread connects would leave the child a lock that nobody opens.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


@dataclass(frozen=True, slots=True)
class Connection:
    """One receiver of one signal."""

    get: Callable[[], Callable[..., object] | None]
    """The receiver, or None once it is gone."""
    sender: Callable[[], object] | None
    """The only sender it listens to (None once that is gone); without: every sender."""
    uid: Hashable
    retry: bool

    def hears(self, sender: object) -> bool:
        """Whether a signal of `sender` is for this receiver: the same object, or an equal text."""
        if self.sender is None:
            return True
        expected = self.sender()
        return expected is not None and _same_sender(expected, sender)

    def matches(self, fun: object, sender: object, uid: Hashable) -> bool:
        """Whether this is the connection of that receiver (or uid) and that sender."""
        if (self.sender is None) != (sender is None) or not self.hears(sender):
            return False
        return self.uid == uid if uid is not None else self.uid is None and self.get() == fun

    @property
    def gone(self) -> bool:
        """Whether it can't be called any more: the receiver or its sender is gone."""
        return self.get() is None or (self.sender is not None and self.sender() is None)


class Signal:
    """Something that happens. Thread-safe; a child process keeps the receivers of its parent.

    ``if signal.receivers:`` tells cheaply whether anyone may listen.
    """

    __slots__ = ("name", "providing_args", "receivers")

    def __init__(self, name: str, providing_args: Collection[str] = ()) -> None:
        self.name = name
        self.providing_args = frozenset(providing_args)
        # Replaced, never changed, so that sending needs no lock.
        self.receivers: tuple[Connection, ...] = ()

    def __repr__(self) -> str:
        return f"<Signal {self.name} of {', '.join(sorted(self.providing_args))}>"

    @overload
    def connect(
        self,
        fun: F,
        sender: object = None,
        weak: bool = True,
        dispatch_uid: Hashable = None,
        retry: bool = False,
    ) -> F: ...

    @overload
    def connect(
        self,
        fun: None = None,
        sender: object = None,
        weak: bool = True,
        dispatch_uid: Hashable = None,
        retry: bool = False,
    ) -> Callable[[F], F]: ...

    def connect(
        self,
        fun: Callable[..., object] | None = None,
        sender: object = None,
        weak: bool = True,
        dispatch_uid: Hashable = None,
        retry: bool = False,
    ) -> Callable[..., object]:
        """Call `fun` on this signal, from `sender` only if one is given; also a decorator.

        The same receiver and sender, or the same `dispatch_uid` and sender, connect once: the
        first one stays. ``retry=True`` calls a receiver that raises again until it succeeds
        (`RECEIVER_RETRY`), holds up the sender meanwhile, and implies ``weak=False``.
        Raises `ValueError` for a receiver without ``**kwargs`` or with ``async def``.
        """
        if fun is None:
            return functools.partial(
                self.connect, sender=sender, weak=weak, dispatch_uid=dispatch_uid, retry=retry
            )
        self._check(fun)
        made = Connection(
            get=_reference(fun) if weak and not retry else _always(fun),
            sender=None if sender is None else _sender_reference(sender),
            uid=dispatch_uid,
            retry=retry,
        )
        with _lock:
            living = self._living()
            if not any(each.matches(fun, sender, dispatch_uid) for each in living):
                living += (made,)
            self.receivers = living
        return fun

    def disconnect(
        self,
        fun: Callable[..., object] | None = None,
        sender: object = None,
        dispatch_uid: Hashable = None,
    ) -> bool:
        """Undo a `connect` with the same receiver or uid, and sender; whether there was one."""
        with _lock:
            living = self._living()
            kept = tuple(each for each in living if not each.matches(fun, sender, dispatch_uid))
            self.receivers = kept
        return len(kept) < len(living)

    def has_listeners(self, sender: object = None) -> bool:
        """Whether a signal of `sender` would reach anyone now."""
        return any(each.hears(sender) and each.get() is not None for each in self.receivers)

    def send(self, sender: object, **named: object) -> list[tuple[Callable[..., object], object]]:
        """Call the receivers in the order of connecting.

        Returns (receiver, what it returned or the exception it raised) for each. Only what isn't
        an `Exception`, such as `SystemExit`, goes through to the caller.
        """
        answers: list[tuple[Callable[..., object], object]] = []
        gone = False
        for connection in self.receivers:
            fun = connection.get()
            if fun is None:
                gone = True
            elif connection.hears(sender):
                answers.append((fun, self._call(fun, connection.retry, sender, named)))
        if gone:
            with _lock:
                self.receivers = self._living()
        return answers

    send_robust = send

    def _call(
        self, fun: Callable[..., object], retry: bool, sender: object, named: dict[str, object]
    ) -> object:
        waits = RECEIVER_RETRY.waits()
        while True:
            try:
                return fun(signal=self, sender=sender, **named)
            except Exception as exc:  # a receiver must not end what it listens to
                if not retry:
                    logger.exception("Receiver %r of signal %s raised %r", fun, self.name, exc)
                    return exc
                wait = next(waits)
                logger.warning(
                    "Receiver %r of signal %s raised %r; calling it again in %g s",
                    fun,
                    self.name,
                    exc,
                    wait,
                )
            time.sleep(wait)

    def _living(self) -> tuple[Connection, ...]:
        return tuple(each for each in self.receivers if not each.gone)

    def _check(self, fun: object) -> None:
        if not callable(fun):
            raise ValueError(
                f"{fun!r} can't receive signal {self.name}: it isn't callable. "
                "To listen to one sender, write connect(sender=…)"
            )
        if inspect.iscoroutinefunction(fun):
            raise ValueError(
                f"{fun!r} can't receive signal {self.name}: nobody would await it. "
                "Make it a plain function"
            )
        try:
            parameters = _signature(fun).parameters.values()
        except (TypeError, ValueError):
            return  # written in C without a signature: it may well take them
        if not any(each.kind is each.VAR_KEYWORD for each in parameters):
            raise ValueError(
                f"{fun!r} can't receive signal {self.name}: it doesn't accept **kwargs, and later "
                "releases add arguments. Add **kwargs to its parameters"
            )


if sys.version_info >= (3, 14):
    import annotationlib

    def _signature(fun: Callable[..., object]) -> inspect.Signature:
        # As values, annotations under `if TYPE_CHECKING:` would raise NameError.
        return inspect.signature(fun, annotation_format=annotationlib.Format.STRING)

else:
    _signature = inspect.signature


def _same_sender(expected: object, sender: object) -> bool:
    if isinstance(expected, str | bytes | int):
        return expected == sender
    return expected is sender


def _always(value: F) -> Callable[[], F]:
    return lambda: value


def _reference(fun: Callable[..., object]) -> Callable[[], Callable[..., object] | None]:
    if isinstance(fun, MethodType):
        return weakref.WeakMethod(fun)
    try:
        return weakref.ref(fun)
    except TypeError:
        return _always(fun)


def _sender_reference(sender: object) -> Callable[[], object]:
    try:
        return weakref.ref(sender)
    except TypeError:
        return lambda: sender


before_task_publish = Signal(
    "before_task_publish",
    ["body", "exchange", "routing_key", "headers", "properties", "declare", "retry_policy"],
)
"""Sender: the task's name. In the caller, before a message is sent; may change headers and body.

For what follows from a task, and for retries, in its pool process. `retry_policy` is None there.
"""

after_task_publish = Signal("after_task_publish", ["body", "exchange", "routing_key", "headers"])
"""Sender: the task's name. In the caller, after a message was sent.

For what follows from a task, and for retries, in its pool process, once its end is settled.
"""

task_sent = Signal("task_sent", ["task_id", "task", "args", "kwargs", "eta", "taskset"])
"""Sender: the task's name. Right after `after_task_publish`, which Celery asks to use instead."""

task_received = Signal("task_received", ["request"])
"""Sender: who took it, with `app` and `hostname`. In the pool process: a task is to be run.

Not for what has expired or is revoked by then.
"""

task_prerun = Signal("task_prerun", ["task_id", "task", "args", "kwargs"])
"""Sender: the task. In the pool process, before the function is called."""

task_postrun = Signal("task_postrun", ["task_id", "task", "args", "kwargs", "retval", "state"])
"""Sender: the task. In the pool process, after everything else of an execution.

`state` is None where the task was left by `SystemExit` or by the end of its worker.
"""

task_success = Signal("task_success", ["result", "runtime"])
"""Sender: the task. In the pool process; `runtime` in seconds."""

task_retry = Signal("task_retry", ["request", "reason", "einfo"])
"""Sender: the task. In the pool process; `reason` is the `Retry` or the exception behind it."""

task_failure = Signal(
    "task_failure", ["task_id", "exception", "args", "kwargs", "traceback", "einfo"]
)
"""Sender: the task. A task has failed for good, its process was lost or was ended at its limit."""

task_internal_error = Signal(
    "task_internal_error",
    ["task_id", "args", "kwargs", "request", "exception", "traceback", "einfo"],
)
"""Sender: the task. In the pool process: it ran, but what follows from it can't be sent.

`task_failure` comes after it; the task's own errors are that alone.
"""

task_revoked = Signal("task_revoked", ["request", "terminated", "signum", "expired"])
"""Sender: the task. It was revoked before its start, terminated, or had expired."""

task_unknown = Signal("task_unknown", ["message", "exc", "name", "id"])
"""Sender: as of `task_received`. A message names a task that no worker took in time."""

task_rejected = Signal("task_rejected", ["message", "exc"])
"""Sender: as of `task_received`. A message can't be read; not for `Reject`."""

import_modules = Signal("import_modules")
"""Sender: the app. Before the modules of `imports` and `include` are imported."""

celeryd_init = Signal("celeryd_init", ["instance", "conf", "options"])
"""Sender: the worker's node name. The first of the worker: settings may still be changed."""

worker_init = Signal("worker_init")
"""Sender: the worker. Before it starts; the pool processes inherit what is set up here."""

celeryd_after_setup = Signal("celeryd_after_setup", ["instance", "conf"])
"""Sender: the worker's node name. Queues and logging are set up; queues may still be changed."""

worker_before_create_process = Signal("worker_before_create_process")
"""Sender: the worker. In its first process, before each start of a pool process."""

worker_process_init = Signal("worker_process_init")
"""Sender: the worker's node name. In each pool process, before its first task."""

worker_process_shutdown = Signal("worker_process_shutdown", ["pid", "exitcode"])
"""Sender: the worker's node name. In each pool process, before it ends."""

worker_ready = Signal("worker_ready")
"""Sender: the worker. It takes tasks now."""

heartbeat_sent = Signal("heartbeat_sent")
"""Sender: the heart. The broker has answered a heartbeat of the worker: at least every third
of `worker_lease_time`."""

worker_shutting_down = Signal("worker_shutting_down", ["sig", "how", "exitcode"])
"""Sender: the worker's node name. A stop was asked for; `how` is ``"Warm"`` or ``"Cold"``."""

worker_shutdown = Signal("worker_shutdown")
"""Sender: the worker. It is about to end."""

setup_logging = Signal("setup_logging", ["loglevel", "logfile", "format", "colorize"])
"""Sender: None. With a receiver, Umbel leaves logging to it altogether."""

after_setup_logger = Signal(
    "after_setup_logger", ["logger", "loglevel", "logfile", "format", "colorize"]
)
"""Sender: None. Umbel has set up the root logger; add handlers here."""

after_setup_task_logger = Signal(
    "after_setup_task_logger", ["logger", "loglevel", "logfile", "format", "colorize"]
)
"""Sender: None. Umbel has set up the logger of tasks."""

beat_init = Signal("beat_init")
"""Sender: the scheduler service. `umbel beat` starts; sent from the release "Beat" on."""

beat_embedded_init = Signal("beat_embedded_init")
"""Sender: the scheduler service. A worker starts its own beat; from the release "Beat" on."""

eventlet_pool_started = Signal("eventlet_pool_started")
"""Sender: the pool. The greenlet pool runs; sent from the release that brings that pool on."""

eventlet_pool_preshutdown = Signal("eventlet_pool_preshutdown")
"""Sender: the pool. The greenlet pool is about to stop; from the same release on."""

eventlet_pool_postshutdown = Signal("eventlet_pool_postshutdown")
"""Sender: the pool. The greenlet pool has stopped; from the same release on."""

eventlet_pool_apply = Signal("eventlet_pool_apply", ["target", "args", "kwargs"])
"""Sender: the pool. The greenlet pool starts a task; from the same release on."""

user_preload_options = Signal("user_preload_options", ["app", "options"])
"""Never sent: the command line has no options of the app's own."""
