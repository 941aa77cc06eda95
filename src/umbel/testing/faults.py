"""Real deaths at named points: SIGKILL to a running worker's process, or to the whole worker.

The module of the app under test calls `kill_at` while `umbel worker` imports it. That wraps the
shipped functions around a point in this worker's processes, from outside; at every n-th passage
of a process one kill is noted in a file and then done. What is left is judged by the test::

    faults.kill_at(Point.DECIDED, Target.PROCESS, every=20, log=path)

The points, in the order in which a delivery passes them:

=================  ===========================================================================
``fetched``        the turn that leased it has been committed
``before inbox``   its pool process knows it, and hasn't handed it to the thread that executes
``begun``          marked as begun, and handed out; not started
``started``        the scoreboard says that it runs
``function``       in the task's body, where that calls `in_function`
``returned``       returned; its outcome isn't on the scoreboard yet
``decided``        its outcome is on the scoreboard
``ended``          the scoreboard says that it has ended
``before store``   a result store of its own doesn't have the result yet
``after store``    … has it; the broker doesn't know yet
``before turn``    the turn that settles it hasn't begun
``in turn``        that turn's transaction is open, at its COMMIT
``after turn``     it is committed
=================  ===========================================================================

and those of whoever acts for a dead, slow or leaving process:

=================  ===========================================================================
``enlisted``       a new pool process is known to the broker, and hasn't fetched
``giving back``    a pool process has forbidden itself to start what stands behind a long task
``forbidden``      the supervisor has forbidden it, and hasn't told the broker
``freed``          … has told the broker
``before abandon`` what a dead process held is still its own
``in abandon``     the transaction that ends its owner is at its COMMIT
``after abandon``  the owner has ended; the scoreboard still shows it
``before leave``   a run has nothing more, and the broker still knows it
``after leave``    the broker has forgotten the run
=================  ===========================================================================

Broker points are passed where the driver is the one that `kill_at` is told of; those at a COMMIT
(``in turn``, ``in abandon``) are SQLite's alone.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import Any, Final, NoReturn

from umbel.brokers.sqlite import SqliteBroker
from umbel.message import Message
from umbel.ports import Turn
from umbel.stores.sqlite import SqliteStore
from umbel.worker import undertaker
from umbel.worker.consumer import Consumer
from umbel.worker.desk import Desk
from umbel.worker.scoreboard import Slot


class Point(StrEnum):
    """Where a kill can fall; see the module's tables."""

    FETCHED = "fetched"
    BEFORE_INBOX = "before inbox"
    BEGUN = "begun"
    STARTED = "started"
    FUNCTION = "function"
    RETURNED = "returned"
    DECIDED = "decided"
    ENDED = "ended"
    BEFORE_STORE = "before store"
    AFTER_STORE = "after store"
    BEFORE_TURN = "before turn"
    IN_TURN = "in turn"
    AFTER_TURN = "after turn"
    ENLISTED = "enlisted"
    GIVING_BACK = "giving back"
    FORBIDDEN = "forbidden"
    FREED = "freed"
    BEFORE_ABANDON = "before abandon"
    IN_ABANDON = "in abandon"
    AFTER_ABANDON = "after abandon"
    BEFORE_LEAVE = "before leave"
    AFTER_LEAVE = "after leave"


class Target(StrEnum):
    """Who is killed: the pool process that passes, or the supervisor and with it all."""

    PROCESS = "process"
    WORKER = "worker"


@dataclass(frozen=True, slots=True)
class Kill:
    """One line of the log: `victim` is a process id, `ids` the tasks that were at the point."""

    point: Point
    target: Target
    victim: int
    ids: tuple[str, ...]

    @property
    def line(self) -> str:
        return "\t".join(["kill", self.point, self.target, str(self.victim), *self.ids])

    @classmethod
    def read(cls, line: str) -> Kill | None:
        """The kill that a line of the log tells of; None for other lines."""
        word, *rest = line.split("\t")
        if word != "kill":
            return None
        point, target, victim, *ids = rest
        return cls(Point(point), Target(target), int(victim), tuple(ids))


