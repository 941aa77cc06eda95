"""Tasks for pools that run many at once: what is noted shows what ran beside what."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
import time
from pathlib import Path
from typing import Any

from tests.worker.live_app import POLL, hold_interpreter, note, wait_for

from umbel import Umbel, current_task, signals
from umbel.exceptions import SoftTimeLimitExceeded

app = Umbel("pools")
here: contextvars.ContextVar[str] = contextvars.ContextVar("here", default="nothing")


gates: dict[str, asyncio.Task[None]] = {}


async def opened(gate: str) -> None:
    """Thousands may wait for one file, so one looks."""

    async def look() -> None:
        while not Path(gate).exists():  # noqa: ASYNC110, ASYNC240 - it is made by another process
            await asyncio.sleep(POLL)

    if gate not in gates or gates[gate].get_loop() is not asyncio.get_running_loop():
        gates[gate] = asyncio.create_task(look())
    await asyncio.shield(gates[gate])


@app.task(name="threaded")
def threaded(tag: str, gate: str) -> list[int]:
    note("start", tag)
    wait_for(gate)
    note("end", tag)
    return [os.getpid(), threading.get_ident()]


@app.task(name="threaded_late", acks_late=True, reject_on_worker_lost=True)
def threaded_late(tag: str, gate: str) -> list[int]:
    return threaded(tag, gate)


@app.task(name="looped")
async def looped(tag: str, gate: str) -> list[int]:
    note("start", tag)
    await opened(gate)
    note("end", tag)
    return [os.getpid(), threading.get_ident()]


@app.task(name="looped_late", acks_late=True, reject_on_worker_lost=True)
async def looped_late(tag: str, gate: str) -> list[int]:
    return await looped(tag, gate)


@app.task(name="threaded_soft")
def threaded_soft(tag: str) -> str:
    note("start", tag)
    try:
        while True:
            time.sleep(POLL)
    except SoftTimeLimitExceeded:
        return "cleaned up"


@app.task(name="looped_soft")
async def looped_soft(tag: str) -> str:
    note("start", tag)
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        return "cleaned up"
    return "never"


@app.task(name="threaded_catch_all")
def threaded_catch_all(tag: str, gate: str) -> str:
    """Catches whatever is an `Exception`."""
    try:
        wait_for(gate)
    except Exception:
        return "caught"
    return "opened"


@app.task(name="looped_stubborn")
async def looped_stubborn(tag: str) -> None:
    """Takes no notice of its cancellation."""
    note("start", tag)
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            note("cancelled", tag)


@app.task(name="looped_block")
async def looped_block(tag: str, seconds: float) -> None:
    """What a coroutine shouldn't do."""
    note("start", tag)
    time.sleep(seconds)  # noqa: ASYNC251
    note("end", tag)


@app.task(name="looped_hold")
async def looped_hold(tag: str, seconds: float) -> None:
    note("start", tag)
    hold_interpreter(seconds)
    note("end", tag)


@app.task(name="threaded_hold")
def threaded_hold(tag: str, seconds: float) -> None:
    note("start", tag)
    hold_interpreter(seconds)
    note("end", tag)


@app.task(name="whoami", bind=True)
async def whoami(self: Any, tag: str, gate: str) -> list[Any]:
    """What a coroutine sees of itself before and after others ran."""
    before = [self.request.id, current_task.request.id, here.get()]
    here.set(tag)
    note("start", tag)
    await opened(gate)
    return [*before, self.request.id, current_task.request.id, here.get()]


@app.task(name="threaded_whoami", bind=True)
def threaded_whoami(self: Any, tag: str, gate: str) -> list[Any]:
    before = [self.request.id, current_task.request.id]
    note("start", tag)
    wait_for(gate)
    return [*before, self.request.id, current_task.request.id]


@app.task(name="marks")
def marks(tag: str) -> str:
    """What a context variable holds before and after this task sets it."""
    before = here.get()
    here.set(tag)
    return before


@app.task(name="marks_late")
async def marks_late(tag: str) -> str:
    return str(marks.run(tag))


@app.task(name="nap")
async def nap(seconds: float) -> int:
    await asyncio.sleep(seconds)
    return os.getpid()


@app.task(name="threaded_nap")
def threaded_nap(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


@app.task(name="counted", acks_late=True, reject_on_worker_lost=True)
async def counted(tag: str) -> int:
    note("start", tag)
    await asyncio.sleep(0.002)
    note("end", tag)
    return os.getpid()


@app.task(name="threaded_counted", acks_late=True, reject_on_worker_lost=True)
def threaded_counted(tag: str) -> int:
    note("start", tag)
    time.sleep(0.002)
    note("end", tag)
    return os.getpid()


@app.task(name="once")
async def once(tag: str) -> int:
    note("start", tag)
    await asyncio.sleep(0.002)
    return os.getpid()


@app.task(name="threaded_once")
def threaded_once(tag: str) -> int:
    note("start", tag)
    time.sleep(0.002)
    return os.getpid()


@app.task(name="add")
async def add(x: int, y: int) -> int:
    await asyncio.sleep(0)
    return x + y


@app.task(name="retrying", bind=True)
async def retrying(self: Any, tag: str) -> int:
    if self.request.retries < 2:
        raise self.retry(countdown=0)
    return int(self.request.retries)


@app.task(name="large")
async def large(size: int) -> str:
    return "x" * size


@app.task(name="to_nowhere", bind=True)
async def to_nowhere(self: Any) -> None:
    raise self.retry(countdown=0, exchange="nobody", routing_key="nobody")


@app.task(name="leaves")
async def leaves() -> None:
    raise SystemExit(3)


@app.task(name="threaded_leaves")
def threaded_leaves() -> None:
    raise SystemExit(3)


@app.task(name="cancels_itself")
async def cancels_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(1)


@signals.task_revoked.connect
def on_revoked(sender: Any = None, request: Any = None, **named: object) -> None:
    note(f"task_revoked:{named['terminated']}:{named['signum']}", request.id)


@signals.worker_process_init.connect
def on_process(**_: object) -> None:
    note("process")
