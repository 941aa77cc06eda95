"""`fleet`: a Redis server with a worker and a client of Umbel and of each Celery, for all tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product

import pytest
from tests.interop.environments import python_with
from tests.interop.sides import CELERIES, SIDES, UMBEL, Client, Place, Worker
from tests.servers import Redis, redis
from tests.worker.harness import until

__all__ = ["redis"]

PAIRS = [pair for pair in product(SIDES, SIDES) if (pair[0] == UMBEL) is not (pair[1] == UMBEL)]


@dataclass(frozen=True, slots=True)
class Fleet:
    place: Place
    workers: dict[str, Worker]
    clients: dict[str, Client]


@dataclass(frozen=True, slots=True)
class Pair:
    """One sends, the other runs; `queue` is where its worker takes from."""

    fleet: Fleet
    client: Client
    queue: str

    @property
    def place(self) -> Place:
        return self.fleet.place

    @property
    def worker(self) -> Worker:
        return self.fleet.workers[self.queue]


@pytest.fixture(scope="session")
def celeries() -> None:
    """Every Celery is installed."""
    for side in CELERIES:
        python_with(side.removeprefix("celery-"))


@pytest.fixture(scope="session")
def fleet(
    redis: Redis, celeries: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    place = Place(tmp_path_factory.mktemp("fleet"), redis, 0)
    try:
        workers = {side: place.worker(side, side, f"shop-{side}") for side in SIDES}
        clients = {side: place.client(side) for side in SIDES}
        for worker in workers.values():
            worker.ready()
        yield Fleet(place, workers, clients)
    finally:
        place.close()


@pytest.fixture(params=PAIRS, ids=" to ".join)
def pair(fleet: Fleet, request: pytest.FixtureRequest) -> Pair:
    sender, runner = request.param
    return Pair(fleet, fleet.clients[sender], runner)


@contextmanager
def busy(pair: Pair) -> Iterator[None]:
    """The worker runs one task and has taken one more; what is sent now waits in the broker."""
    gate = pair.place.gate()
    running = pair.client.send("gated", str(gate), queue=pair.queue)
    pair.place.noted(what="gated", id=running)
    pair.client.send("ran", "taken", queue=pair.queue, priority=0)
    if pair.queue != UMBEL:
        until(lambda: pair.place.redis.llen(pair.queue) == 0, what="the worker has taken it")
    try:
        yield
    finally:
        gate.touch()
