"""The app of the chaos: tasks that write down each start: ``start id try unix-seconds``."""

from __future__ import annotations

import os
import time

from umbel import Task, Umbel

app = Umbel("chaos", set_as_current=False)
FOREVER = 1_000_000
"""Redeliveries of a late task: here they are nobody's fault but ours."""


def note(what: str, task: Task[..., object]) -> None:
    """One whole line in one write, so that processes don't mix theirs."""
    line = f"{what} {task.request.id} {task.request.retries} {time.time()}\n"
    descriptor = os.open(os.environ["JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


@app.task(name="early", bind=True)
def early(self: Task[..., int], seconds: float) -> int:
    note("start", self)
    time.sleep(seconds)
    return os.getpid()


@app.task(
    name="late", bind=True, acks_late=True, reject_on_worker_lost=True, max_redeliveries=FOREVER
)
def late(self: Task[..., int], seconds: float) -> int:
    note("start", self)
    time.sleep(seconds)
    return os.getpid()


@app.task(
    name="again", bind=True, acks_late=True, reject_on_worker_lost=True, max_redeliveries=FOREVER
)
def again(self: Task[..., int], seconds: float) -> int:
    """A late task that asks for one retry."""
    note("start", self)
    time.sleep(seconds)
    if not self.request.retries:
        raise self.retry(countdown=0.1)
    return os.getpid()
