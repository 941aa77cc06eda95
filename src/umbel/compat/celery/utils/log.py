"""``celery.utils.log``."""

from __future__ import annotations

import logging
from typing import Final

from umbel.compat.kombu.log import LOG_LEVELS, get_loglevel
from umbel.compat.missing import guard
from umbel.tasklog import TASK_LOGGER, get_task_logger

__all__ = [
    "LOG_LEVELS",
    "base_logger",
    "get_logger",
    "get_task_logger",
    "mlevel",
    "task_logger",
    "worker_logger",
]

base_logger: Final = logging.getLogger("umbel")
worker_logger: Final = logging.getLogger("umbel.worker")
task_logger: Final = logging.getLogger(TASK_LOGGER)


def get_logger(name: str) -> logging.Logger:
    """The logger of this name, whose lines go where Umbel's own do."""
    return logging.getLogger(name)


def mlevel(level: int | str | None) -> int | None:
    """The level of ``"INFO"``; a number and None as they are. Raises `KeyError`."""
    return get_loglevel(level) if level is not None else None


guard(__name__)