class Fault:
    """Counts the passages of one point in this process, and kills at every n-th."""

    def __init__(
        self, point: Point, target: Target, every: int, most: int, log: Path, driver: type[Any]
    ) -> None:
        self.point = point
        self.driver = driver
        self._target = target
        self._every = every
        self._most = most
        self._log = log
        self._supervisor = os.getpid()
        self._passages = 0

    def passed_in_pool(self, ids: Iterable[str] = ()) -> None:
        """A passage of a pool process; of others it is none."""
        if os.getpid() != self._supervisor:
            self._passed(ids)

    def passed_in_supervisor(self, ids: Iterable[str] = ()) -> None:
        """A passage of the supervisor; there the whole worker is the only target."""
        if os.getpid() == self._supervisor:
            self._passed(ids)

    def _passed(self, ids: Iterable[str]) -> None:
        self._passages += 1
        if self._passages % self._every == 0 and len(self._kills()) < self._most:
            self._kill(tuple(ids))

    def _kills(self) -> list[Kill]:
        kills = kills_in(self._log) if self._log.exists() else []
        return [kill for kill in kills if kill.point == self.point]

    def _kill(self, ids: tuple[str, ...]) -> NoReturn:
        victim = os.getpid() if self._target is Target.PROCESS else self._supervisor
        note(self._log, Kill(self.point, self._target, victim, ids).line)
        os.kill(victim, signal.SIGKILL)
        while True:  # the death of the supervisor is on its way to this process
            time.sleep(1)


def note(log: Path, line: str) -> None:
    """Append one line, whole, whoever else writes and dies."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, f"{line}\n".encode())
    finally:
        os.close(descriptor)


def kills_in(log: Path) -> list[Kill]:
    """All kills that a log tells of, in their order."""
    return [kill for line in log.read_text().splitlines() if (kill := Kill.read(line)) is not None]


def kill_at(
    point: Point,
    target: Target,
    *,
    every: int,
    log: Path,
    most: int = sys.maxsize,
    driver: type[Any] = SqliteBroker,
) -> None:
    """From now on, kill at every `every`-th passage that a process makes of `point`, at most
    `most` times in all; to be called once per point, in the worker's first process. `driver` is
    the class of the worker's broker."""
    fault = Fault(point, target, every, most, log, driver)
    _PLACES[point](fault)


_in_function: list[Fault] = []


def in_function(task_id: str) -> None:
    """A task's body passes `Point.FUNCTION`."""
    for fault in _in_function:
        fault.passed_in_pool([task_id])


# Where the points are.

Place = Callable[[Fault], None]
Passed = Callable[..., object]


def _around(
    owner: Any, name: str, *, before: Passed | None = None, after: Passed | None = None
) -> None:
    """Wrap `owner.name`: `before` gets its arguments, `after` its return value and arguments."""
    shipped = getattr(owner, name)

    @wraps(shipped)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if before is not None:
            before(*args, **kwargs)
        value = shipped(*args, **kwargs)
        if after is not None:
            after(value, *args, **kwargs)
        return value

    setattr(owner, name, wrapped)


def _fetched(fault: Fault) -> None:
    def after(reply: Turn, *_: object, **__: object) -> None:
        if reply.deliveries:
            fault.passed_in_pool(_ids(reply))

    _around(fault.driver, "turn", after=after)


def _before_inbox(fault: Fault) -> None:
    def before(_: Consumer, reply: Turn, __: int) -> None:
        if reply.deliveries:
            fault.passed_in_pool(_ids(reply))

    _around(Consumer, "_hand_out", before=before)


def _begun(fault: Fault) -> None:
    def before(_: Slot, __: int, ___: int, texts: Sequence[str], *____: object) -> None:
        fault.passed_in_pool(texts[:1])

    _around(Slot, "start", before=before)


def _started(fault: Fault) -> None:
    def after(_: None, __: Slot, ___: int, ____: int, texts: Sequence[str], *_____: object) -> None:
        fault.passed_in_pool(texts[:1])

    _around(Slot, "start", after=after)


def _returned(fault: Fault) -> None:
    def before(slot: Slot, _: int, lease: int, *__: object) -> None:
        fault.passed_in_pool(_running(slot, lease))

    _around(Slot, "decide", before=before)


def _decided(fault: Fault) -> None:
    def after(kept: bool, slot: Slot, _: int, lease: int, *__: object) -> None:
        if kept:
            fault.passed_in_pool(_running(slot, lease))

    _around(Slot, "decide", after=after)


def _ended(fault: Fault) -> None:
    ids: list[str] = []

    def before(slot: Slot, _: int, lease: int) -> None:
        ids[:] = _running(slot, lease)

    _around(Slot, "end", before=before, after=lambda *_: fault.passed_in_pool(ids))


def _before_store(fault: Fault) -> None:
    def before(_: SqliteStore, results: Sequence[Any]) -> None:
        fault.passed_in_pool(result.task_id for result in results)

    _around(SqliteStore, "put", before=before)


def _after_store(fault: Fault) -> None:
    def after(_: None, __: SqliteStore, results: Sequence[Any]) -> None:
        fault.passed_in_pool(result.task_id for result in results)

    _around(SqliteStore, "put", after=after)


