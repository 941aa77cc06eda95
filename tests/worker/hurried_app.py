"""An app in which every task that comes before its time is revoked just after the worker has read
its message, and before it goes back."""

from __future__ import annotations

from umbel import Umbel
from umbel.message import Delivery
from umbel.outcome import End
from umbel.worker.execution import Execution
from umbel.worker.executor import Executor

app = Umbel("hurried")
shipped = Executor.prepare


def prepare(self: Executor, delivery: Delivery) -> Execution:
    execution = shipped(self, delivery)
    if execution.end is End.NOT_DUE:
        app.revoke([execution.request.id or ""])
    return execution


Executor.prepare = prepare  # type: ignore[method-assign]


@app.task(name="quick")
def quick(tag: str) -> str:
    return tag
