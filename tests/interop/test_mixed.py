"""One queue, served by a worker of Celery's and workers of Umbel's, which are killed in turn."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.interop.sides import CELERIES, UMBEL, Client, Place, Worker
from tests.servers import Redis
from tests.worker.harness import until

HELD = 4.0
"""Seconds that a message may be with a silent worker, of either kind."""


@pytest.fixture
def place(redis: Redis, celeries: None, tmp_path: Path) -> Iterator[Place]:
    made = Place(
        tmp_path, redis, 2, PROJ_TRANSPORT=f'{{"visibility_timeout": {HELD}}}',
        PROJ_PREFETCH="2", UMBEL_WORKER_LEASE_TIME=str(HELD),
    )  # fmt: skip
    try:
        yield made
    finally:
        made.close()


class Traffic:
    """Tasks that are acknowledged when they have ended, sent by both in turns."""

    def __init__(self, place: Place, *clients: Client) -> None:
        self._place = place
        self._clients = clients
        self.sent: list[str] = []

    def send(self, count: int, gate: Path | None = None) -> list[str]:
        ids = []
        for n in range(count):
            client = self._clients[n % len(self._clients)]
            ids.append(client.send("late", f"{len(self.sent)}", gate and str(gate)))
            self.sent.append(ids[-1])
        return ids

    def until_one_holds_one(self, worker: Worker, ids: list[str]) -> None:
        until(
            lambda: any(note.id in ids for note in self._place.notes(worker=worker.node)),
            what=f"{worker.name} runs one; {self._place.logs()}",
        )

    def all_end_well(self) -> None:
        for client in self._clients:
            states = client.ask("states", ids=self.sent, timeout=40)
            wrong = {each: state for each, state in states.items() if state != "SUCCESS"}
            assert not wrong, self._place.logs()
        assert {note.id for note in self._place.notes(what="end")} == set(self.sent)


@pytest.mark.parametrize("celery", CELERIES[-1:])
def test_what_a_killed_worker_held_is_run_by_the_others(place: Place, celery: str) -> None:
    theirs, ours = place.worker(celery, UMBEL).ready(), place.worker(UMBEL, UMBEL).ready()
    traffic = Traffic(place, place.client(UMBEL), place.client(celery))

    # Enough that each runs one and holds one more, whoever is first.
    gate = place.gate()
    ids = traffic.send(6, gate)
    traffic.send(10)
    traffic.until_one_holds_one(theirs, ids)
    traffic.until_one_holds_one(ours, ids)
    until(lambda: place.redis.hlen("unacked") == 2, what="Celery's worker has reserved one more")
    theirs.kill()
    gate.touch()
    until(lambda: place.redis.zcount("unacked_index", "-inf", time.time() - HELD) == 2)
    # Any of ours looks for it when it starts, and every 10 s.
    other = place.worker(UMBEL, UMBEL).ready()
    traffic.all_end_well()
    assert place.redis.hlen("unacked") == place.redis.zcard("unacked_index") == 0

    theirs = place.worker(celery, UMBEL).ready()
    gate = place.gate()
    ids = traffic.send(10, gate)
    traffic.send(10)
    for worker in (theirs, ours, other):
        traffic.until_one_holds_one(worker, ids)
    ours.kill()
    gate.touch()
    traffic.all_end_well()
    runs = [note.id for note in place.notes(what="end")]
    assert len(runs) == len(set(runs)) == 36
    until(lambda: place.redis.llen(UMBEL) + place.redis.hlen("unacked") == 0)
