"""What a worker is started with, worked out once from the command line and the settings."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from enum import IntEnum
from typing import Final


class ExitCode(IntEnum):
    """How a worker process ends. 64 and above are the system's conventional meanings."""

    OK = 0
    INTERRUPTED = 1
    """A warm stop that was asked for by SIGINT, as in Celery; also a second hard interrupt."""
    USAGE = 64
    UNAVAILABLE = 69
    """The broker can't be reached."""
    SOFTWARE = 70
    """A fault in Umbel itself ended a process."""
    UNSETTLED = 74
    """Stopped while the broker was away: what was decided waits on the scoreboard."""
    RUN_LOST = 75
    """The run was taken for dead and couldn't start again by itself."""
    CONFIG = 78


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """The options of ``umbel worker``. None leaves the choice to the settings.

    `queues` are taken from, all the app's queues where there are none named; `exclude_queues`
    are left out. `time_limit` and `soft_time_limit` are in seconds. `loglevel` is a name or a
    number of `logging`.
    """

    hostname: str | None = None
    """May hold %h (host name), %n (name part), %d (domain part); default ``umbel@%h``."""
    pool: str | None = None
    concurrency: int | None = None
    """Tasks that run at once: processes of prefork; threads or coroutines in each process."""
    processes: int | None = None
    """Pool processes of the pools threads and asyncio."""
    queues: tuple[str, ...] = ()
    exclude_queues: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    loglevel: str | int = "WARNING"
    logfile: str | None = None
    max_tasks_per_child: int | None = None
    max_memory_per_child: int | None = None
    """In KiB."""
    time_limit: float | None = None
    soft_time_limit: float | None = None
    prefetch_multiplier: int | None = None
    purge: bool = False
    started_in: str | None = None
    """The working directory in which the command line makes sense; default the present one."""


LOOP_CONCURRENCY: Final = 100
"""Tasks at once of an asyncio pool, unless told otherwise."""


@dataclass(frozen=True, slots=True)
class PoolSize:
    """How many processes a pool has, and how many tasks run at once in each."""

    processes: int
    lanes: int

    @classmethod
    def of(cls, pool: str, concurrency: int | None, processes: int) -> PoolSize:
        """From the options of these names; `concurrency` None is the pool's default."""
        match pool:
            case "solo":
                return cls(1, 1)
            case "threads":
                return cls(processes, concurrency or usable_processors())
            case "asyncio":
                return cls(processes, concurrency or LOOP_CONCURRENCY)
            case _:
                return cls(concurrency or usable_processors(), 1)

    def __str__(self) -> str:
        if self.lanes == 1:
            return f"{self.processes} processes"
        return f"{self.processes} processes of {self.lanes} tasks at once"


def node_name(pattern: str | None) -> str:
    """A worker's name: ``-n`` with its placeholders filled in, ``umbel@host`` by default."""
    host = socket.gethostname()
    name, _, domain = host.partition(".")
    text = pattern or "umbel@%h"
    if "@" not in text:
        text += "@%h"
    for placeholder, value in (("%h", host), ("%n", name), ("%d", domain), ("%%", "%")):
        text = text.replace(placeholder, value)
    return text


def usable_processors() -> int:
    """How many processors this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)) or 1
    return os.cpu_count() or 1
