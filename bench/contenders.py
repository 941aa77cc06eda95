"""Who is measured, and what each promises: one row per configuration of a library.

Each library's tasks, and how it sends them, are in ``peers/<library>.py``, which runs in that
library's own environment; nothing of it is imported here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

PROCESSES: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One configuration. Commands are programs of its environment with their arguments."""

    name: str
    library: str
    guarantee: str
    """How often a task runs, and after a colon more of it."""
    worker: str
    """The documented command for production, with two worker processes."""
    napping: str = ""
    """The command for many tasks that wait, where that is another one."""
    keys: tuple[str, ...] = ()
    """Of Redis: the list or stream in which messages wait, and what else belongs to them."""
    results: str = ""
    """The hash that results lie in; each has a key of its own where there is none."""
    on_sqlite: bool = False
    has_hiredis: bool = False
    """Whether it is given hiredis, which its own installation doesn't bring. Umbel's does."""
    variant: str = ""
    """What the library's module in ``peers`` does differently."""
    processes: int = PROCESSES
    """Of those that run tasks."""
    share: float = 1.0
    """Of the number of tasks; slow ones get fewer, so that a run ends in time."""
    workloads: frozenset[str] = frozenset()
    """Those that it takes part in."""
    has_bulk: bool = False
    """Whether it can send several messages in one step."""
    stores: bool = True
    """Whether it can store results."""

    @property
    def environment(self) -> str:
        """Its name in `bench.environments`."""
        return self.library + ("+hiredis" if self.has_hiredis else "")

    @property
    def module(self) -> str:
        return "bench.floor" if self.library == "floor" else f"bench.peers.{self.library}"

    @property
    def delivery(self) -> str:
        return self.guarantee.partition(":")[0]


ALL: Final = frozenset({"drain", "enqueue", "roundtrip", "waiting", "memory", "start"})
_DRAIN: Final = frozenset({"drain"})

_UMBEL = Contender(
    name="umbel",
    library="umbel",
    guarantee="at most once, nothing is lost: a task whose worker dies ends as FAILURE and is kept "
    "in the dead letters",
    worker="umbel -A bench.peers.umbel worker -c 2",
    napping="umbel -A bench.peers.umbel worker -P asyncio -c 1000 --processes 2",
    keys=("celery",),
    has_bulk=True,
    workloads=ALL | {"million", "calls", "idle"},
)
_CELERY = Contender(
    name="celery",
    library="celery",
    guarantee="at least once: task_acks_late, task_reject_on_worker_lost; what a dead worker held "
    "comes back after the visibility timeout of an hour, and so does what runs longer",
    worker="celery -A bench.peers.celery worker -c 2",
    napping="celery -A bench.peers.celery worker -P threads -c 400",
    keys=("celery",),
    variant="late",
    has_bulk=True,
    share=0.25,
    workloads=ALL,
)
_DRAMATIQ = Contender(
    name="dramatiq",
    library="dramatiq",
    guarantee="at least once: what a dead worker held comes back after a minute",
    worker="dramatiq bench.peers.dramatiq --processes 2 --threads 8",
    napping="dramatiq bench.peers.dramatiq --processes 2 --threads 200",
    keys=("dramatiq:default", "dramatiq:default.msgs"),
    workloads=ALL,
)
_TASKIQ = Contender(
    name="taskiq",
    library="taskiq",
    guarantee="at least once: a stream, acknowledged when the result is saved; what a dead worker "
    "held comes back after 10 minutes, and so does what runs longer",
    worker="taskiq worker bench.peers.taskiq:broker --workers 2 --log-level WARNING",
    napping="taskiq worker bench.peers.taskiq:broker --workers 2 --log-level WARNING "
    "--max-async-tasks 1000",
    keys=("taskiq",),
    has_bulk=True,
    share=0.5,
    workloads=ALL - {"memory"},
)
_HUEY = Contender(
    name="huey",
    library="huey",
    guarantee="at most once: what a dead worker held is lost",
    worker="huey_consumer bench.peers.huey.huey -k process -w 2 -q",
    napping="huey_consumer bench.peers.huey.huey -k thread -w 400 -q",
    keys=("huey.redis.bench",),
    results="huey.results.bench",
    # Not in round trips: its default is to poll for a result, which takes 50 ms.
    workloads=ALL - {"roundtrip"},
)
_FLOOR = Contender(
    name="floor",
    library="floor",
    guarantee="none: the leases are in a hash that nobody looks after",
    worker="python -m bench.floor",
    keys=("floor",),
    has_bulk=True,
    stores=False,
    workloads=frozenset({"drain", "enqueue"}),
)

CONTENDERS: Final[Sequence[Contender]] = (
    _UMBEL,
    replace(
        _UMBEL,
        name="umbel-late",
        variant="late",
        guarantee="at least once: task_acks_late",
        workloads=frozenset({"drain", "roundtrip"}),
    ),
    replace(
        _UMBEL,
        name="umbel-info",
        worker=f"{_UMBEL.worker} -l INFO",
        workloads=_DRAIN,
    ),
    _CELERY,
    replace(
        _CELERY,
        name="celery-defaults",
        variant="",
        guarantee="at most once: what a dead worker ran is lost",
        workloads=_DRAIN,
    ),
    replace(
        _CELERY,
        name="celery-info",
        worker=f"{_CELERY.worker} -l INFO",
        workloads=_DRAIN,
    ),
    _DRAMATIQ,
    _TASKIQ,
    replace(
        _TASKIQ,
        name="taskiq-list",
        variant="list",
        guarantee="at most once: what a dead worker held is lost",
        workloads=_DRAIN,
    ),
    _HUEY,
    replace(
        _HUEY,
        name="huey-threads",
        worker="huey_consumer bench.peers.huey.huey -k thread -w 2 -q",
        processes=1,
        workloads=_DRAIN,
    ),
    replace(
        _HUEY,
        name="huey-notify",
        variant="notify",
        workloads=frozenset({"roundtrip"}),
    ),
    _FLOOR,
    replace(
        _FLOOR,
        name="floor-fuller",
        worker="python -m bench.floor --fuller",
        stores=True,
        workloads=_DRAIN,
    ),
    replace(
        _UMBEL,
        name="umbel-sqlite",
        on_sqlite=True,
        keys=(),
        workloads=frozenset({"drain", "enqueue", "together", "roundtrip", "idle"}),
    ),
    replace(
        _HUEY,
        name="huey-sqlite",
        variant="sqlite",
        on_sqlite=True,
        keys=(),
        share=0.25,
        workloads=frozenset({"drain", "enqueue"}),
    ),
)


def chosen(names: Sequence[str]) -> list[Contender]:
    """Those of these names, or of these libraries; raises `ValueError` for one that isn't there."""
    for name in names:
        if not any(name in (each.name, each.library) for each in CONTENDERS):
            known = ", ".join(each.name for each in CONTENDERS)
            raise ValueError(f"there is no peer {name!r}; there are: {known}")
    return [each for each in CONTENDERS if not names or {each.name, each.library} & set(names)]