def _before_turn(fault: Fault) -> None:
    def before(*_: object, settlements: Sequence[Any] = (), **__: object) -> None:
        if settlements:
            fault.passed_in_pool(_settled(settlements))

    _around(fault.driver, "turn", before=before)


def _after_turn(fault: Fault) -> None:
    def after(*_: object, settlements: Sequence[Any] = (), **__: object) -> None:
        if settlements:
            fault.passed_in_pool(_settled(settlements))

    _around(fault.driver, "turn", after=after)


def _in_turn(fault: Fault) -> None:
    shipped = SqliteBroker.turn

    @wraps(shipped)
    def turn(self: SqliteBroker, *args: Any, **kwargs: Any) -> Turn:
        settlements = kwargs.get("settlements", ())
        if not settlements:
            return shipped(self, *args, **kwargs)
        ids = _settled(settlements)
        with _AtCommit(self, lambda: fault.passed_in_pool(ids)):
            return shipped(self, *args, **kwargs)

    SqliteBroker.turn = turn  # type: ignore[method-assign]


def _in_abandon(fault: Fault) -> None:
    shipped = SqliteBroker.abandon

    @wraps(shipped)
    def abandon(self: SqliteBroker, *args: Any, **kwargs: Any) -> None:
        with _AtCommit(self, fault.passed_in_supervisor):
            shipped(self, *args, **kwargs)

    SqliteBroker.abandon = abandon  # type: ignore[method-assign]


class _AtCommit:
    """Within it, `passed` is called before each COMMIT of this process's broker file."""

    def __init__(self, broker: SqliteBroker, passed: Callable[[], None]) -> None:
        self._database = broker.database
        self._passed = passed

    def __enter__(self) -> None:
        self._database.set_trace(self._look)

    def __exit__(self, *_: object) -> None:
        self._database.set_trace(None)

    def _look(self, statement: str) -> None:
        if statement == "COMMIT":
            self._passed()


def _giving_back(fault: Fault) -> None:
    def after(given_back: range, _: Desk) -> None:
        if given_back:
            fault.passed_in_pool()

    _around(Desk, "give_back", after=after)


def _forbidden(fault: Fault) -> None:
    def after(forbidden: bool, *_: object) -> None:
        if forbidden:
            fault.passed_in_supervisor()

    _around(undertaker, "forbid_behind", after=after)


def _freed(fault: Fault) -> None:
    _around(fault.driver, "turn", after=lambda *_, **__: fault.passed_in_supervisor())


def _enlisted(fault: Fault) -> None:
    _around(fault.driver, "enlist", after=lambda *_: fault.passed_in_pool())


def _before(name: str) -> Place:
    def place(fault: Fault) -> None:
        _around(fault.driver, name, before=lambda *_, **__: fault.passed_in_supervisor())

    return place


def _after(name: str) -> Place:
    def place(fault: Fault) -> None:
        _around(fault.driver, name, after=lambda *_, **__: fault.passed_in_supervisor())

    return place


_PLACES: Final[dict[Point, Place]] = {
    Point.FETCHED: _fetched,
    Point.BEFORE_INBOX: _before_inbox,
    Point.BEGUN: _begun,
    Point.STARTED: _started,
    Point.FUNCTION: _in_function.append,
    Point.RETURNED: _returned,
    Point.DECIDED: _decided,
    Point.ENDED: _ended,
    Point.BEFORE_STORE: _before_store,
    Point.AFTER_STORE: _after_store,
    Point.BEFORE_TURN: _before_turn,
    Point.IN_TURN: _in_turn,
    Point.AFTER_TURN: _after_turn,
    Point.ENLISTED: _enlisted,
    Point.GIVING_BACK: _giving_back,
    Point.FORBIDDEN: _forbidden,
    Point.FREED: _freed,
    Point.BEFORE_ABANDON: _before("abandon"),
    Point.IN_ABANDON: _in_abandon,
    Point.AFTER_ABANDON: _after("abandon"),
    Point.BEFORE_LEAVE: _before("leave"),
    Point.AFTER_LEAVE: _after("leave"),
}


def _ids(reply: Turn) -> list[str]:
    return [
        delivery.message.id
        for delivery in reply.deliveries
        if isinstance(delivery.message, Message)
    ]


def _settled(settlements: Sequence[Any]) -> list[str]:
    """The ids of those that store a result in the same step."""
    return [each.result.task_id for each in settlements if each.result is not None]


def _running(slot: Slot, lease: int) -> list[str]:
    return [each.task_id for each in slot.running() if each.lease == lease]
