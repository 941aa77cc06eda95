"""Tasks whose every start and end is noted in a journal file, and a record of all signals.

The journal is named by the environment; its lines are ``what tag pid monotonic-seconds``.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import logging
import os
import signal
import time
from pathlib import Path
from typing import Any

from umbel import Umbel, signals
from umbel.exceptions import SoftTimeLimitExceeded

app = Umbel("live")
if "QUEUES" in os.environ:
    app.conf.task_queues = os.environ["QUEUES"].split(",")
app.conf.update(json.loads(os.environ.get("SETTINGS", "{}")))
POLL = 0.005


def note(what: str, tag: object = "-") -> None:
    """One whole line in one write, so that processes don't mix theirs."""
    line = f"{what} {tag} {os.getpid()} {time.monotonic()}\n"
    descriptor = os.open(os.environ["JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def hold_interpreter(seconds: float) -> None:
    """Sleep in C with the interpreter lock held: no other thread of this process runs, and no
    signal brings it back to Python before its time."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _is_open(gate: str) -> bool:
    return os.path.exists(gate)


def wait_for(gate: str) -> None:
    while not _is_open(gate):
        time.sleep(POLL)


@app.task(name="quick")
def quick(tag: str) -> int:
    note("start", tag)
    return os.getpid()


@app.task(name="gated")
def gated(tag: str, gate: str) -> int:
    note("start", tag)
    wait_for(gate)
    note("end", tag)
    return os.getpid()


@app.task(name="late_gated", acks_late=True)
def late_gated(tag: str, gate: str) -> int:
    return gated(tag, gate)


@app.task(name="late_nap", acks_late=True)
def late_nap(tag: str, seconds: float) -> int:
    note("start", tag)
    time.sleep(seconds)
    note("end", tag)
    return os.getpid()


@app.task(name="late_spin", acks_late=True)
def late_spin(tag: str, seconds: float) -> int:
    note("start", tag)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        pass
    note("end", tag)
    return os.getpid()


@app.task(name="late_hold", acks_late=True)
def late_hold(tag: str, seconds: float) -> int:
    note("start", tag)
    hold_interpreter(seconds)
    note("end", tag)
    return os.getpid()


@app.task(name="hold")
def hold(tag: str, seconds: float) -> int:
    return late_hold(tag, seconds)


@app.task(name="fail")
def fail(tag: str) -> None:
    note("start", tag)
    raise KeyError(tag)


@app.task(name="retrying", bind=True, max_retries=2)
def retrying(self: Any, tag: str) -> int:
    note("start", tag)
    if self.request.retries < 2:
        raise self.retry(countdown=0)
    return int(self.request.retries)


@app.task(name="retry_once", bind=True)
def retry_once(self: Any, tag: str) -> int:
    note("start", tag)
    if not self.request.retries:
        raise self.retry(countdown=0)
    return int(self.request.retries)


@app.task(name="stubborn")
def stubborn(tag: str, gate: str) -> int:
    """Takes no notice of SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return gated(tag, gate)


@app.task(name="soft")
def soft(tag: str, gate: str) -> str:
    """Says that its soft limit was reached."""
    note("start", tag)
    try:
        wait_for(gate)
    except SoftTimeLimitExceeded:
        note("soft", tag)
        return "cleaned up"
    return "not reached"


@app.task(name="tracked", track_started=True)
def tracked(tag: str, gate: str) -> int:
    return gated(tag, gate)


@app.task(name="loop_gated")
async def loop_gated(tag: str, gate: str) -> int:
    note("start", tag)
    try:
        while not _is_open(gate):  # noqa: ASYNC110 - the event is in another process
            await asyncio.sleep(POLL)
    except asyncio.CancelledError:
        note("cancelled", tag)
        raise
    return os.getpid()


@app.task(name="loop_fail")
async def loop_fail(tag: str) -> None:
    await asyncio.sleep(0)
    raise KeyError(tag)


@app.task(name="chatter")
def chatter(tag: str) -> None:
    print(f"printed by {tag}")
    logging.getLogger("shop").info("logged by %s", tag)


@app.task(name="prey", acks_late=True, reject_on_worker_lost=True)
def prey(tag: str, gate: str) -> int:
    """Kills its own process the first time it runs."""
    note("start", tag)
    if not Path(gate).exists():
        Path(gate).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()


class Strange(Exception):
    """Can't be made again from its arguments, nor can these be sent."""

    def __init__(self, tag: str, thing: object) -> None:
        super().__init__(tag, thing)


@app.task(name="strange")
def strange(tag: str, how: str) -> object:
    """Gives what no message can carry."""
    note("start", tag)
    if how == "raise":
        raise Strange(tag, object())
    if how == "raise text":  # such as a file name that isn't UTF-8 gives
        raise FileNotFoundError(f"no file \udc80{tag}")
    return {"rows": [1, 2, object()]} if how == "object" else "x" * 5_000_000


@signals.task_rejected.connect
def on_rejected(message: Any = None, exc: Any = None, **_: object) -> None:
    note("task_rejected", type(exc).__name__)


@signals.task_unknown.connect
def on_unknown(message: Any = None, exc: Any = None, name: str = "", **_: object) -> None:
    note("task_unknown", name)


@signals.task_failure.connect
def on_failure(sender: Any = None, task_id: str = "", exception: Any = None, **_: object) -> None:
    note(f"task_failure:{type(exception).__name__}", task_id)


@signals.task_revoked.connect
def on_revoked(sender: Any = None, request: Any = None, **named: object) -> None:
    note(f"task_revoked:{named['terminated']}:{named['signum']}", request.id)


@signals.worker_shutting_down.connect
def on_shutting_down(sig: str, how: str, exitcode: int, **_: object) -> None:
    note("worker_shutting_down", f"{sig}:{how}:{int(exitcode)}")


def _record(name: str) -> None:
    def receive(**_: object) -> None:
        note(name)

    getattr(signals, name).connect(receive, weak=False)


for _name in (
    "import_modules",
    "celeryd_init",
    "worker_init",
    "celeryd_after_setup",
    "worker_before_create_process",
    "worker_process_init",
    "worker_ready",
    "worker_process_shutdown",
    "worker_shutdown",
):
    _record(_name)


@app.task
def close_files(first: int) -> str:
    """As careless daemon code does: closes what it hasn't opened."""
    os.closerange(first, 4096)
    return "closed"
