"""Tasks that do to their pool what tasks shouldn't."""

from __future__ import annotations

import asyncio
import logging
import time

from tests.worker.live_app import POLL, wait_for

from umbel import Task, Umbel

app = Umbel("misuse")
KINDS = {
    kind.__name__: kind
    for kind in (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, BaseException)
}


left: list[asyncio.Task[None]] = []


class Unreadable(Exception):
    """Has no text, and ends who asks for it."""

    def __str__(self) -> str:
        raise KINDS[self.args[0]]("no text")

    __repr__ = __str__


class Unstorable:
    """Can't be written as JSON, and ends who tries."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __json__(self) -> object:
        raise KINDS[self.kind]("no data")


class Handled(Task[..., object]):
    def on_success(self, _value: object, _id: str, args: list[str], _kwargs: object) -> None:
        raise KINDS[args[0]]("a handler's")


@app.task(name="raises")
def raises(kind: str) -> None:
    raise Unreadable(kind)


@app.task(name="looped_raises")
async def looped_raises(kind: str) -> None:
    raise Unreadable(kind)


@app.task(name="returns")
def returns(kind: str) -> object:
    return Unstorable(kind)


@app.task(name="looped_returns")
async def looped_returns(kind: str) -> object:
    return Unstorable(kind)


@app.task(name="handled", base=Handled)
def handled(kind: str) -> str:
    return kind


@app.task(name="looped_handled", base=Handled)
async def looped_handled(kind: str) -> str:
    return kind


@app.task(name="add")
async def add(x: int, y: int) -> int:
    await asyncio.sleep(0)
    return x + y


@app.task(name="endless")
def endless() -> None:
    while True:
        time.sleep(POLL)


@app.task(name="unloggable")
def unloggable() -> str:
    return "unloggable"


@app.task(name="looped_unloggable")
async def looped_unloggable() -> str:
    return "unloggable"


@app.task(name="leaves_behind")
async def leaves_behind() -> None:
    """A coroutine that takes no notice of its cancellation, and a thread."""

    async def stubborn() -> None:
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                continue

    left.append(asyncio.create_task(stubborn()))
    asyncio.get_running_loop().run_in_executor(None, time.sleep, 3600)


@app.task(name="fills_the_executor")
async def fills_the_executor(gate: str) -> None:
    for _ in range(100):
        asyncio.get_running_loop().run_in_executor(None, wait_for, gate)


@app.task(name="tracked", track_started=True)
async def tracked() -> str:
    return "tracked"


@app.task(name="stops_its_loop")
async def stops_its_loop() -> None:
    asyncio.get_running_loop().stop()
    await asyncio.sleep(3600)


@app.task(name="closes_the_current_loop")
def closes_the_current_loop() -> None:
    asyncio.get_event_loop_policy().get_event_loop().close()


@app.task(name="cancelled_at_the_end")
async def cancelled_at_the_end(size: int) -> str:
    """More than the scoreboard holds is settled before the task counts as ended."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    return "x" * size


def _fails(record: logging.LogRecord) -> bool:
    """A filter with a fault of its own, where it meets the end of a task."""
    text = record.getMessage()
    if "unloggable" in text and ("succeeded" in text or "told" in text):
        raise RuntimeError(text)
    return True


logging.getLogger("umbel.worker").addFilter(_fails)
