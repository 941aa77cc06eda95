"""Tasks to be linked and chained, with a journal of their runs.

A line is ``what tag pid monotonic-seconds``. ``UMBEL_TEST_LOG`` and ``UMBEL_TEST_KILLS`` are
those of `kill_app`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from umbel import Umbel
from umbel.exceptions import BackendStoreError, Ignore, Reject
from umbel.message import Result
from umbel.stores.sqlite import SqliteStore
from umbel.testing import faults

app = Umbel("chained", set_as_current=False)


def note(what: str, tag: object) -> None:
    line = f"{what} {tag} {os.getpid()} {time.monotonic()}\n"
    descriptor = os.open(os.environ["JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def step(task: Any, x: int, y: int) -> int:
    note(task.name, task.request.root_id)
    faults.in_function(task.request.id)
    return x + y


@app.task(name="add", bind=True)
def add(self: Any, x: int, y: int = 0) -> int:
    return step(self, x, y)


@app.task(name="late", bind=True, acks_late=True, reject_on_worker_lost=True)
def late(self: Any, x: int, y: int = 0) -> int:
    return step(self, x, y)


@app.task(name="again", bind=True)
def again(self: Any, x: int) -> int:
    """Succeeds on its second try."""
    if not self.request.retries:
        raise self.retry(countdown=0)
    return step(self, x, 1)


@app.task(name="fail", bind=True)
def fail(self: Any, *args: object, kind: str = "KeyError") -> None:
    note("fail", self.request.root_id)
    if kind == "ignore":
        raise Ignore
    if kind == "reject":
        raise Reject("no")
    if kind == "exit":
        os._exit(3)
    raise KeyError("broken")


@app.task(name="lineage", bind=True)
def lineage(self: Any, *args: object) -> list[str | None]:
    return [self.request.root_id, self.request.parent_id]


@app.task(name="told", bind=True)
def told(self: Any, task_id: str) -> str:
    """An error callback that is sent."""
    note("told", task_id)
    return task_id


@app.task(name="called")
def called(request: Any, exc: BaseException, traceback: str) -> None:
    """An error callback that is called in the worker."""
    assert traceback is None or type(exc).__name__ in traceback
    note(f"called:{type(exc).__name__}", request.id)


@app.task(name="raising")
def raising(request: Any, exc: BaseException, traceback: str) -> None:
    raise RuntimeError("an error callback's own")


@app.task(name="quiet", bind=True, trail=False)
def quiet(self: Any) -> int:
    return 1


if "REFUSE_RESULT" in os.environ:
    shipped = SqliteStore.put

    def put(self: SqliteStore, results: Sequence[Result]) -> None:
        """Refuse for good a SUCCESS of this value."""
        wanted = f'"result":{os.environ["REFUSE_RESULT"]},'.encode()
        if any(wanted in each.meta.replace(b": ", b":") for each in results):
            raise BackendStoreError("this store doesn't like it")
        shipped(self, results)

    SqliteStore.put = put  # type: ignore[method-assign]

for fault in json.loads(os.environ.get("UMBEL_TEST_KILLS", "[]")):
    faults.kill_at(
        faults.Point(fault.pop("point")),
        faults.Target(fault.pop("target")),
        log=Path(os.environ["UMBEL_TEST_LOG"]),
        **fault,
    )
