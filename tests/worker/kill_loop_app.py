"""The kill tests' tasks as coroutines, for the asyncio pool: many run when their process dies."""

from __future__ import annotations

import asyncio
import os

from tests.worker.kill_app import LOG, app

from umbel import Task
from umbel.request import Context
from umbel.testing import faults

for _name in ("early", "late", "late+reject", "again", "large"):
    del app.tasks[_name]


async def body(request: Context, seconds: float) -> int:
    faults.note(LOG, f"start\t{request.id}\t{os.getpid()}")
    faults.in_function(request.id or "")
    await asyncio.sleep(seconds)
    faults.note(LOG, f"end\t{request.id}\t{os.getpid()}")
    return os.getpid()


@app.task(name="early", bind=True)
async def early(self: Task[..., int], seconds: float = 0.0) -> int:
    return await body(self.request, seconds)


@app.task(name="late", bind=True, acks_late=True)
async def late(self: Task[..., int], seconds: float = 0.0) -> int:
    return await body(self.request, seconds)


@app.task(name="late+reject", bind=True, acks_late=True, reject_on_worker_lost=True)
async def late_reject(self: Task[..., int], seconds: float = 0.0) -> int:
    return await body(self.request, seconds)


@app.task(name="again", bind=True, acks_late=True, reject_on_worker_lost=True)
async def again(self: Task[..., int], times: int) -> int:
    """Ask for `times` retries, at once."""
    value = await body(self.request, 0.0)
    if self.request.retries < times:
        raise self.retry(countdown=0)
    return value


@app.task(name="large", bind=True)
async def large(self: Task[..., str], size: int) -> str:
    """An outcome that has no room on the scoreboard."""
    await body(self.request, 0.0)
    return "x" * size
