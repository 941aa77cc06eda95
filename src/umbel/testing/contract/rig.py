"""What the contract suites stand on: a driver under virtual time, and owners that take turns."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Protocol

import pytest
from msgspec.structs import replace

from umbel.clock import SYSTEM, Clock, ManualClock
from umbel.message import Dead, Delivery, How, Loss, Lost, Message, Posting, Result, Settlement
from umbel.ports import (
    Broker,
    BrokerOptions,
    Coordinator,
    DeadLetter,
    Inspector,
    Leased,
    Location,
    QueueStats,
    Turn,
)

QUEUE = "work"
OTHER = "other"
PATIENCE = 20.0
"""Seconds after which a test that polls gives up; reached only by a test that fails."""


class Driver(Broker, Coordinator, Inspector, Protocol):
    """What one driver object of a database is: three ports at once."""


Connect = Callable[[Path, BrokerOptions, Clock], Driver]


def message(task_id: str, *, task: str = "tasks.add", body: bytes = b"[[],{},{}]") -> Message:
    """A small message of protocol 2."""
    return Message(
        body=body,
        content_encoding="utf-8",
        content_type="application/json",
        headers={"id": task_id, "task": task, "lang": "py", "retries": 0},
        properties={"correlation_id": task_id, "delivery_mode": 2},
    )


def posting(
    task_id: str, queue: str = QUEUE, *, priority: int = 0, due_at: float | None = None
) -> Posting:
    return Posting(message(task_id), routing_key=queue, priority=priority, due_at=due_at)


def ids(deliveries: Sequence[Delivery]) -> list[str]:
    """The task ids, in the order of handing out."""
    return [id_of(delivery) for delivery in deliveries]


def id_of(delivery: Delivery) -> str:
    assert isinstance(delivery.message, Message)
    return delivery.message.id


def eventually(condition: Callable[[], bool], limit: float = PATIENCE) -> None:
    """Poll until `condition` holds; fail after `limit` seconds."""
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, "what the test waits for never came"
        time.sleep(0.001)


class Hand:
    """One owner: counts its turns, and settles in one word."""

    def __init__(self, driver: Driver, name: str) -> None:
        self.driver = driver
        self.name = name
        self.number = 0

    def turn(
        self,
        *settlements: Settlement,
        queues: Sequence[str] = (QUEUE,),
        begin: int = 0,
        limit: int = 0,
        lost_only: bool = False,
    ) -> Turn:
        """The next turn."""
        self.number += 1
        return self.again(
            *settlements, queues=queues, begin=begin, limit=limit, lost_only=lost_only
        )

    def again(
        self,
        *settlements: Settlement,
        queues: Sequence[str] = (QUEUE,),
        begin: int = 0,
        limit: int = 0,
        lost_only: bool = False,
    ) -> Turn:
        """The last turn once more, as after a reply that was lost."""
        return self.driver.turn(
            self.name,
            self.number,
            queues=queues,
            settlements=settlements,
            begin=begin,
            limit=limit,
            lost_only=lost_only,
        )

    def take(self, limit: int = 100, *queues: str, begin: int = 0) -> tuple[Delivery, ...]:
        return self.turn(queues=queues or (QUEUE,), limit=limit, begin=begin).deliveries

    def take_one(self, *queues: str) -> Delivery:
        """The one next delivery; fails where there is none."""
        deliveries = self.take(1, *queues)
        assert len(deliveries) == 1, "nothing was handed out"
        return deliveries[0]

    def ack(
        self,
        delivery: Delivery,
        *follow_ups: Posting,
        dead: Dead | None = None,
        result: Result | None = None,
    ) -> Turn:
        return self.turn(Settlement(delivery.lease, How.ACK, follow_ups, dead, result))

    def reject(self, delivery: Delivery, dead: Dead | None = None) -> Turn:
        return self.turn(Settlement(delivery.lease, How.REJECT, dead=dead))

    def requeue(self, delivery: Delivery, note: str = "") -> Turn:
        return self.turn(Settlement(delivery.lease, How.REQUEUE, note=note))

    def release(
        self,
        delivery: Delivery,
        *,
        delay: float = 0.0,
        unknown: bool = False,
        redelivered: bool = False,
    ) -> Turn:
        return self.turn(
            Settlement(
                delivery.lease, How.RELEASE, delay=delay, unknown=unknown, redelivered=redelivered
            )
        )

    def bury_as_dead(self, delivery: Delivery, reason: str = "it failed") -> Turn:
        return self.ack(delivery, dead=Dead(reason, "ValueError"))

    def abandon(
        self,
        *,
        decided: Sequence[Settlement] = (),
        running: Sequence[int] = (),
        lost: Lost | None = None,
    ) -> None:
        reason = lost or Lost(Loss.PROCESS, f"pool process {self.name} died")
        self.driver.abandon(self.name, decided=decided, running=dict.fromkeys(running, reason))

    @property
    def held(self) -> frozenset[int]:
        return self.driver.held(self.name)


@dataclass
class Rig:
    """A fresh storage, a clock, and one open driver on it with two declared queues."""

    connect: Connect
    where: Path
    clock: Clock
    options: BrokerOptions = field(default_factory=BrokerOptions)
    opened: list[Driver] = field(default_factory=list)
    driver: Driver = field(init=False)
    _serial: Iterator[int] = field(default_factory=lambda: count(1000))

    def __post_init__(self) -> None:
        self.driver = self.another()
        self.driver.declare([QUEUE, OTHER])

    def another(self, options: BrokerOptions | None = None) -> Driver:
        """One more driver object on the same storage, as another process would have."""
        driver = self.connect(self.where, options or self.options, self.clock)
        driver.open()
        self.opened.append(driver)
        return driver

    def close(self) -> None:
        for driver in self.opened:
            driver.close()

    @property
    def now(self) -> float:
        return self.clock.wall()

    @property
    def manual(self) -> ManualClock:
        assert isinstance(self.clock, ManualClock)
        return self.clock

    def publish(
        self,
        *task_ids: str,
        queue: str = QUEUE,
        priority: int = 0,
        due_at: float | None = None,
    ) -> None:
        self.driver.publish(
            [posting(task_id, queue, priority=priority, due_at=due_at) for task_id in task_ids]
        )

    def hand(
        self, run: str = "run", number: int = 1, *, info: bytes = b"", driver: Driver | None = None
    ) -> Hand:
        """Enlist ``<run>#<number>``."""
        driver = driver or self.driver
        name = f"{run}#{number}"
        driver.enlist(run, name, info)
        return Hand(driver, name)

    def fresh_hand(self, run: str) -> Hand:
        """An owner of `run` that was never enlisted before."""
        return self.hand(run, next(self._serial))

    def kill(self, run: str, survivor: str = "survivor") -> None:
        """Let `run` be silent, while `survivor` beats, until it is taken for dead."""
        self.driver.enlist(survivor, None, b"")
        for _ in range(5):
            self.driver.beat(survivor)
            self.manual.advance(self.options.heartbeat)
        self.driver.beat(survivor)
        assert not self.driver.beat(run).alive, "a silent run is still taken for alive"

    def stats(self, queue: str = QUEUE) -> QueueStats:
        return next(stats for stats in self.driver.queues() if stats.name == queue)

    def assert_at(self, task_id: str, *places: Location) -> None:
        """The messages of this id are there, as far as the driver can tell."""
        features = self.driver.features
        if not features.lease_records:
            places = tuple(
                replace(place, begun=False) if isinstance(place, Leased) else place
                for place in places
            )
        assert self.driver.find(task_id) == (places if features.find else ())
        stored = self.driver.stored(task_id)
        if features.find:
            assert tuple(each.place for each in stored) == places
        else:
            assert all(isinstance(each.place, DeadLetter) for each in stored)
        for each in stored:
            assert isinstance(each.message, Message)
            assert each.message.id == task_id
            assert task_id.encode() in each.raw

    def drain(self, *queues: str) -> list[str]:
        """Take and acknowledge all there is, by an owner of a new run; the ids in order."""
        hand = self.fresh_hand("drain")
        taken: list[str] = []
        while deliveries := hand.take(50, *queues):
            taken += ids(deliveries)
            hand.turn(*(Settlement(delivery.lease, How.ACK) for delivery in deliveries))
        hand.abandon()
        return taken


class DriverSuite(ABC):
    """Base of the suites of a driver."""

    @staticmethod
    @abstractmethod
    def connect(where: Path, options: BrokerOptions, clock: Clock) -> Driver:
        """A driver, not opened, on the storage that `where`, a path that may not exist yet,
        names: the same `where` is the same storage. Called in other processes as well."""

    @pytest.fixture
    def rig(self, tmp_path: Path) -> Iterator[Rig]:
        """Under virtual time."""
        rig = Rig(self.connect, tmp_path / "storage", ManualClock())
        yield rig
        rig.close()

    @pytest.fixture
    def live(self, tmp_path: Path) -> Iterator[Rig]:
        """Under the machine's time, for what waits."""
        rig = Rig(self.connect, tmp_path / "storage", SYSTEM)
        yield rig
        rig.close()


class Background:
    """A call in a thread of its own, whose result or error is fetched with a limit."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self._result: list[object] = []
        self._error: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result.append(self._call())
        except BaseException as error:
            self._error.append(error)

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def result(self, limit: float = PATIENCE) -> object:
        self._thread.join(limit)
        assert not self._thread.is_alive(), "the call did not return"
        if self._error:
            raise self._error[0]
        return self._result[0]
