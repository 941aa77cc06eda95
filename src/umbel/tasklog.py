"""Log lines of tasks, which say whose they are."""

from __future__ import annotations

import logging
from typing import Final

from umbel.current import get_current_task

TASK_LOGGER: Final = "umbel.task"
_names: Final = {TASK_LOGGER}


def get_task_logger(name: str) -> logging.Logger:
    """The logger of a module with tasks: ``logger = get_task_logger(__name__)``.

    A worker writes its lines in `worker_task_log_format`, with the name and id of the task that
    runs. Its parent is the logger ``umbel.task``.
    """
    logger = logging.getLogger(name)
    if name != TASK_LOGGER:
        _names.add(name)
        logger.parent = logging.getLogger(TASK_LOGGER)
    return logger


class TaskFormatter(logging.Formatter):
    """Knows ``%(task_name)s`` and ``%(task_id)s``; ``???`` outside tasks."""

    def format(self, record: logging.LogRecord) -> str:
        task = get_current_task()
        known = task is not None and task.request.id is not None
        record.task_id = task.request.id if task is not None and known else "???"
        record.task_name = task.name if task is not None and known else "???"
        return super().format(record)


class WorkerFormatter(logging.Formatter):
    """The worker's format, and for the lines of task loggers the tasks'."""

    def __init__(
        self, format: str, datefmt: str | None, task_format: str, task_datefmt: str | None
    ) -> None:
        super().__init__(format, datefmt)
        self._tasks = TaskFormatter(task_format, task_datefmt)

    def format(self, record: logging.LogRecord) -> str:
        return self._tasks.format(record) if record.name in _names else super().format(record)
