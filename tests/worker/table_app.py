"""Tasks that end in every way, each in the three modes, and a journal of all that is heard.

A line is ``what task-id pid monotonic-seconds``; `what` is ``kill``,
``run:RETRIES:REDELIVERIES:REDELIVERED``, or a handler or signal with what tells its calls apart.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from umbel import Umbel, signals
from umbel.exceptions import Ignore, Reject, Retry
from umbel.message import Message, Posting

MODES: dict[str, dict[str, bool]] = {
    "early": {},
    "late": {"acks_late": True},
    "reject": {"acks_late": True, "reject_on_worker_lost": True},
}
POLL = 0.005

app = Umbel("table")


def note(what: str, task_id: str) -> None:
    """One whole line in one write, so that processes don't mix theirs."""
    line = f"{what} {task_id} {os.getpid()} {time.monotonic()}\n"
    descriptor = os.open(os.environ["JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def _kind(value: object) -> str:
    return type(value).__name__


HANDLERS: dict[str, Callable[..., object]] = {
    "before_start": lambda task_id, args, kwargs: note("before_start", task_id),
    "on_success": lambda retval, task_id, args, kwargs: note("on_success", task_id),
    "on_retry": lambda exc, task_id, *_: note(f"on_retry:{_kind(exc)}", task_id),
    "on_failure": lambda exc, task_id, *_: note(f"on_failure:{_kind(exc)}", task_id),
    "after_return": lambda status, retval, task_id, *_: note(f"after_return:{status}", task_id),
}


def in_every_mode(**options: Any) -> Callable[[Callable[..., object]], Callable[..., object]]:
    """Register ``NAME.early``, ``NAME.late`` and ``NAME.reject``, which note their runs."""

    def register(fun: Callable[..., object]) -> Callable[..., object]:
        def run(self: Any, *args: Any) -> object:
            delivery = self.request.delivery
            counts = (self.request.retries, delivery.redeliveries, int(delivery.redelivered))
            note("run:{}:{}:{}".format(*counts), self.request.id)
            return fun(self, *args)

        task: Any = app.task
        for mode, mode_options in MODES.items():
            named = {"name": f"{fun.__name__}.{mode}", "bind": True, "typing": False}
            task(**{**named, **HANDLERS, **options, **mode_options})(run)
        return fun

    return register


def wait_for(gate: str) -> None:
    while not os.path.exists(gate):
        time.sleep(POLL)


def kill_this_process(task_id: str) -> None:
    note("kill", task_id)
    os.kill(os.getpid(), signal.SIGKILL)


# Ends that need no death.


@in_every_mode()
def returns(self: Any) -> int:
    return 42


@in_every_mode()
def returns_much(self: Any) -> str:
    """More than a place of the scoreboard holds."""
    return "x" * 5000


@in_every_mode()
def returns_what_json_lacks(self: Any) -> object:
    return object()


@in_every_mode()
def retries(self: Any, countdown: float) -> int:
    if not self.request.retries:
        raise self.retry(countdown=countdown, exc=ValueError("once"))
    return int(self.request.retries)


@in_every_mode(max_retries=1)
def retries_too_often(self: Any) -> None:
    raise self.retry(countdown=0, exc=ValueError("always"))


@in_every_mode()
def raises(self: Any) -> None:
    raise ValueError("as planned")


@in_every_mode(acks_on_failure=False)
def raises_refused(self: Any) -> None:
    raise ValueError("as planned")


@in_every_mode(dead_letters=False)
def raises_unkept(self: Any) -> None:
    raise ValueError("as planned")


@in_every_mode()
def ignores(self: Any) -> None:
    raise Ignore


@in_every_mode()
def rejects(self: Any) -> None:
    raise Reject("unwanted", requeue=False)


@in_every_mode(max_redeliveries=2)
def requeues(self: Any) -> None:
    raise Reject("not now", requeue=True)


@in_every_mode()
def requeues_once(self: Any) -> int:
    redeliveries = int(self.request.delivery.redeliveries)
    if not redeliveries:
        raise Reject("not now", requeue=True)
    return redeliveries


@in_every_mode(soft_time_limit=0.2)
def meets_soft_limit(self: Any) -> None:
    wait_for("never")


@in_every_mode(time_limit=0.2)
def meets_hard_limit(self: Any) -> None:
    wait_for("never")


@in_every_mode(time_limit=0.2, acks_on_timeout=False, max_redeliveries=1)
def meets_hard_limit_again(self: Any) -> None:
    wait_for("never")


@in_every_mode()
def waits(self: Any, gate: str) -> None:
    wait_for(gate)


@in_every_mode()
def retries_to_no_queue(self: Any) -> None:
    raise self.retry(queue="nowhere", countdown=0)


@in_every_mode()
def retries_to_no_exchange(self: Any) -> None:
    raise self.retry(exchange="nowhere", routing_key="nothing", countdown=0)


@in_every_mode()
def follows_up_to_no_exchange(self: Any) -> None:
    """What only a broker can refuse: the exchange has gone since the message was routed."""
    message = self.request.delivery.message
    self.request.follow_ups.append(Posting(message, "key", exchange="gone"))
    raise Retry("to an exchange that has gone")


@in_every_mode()
def retries_elsewhere(self: Any, queue: str) -> int:
    if not self.request.retries:
        raise self.retry(queue=queue, countdown=0)
    return int(self.request.retries)


# Ends by the death of the process.


@in_every_mode(max_redeliveries=2)
def kills(self: Any) -> None:
    kill_this_process(self.request.id)


@in_every_mode()
def kills_once(self: Any) -> int:
    redeliveries = int(self.request.delivery.redeliveries)
    if not redeliveries:
        kill_this_process(self.request.id)
    return redeliveries


@in_every_mode(retry_on_worker_lost=True, max_retries=1, default_retry_delay=0)
def kills_with_retry(self: Any) -> None:
    kill_this_process(self.request.id)


@in_every_mode(max_redeliveries=1)
def exits(self: Any) -> None:
    os._exit(3)


@in_every_mode(max_redeliveries=1)
def says_system_exit(self: Any) -> None:
    sys.exit(4)


# Ends by the death of the whole worker, by the test or by the task itself.


@in_every_mode()
def parks(self: Any, gate: str) -> int:
    """Waits in its first delivery; later ones return at once."""
    if not self.request.delivery.redelivered:
        wait_for(gate)
    return os.getpid()


@in_every_mode(max_redeliveries=0)
def parks_at_the_cap(self: Any, gate: str) -> None:
    wait_for(gate)


@in_every_mode(retry_on_worker_lost=True, max_retries=1, default_retry_delay=0)
def parks_with_retry(self: Any, gate: str) -> int:
    if not self.request.retries:
        wait_for(gate)
    return int(self.request.retries)


@in_every_mode(retry_on_worker_lost=True, max_retries=0)
def parks_without_retries(self: Any, gate: str) -> None:
    wait_for(gate)


@in_every_mode()
def decides(self: Any, gate: str, how: str) -> int:
    if self.request.retries:
        return int(self.request.retries)
    wait_for(gate)
    if how == "raise":
        raise ValueError("decided")
    if how == "retry":
        raise self.retry(countdown=0, exc=ValueError("decided"))
    return 42


@app.task(name="quick")
def quick() -> None:
    """Short tasks before it make a process lease and mark many at once."""


@app.task(name="assassin", bind=True)
def assassin(self: Any, whom: str, report: str) -> None:
    """Writes down what stands behind it, and kills its process or its whole worker.

    The broker's file is locked meanwhile, so that what is written down stays true until the end.
    """
    path = os.environ["UMBEL_BROKER_URL"].removeprefix("sqlite:///")
    broker = sqlite3.connect(path, timeout=10, isolation_level=None)
    broker.execute("BEGIN IMMEDIATE")
    owner, lease, begun, info = broker.execute(
        "SELECT o.n, l.lease, o.begin, r.info FROM lease l JOIN message m ON m.n = l.n"
        " JOIN owner o ON o.n = l.owner JOIN run r ON r.n = o.run WHERE m.id = ?",
        (self.request.id,),
    ).fetchone()
    behind = broker.execute(
        "SELECT m.id, l.lease <= ? FROM lease l JOIN message m ON m.n = l.n"
        " WHERE l.owner = ? AND l.lease > ?",
        (begun, owner, lease),
    ).fetchall()
    Path(report).write_text(json.dumps({task_id: bool(marked) for task_id, marked in behind}))
    run = json.loads(info)
    note("kill", self.request.id)
    if whom == "worker without a scoreboard":
        os.unlink(run["board"])
    if whom != "process":
        os.kill(run["pid"], signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


@in_every_mode()
def stands_by(self: Any) -> None:
    """Has no part in any death."""


if os.environ.get("TABLE_KNOWS_MORE"):

    @in_every_mode()
    def known_later(self: Any) -> int:
        return 42


# Signals.


def _mark(message: object) -> str:
    """The message's id; of what has none, its first bytes."""
    if isinstance(message, Message):
        return message.id or "no-id"
    raw: bytes = getattr(message, "raw", b"?")
    return raw[:50].decode("ascii", "replace").replace(" ", "_")


@signals.task_prerun.connect
def on_prerun(task_id: str, **_: object) -> None:
    note("task_prerun", task_id)


@signals.task_postrun.connect
def on_postrun(task_id: str, state: str, **_: object) -> None:
    note(f"task_postrun:{state}", task_id)


@signals.task_success.connect
def on_success(sender: Any, **_: object) -> None:
    note("task_success", sender.request.id)


@signals.task_retry.connect
def on_retry(request: Any, **_: object) -> None:
    note("task_retry", request.id)


@signals.task_failure.connect
def on_failure(task_id: str, exception: BaseException, **_: object) -> None:
    note(f"task_failure:{_kind(exception)}", task_id)


@signals.task_revoked.connect
def on_revoked(request: Any, terminated: bool, signum: int | None, expired: bool, **_: Any) -> None:
    number = None if signum is None else int(signum)
    note(f"task_revoked:{terminated}:{number}:{expired}", request.id)


@signals.task_unknown.connect
def on_unknown(name: str, id: str, **_: object) -> None:
    note(f"task_unknown:{name}", id)


@signals.task_rejected.connect
def on_rejected(message: object, exc: BaseException, **_: object) -> None:
    note(f"task_rejected:{_kind(exc)}", _mark(message))
