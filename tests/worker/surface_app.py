"""An app with what few use: replacing, hooks of forks, queues chosen by the program."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from umbel import Task, Umbel, signature

app = Umbel("surface", set_as_current=False)
app.select_queues(["celery", "second"])
forked: list[int] = []


@app.on_after_fork.connect
def note_fork(sender: object, **_: object) -> None:
    forked.append(os.getpid())


@app.task(name="forks")
def forks() -> tuple[int, list[int]]:
    return os.getpid(), list(forked)


@app.task(name="add")
def add(x: int, y: int) -> int:
    return x + y


@app.task(name="fails")
def fails(*_: int) -> None:
    raise ValueError("it can't be done")


@app.task(name="seen", bind=True)
def seen(self: Any, *_: int) -> dict[str, Any]:
    request = self.request
    return {
        "id": request.id,
        "root": request.root_id,
        "nesting": request.replaced_task_nesting,
        "stamps": request.stamps,
        "stamped_headers": request.stamped_headers,
        "args": request.args,
    }


class Logged(Task[..., Any]):
    """What many classes of Celery programs do around each execution."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs)


@app.task(name="second_time", bind=True, base=Logged, max_retries=1)
def second_time(self: Any) -> Any:
    if not self.request.retries:
        raise self.retry(countdown=0)
    return self.request.id


@app.task(name="starts")
def starts() -> Any:
    return add.delay(1, 2)


@app.task(name="replaced", bind=True)
def replaced(self: Any, names: list[str]) -> Any:
    """Replaced by the chain of the tasks of these names."""
    steps = [signature(name, app=app) for name in names]
    chained = steps[0].clone((1, 2))
    for step in steps[1:]:
        chained = chained | step.clone((10,))
    return self.replace(chained)


@app.task(name="awaited", bind=True)
async def awaited(self: Any, depth: int) -> Any:
    await asyncio.sleep(0)
    return self.replace(awaited.s(depth - 1) if depth else seen.s())


@app.task(name="nested", bind=True, acks_late=True)
def nested(self: Any, depth: int) -> Any:
    raise self.replace(nested.s(depth - 1) if depth else seen.s())
