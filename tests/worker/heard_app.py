"""Tasks that end in every way, and a journal of every signal and handler with its arguments.

A line of the file ``HEARD`` is JSON: ``[name, task id, process id, {keyword: shown}]``. With
``RAISE`` every receiver, and every handler but ``before_start``, raises once it has written.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

from umbel import Task, Umbel, signals
from umbel.canvas import Signature
from umbel.einfo import ExceptionInfo
from umbel.exceptions import Ignore, Reject
from umbel.message import Message, Unreadable
from umbel.request import Context
from umbel.settings import Settings
from umbel.signals import Signal
from umbel.worker.boot import Worker
from umbel.worker.execution import Taker
from umbel.worker.heart import Heart

MODES: dict[str, dict[str, bool]] = {
    "early": {},
    "late": {"acks_late": True},
    "reject": {"acks_late": True, "reject_on_worker_lost": True},
}
NAMES = tuple(name for name, each in vars(signals).items() if isinstance(each, Signal))
SENDERS = (Worker, Taker, Heart, Settings, Umbel)

app = Umbel("heard", set_as_current=False)


def shown(value: object) -> Any:
    """Something of a value that is plain, and the same in each run."""
    match value:
        case None | bool() | int() | str():
            return int(value) if isinstance(value, signal.Signals) else value
        case float():
            return "float"
        case Task():
            return f"task {value.name}"
        case Context():
            return f"request {value.id}"
        case Message():
            return f"message {value.id}"
        case Unreadable():
            return "unreadable"
        case ExceptionInfo():
            return f"einfo {type(value.exception).__name__}"
        case BaseException():
            return type(value).__name__
        case TracebackType():
            return "traceback"
        case dict():
            return {str(key): shown(each) for key, each in value.items()}
        case list() | tuple():
            return [shown(each) for each in value]
    return next((each.__name__ for each in SENDERS if isinstance(value, each)), "?")


def write(name: str, task_id: object, named: dict[str, object]) -> None:
    line = json.dumps([name, task_id, os.getpid(), shown(named)]) + "\n"
    descriptor = os.open(os.environ["HEARD"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def id_in(named: dict[str, Any]) -> object:
    """The task that a signal is about."""
    if "task_id" in named:
        return named["task_id"]
    if "headers" in named:
        return named["headers"]["id"]
    for about in ("request", "message"):
        if about in named:
            return getattr(named[about], "id", None)
    return getattr(getattr(named["sender"], "request", None), "id", None)


def receiver(name: str, *, raises: bool = False) -> Callable[..., None]:
    def hear(signal: Signal, **named: Any) -> None:
        assert signal.name == name
        told = dict(named)
        for long in ("body", "headers", "properties", "conf", "options", "logger", "declare"):
            if long in told:  # asserted elsewhere
                told[long] = type(told[long]).__name__
        write(name, id_in(named), told)
        complain(name, raises=raises)

    return hear


def complain(name: str, *, raises: bool = False) -> None:
    if raises or os.environ.get("RAISE"):
        raise RuntimeError(f"{name} as planned")


@contextlib.contextmanager
def listening(*names: str, raises: bool = False) -> Iterator[None]:
    """All that is sent in here is written."""
    receivers = {name: receiver(name, raises=raises) for name in names}
    for name, each in receivers.items():
        getattr(signals, name).connect(each, weak=False)
    try:
        yield
    finally:
        for name, each in receivers.items():
            getattr(signals, name).disconnect(each)


class Heard(Task[..., Any]):
    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        write("before_start", task_id, {"task_id": task_id, "args": args, "kwargs": kwargs})

    def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
        named = {"retval": retval, "task_id": task_id, "args": args, "kwargs": kwargs}
        write("on_success", task_id, named)
        complain("on_success")

    def on_retry(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        named = {"exc": exc, "task_id": task_id, "args": args, "kwargs": kwargs, "einfo": einfo}
        write("on_retry", task_id, named)
        complain("on_retry")

    def on_failure(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        named = {"exc": exc, "task_id": task_id, "args": args, "kwargs": kwargs, "einfo": einfo}
        write("on_failure", task_id, named)
        complain("on_failure")

    def after_return(
        self, status: str, retval: Any, task_id: str, args: Any, kwargs: Any, einfo: Any
    ) -> None:
        named = {"status": status, "retval": retval, "task_id": task_id, "args": args}
        write("after_return", task_id, {**named, "kwargs": kwargs, "einfo": einfo})
        complain("after_return")

    def on_replace(self, sig: Signature) -> Any:
        write("on_replace", self.request.id, {"sig": sig.task})
        return super().on_replace(sig)


def in_every_mode(**options: Any) -> Callable[[Callable[..., object]], Callable[..., object]]:
    def register(fun: Callable[..., object]) -> Callable[..., object]:
        task: Any = app.task
        for mode, mode_options in MODES.items():
            named = {"name": f"{fun.__name__}.{mode}", "bind": True, "base": Heard}
            task(**{**named, **options, **mode_options})(fun)
        return fun

    return register


def again(task: Any) -> bool:
    """Whether this isn't the first delivery of its first try."""
    return bool(task.request.retries or task.request.delivery_info["redelivered"])


