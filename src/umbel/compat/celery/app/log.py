"""``celery.app.log``."""

from __future__ import annotations

from umbel import tasklog
from umbel.compat.missing import guard

__all__ = ["TaskFormatter"]


class TaskFormatter(tasklog.TaskFormatter):
    """Knows ``%(task_name)s`` and ``%(task_id)s``; it writes no colours."""

    def __init__(self, fmt: str | None = None, use_color: bool = True) -> None:
        super().__init__(fmt)


guard(__name__)
