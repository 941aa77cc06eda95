"""Umbel: a distributed task queue with Celery's API and wire format.

::

    from umbel import Umbel

    app = Umbel("tasks", broker="sqlite:///tasks.db")

    @app.task
    def add(x, y):
        return x + y

    add.delay(2, 3).get(timeout=10)      # with `umbel -A tasks worker` running
"""

from umbel.app import Umbel
from umbel.canvas import Signature, chain, chord, chunks, group, signature, xmap, xstarmap
from umbel.current import current_app, current_task
from umbel.result import AsyncResult
from umbel.shared import shared_task
from umbel.stamping import StampingVisitor
from umbel.task import Task
from umbel.tasklog import get_task_logger

Celery = Umbel

__version__ = "0.1.0"

__all__ = [
    "AsyncResult",
    "Celery",
    "Signature",
    "StampingVisitor",
    "Task",
    "Umbel",
    "__version__",
    "chain",
    "chord",
    "chunks",
    "current_app",
    "current_task",
    "get_task_logger",
    "group",
    "shared_task",
    "signature",
    "xmap",
    "xstarmap",
]