@in_every_mode()
def returns(self: Any, x: int, y: int = 0, **more: str) -> int:
    return 42


@in_every_mode()
def raises(self: Any, x: int, y: int = 0) -> None:
    raise ValueError("as planned")


@in_every_mode()
def retries(self: Any, x: int, y: int = 0, **more: str) -> int:
    if not self.request.retries:
        raise self.retry(countdown=0, exc=KeyError("once"))
    return 42


@in_every_mode(max_retries=1)
def retries_too_often(self: Any, x: int, y: int = 0) -> None:
    raise self.retry(countdown=0, exc=KeyError("always"))


@in_every_mode(autoretry_for=(ValueError,), max_retries=1, default_retry_delay=0)
def is_retried(self: Any, x: int, y: int = 0) -> None:
    raise ValueError("as planned")


@in_every_mode()
def ignores(self: Any, x: int, y: int = 0) -> None:
    raise Ignore


@in_every_mode()
def is_replaced(self: Any, x: int, y: int = 0) -> None:
    self.replace(app.tasks["returns.late"].s(x, y=y))


@in_every_mode()
def rejects(self: Any, x: int, y: int = 0) -> None:
    raise Reject("unwanted", requeue=False)


@in_every_mode()
def requeues(self: Any, x: int, y: int = 0) -> int:
    if not again(self):
        raise Reject("not now", requeue=True)
    return 42


@in_every_mode(soft_time_limit=0.2)
def meets_soft_limit(self: Any, x: int, y: int = 0) -> None:
    for _ in range(3000):  # a thread hears of its limit between two statements
        time.sleep(0.01)


# Some pools can't keep a hard limit, and refuse to start.
@in_every_mode(time_limit=None if os.environ.get("WITHOUT_HARD_LIMITS") else 0.2)
def meets_hard_limit(self: Any, x: int, y: int = 0) -> None:
    time.sleep(30)


@in_every_mode()
async def returns_on_a_loop(self: Any, x: int, y: int = 0) -> int:
    return 42


@in_every_mode()
async def raises_on_a_loop(self: Any, x: int, y: int = 0) -> None:
    raise ValueError("as planned")


@in_every_mode()
async def retries_on_a_loop(self: Any, x: int, y: int = 0) -> int:
    if not self.request.retries:
        raise self.retry(countdown=0, exc=KeyError("once"))
    return 42


@in_every_mode()
def waits(self: Any, x: int, y: int = 0) -> int:
    if not again(self):
        write("waits", self.request.id, {})
        time.sleep(60)
    return 42


@in_every_mode()
def kills(self: Any, x: int, y: int = 0) -> int:
    if not again(self):
        os.kill(os.getpid(), signal.SIGKILL)
    return 42


@in_every_mode(retry_on_worker_lost=True, max_retries=1, default_retry_delay=0)
def kills_with_retry(self: Any, x: int, y: int = 0) -> int:
    if not again(self):
        os.kill(os.getpid(), signal.SIGKILL)
    return 42


@in_every_mode()
def says_exit(self: Any, x: int, y: int = 0) -> int:
    if not again(self):
        sys.exit(3)
    return 42


if os.environ.get("LISTEN_TO"):
    for signal_name in os.environ["LISTEN_TO"].split():
        getattr(signals, signal_name).connect(receiver(signal_name), weak=False)

if os.environ.get("MARK"):

    @signals.before_task_publish.connect
    def mark(body: Any, headers: dict[str, Any], **_: object) -> None:
        body[1]["marked"] = headers["id"]
        headers["marked"] = headers["id"]


if os.environ.get("CHANGE"):

    @signals.celeryd_init.connect
    def change_settings(conf: Settings, **_: object) -> None:
        conf.worker_concurrency = 3

    @signals.celeryd_after_setup.connect
    def change_queues(instance: Worker, **_: object) -> None:
        instance.app.conf.task_default_queue = "changed"
