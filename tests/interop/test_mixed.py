"""One queue, served by a worker of Celery's and workers of Umbel's, which are killed in turn."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.interop.sides import CELERIES, FLEET, UMBEL, Client, Place, Worker
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
    made.redis.flushdb()
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


@pytest.mark.parametrize("celery", CELERIES[-1:])
def test_what_killed_workers_of_umbel_leave_is_handed_to_celery(place: Place, celery: str) -> None:
    ours, client = place.worker(UMBEL, UMBEL).ready(), place.client(celery)
    eta = time.time() + 6.0
    later = client.send("ran", eta=datetime.fromtimestamp(eta, UTC).isoformat())
    until(lambda: place.redis.exists("umbel:{umbel}:due"), what="it waits for its time")
    gate = place.gate()
    running = client.send("gated", str(gate))
    place.noted(what="gated", id=running)
    waiting = [client.send("ran") for _ in range(3)]
    ours.kill()

    theirs = place.worker(celery, UMBEL)
    assert umbel(place, "handback") == [
        "1 task due later handed back to Celery's workers.",
        "1 task that had begun when their worker died: see umbel dead list.",
    ]
    theirs.ready()
    assert umbel(place, "dead", "requeue", running) == ["1 dead letter requeued"]
    gate.touch()
    states = client.ask("states", ids=[later, running, *waiting])
    assert set(states.values()) == {"SUCCESS"}, place.logs()
    (note,) = place.notes(id=later)
    assert (note.who, note.at >= eta) == (celery, True)
    assert place.redis.keys("umbel:{*") == []


def umbel(place: Place, *arguments: str) -> list[str]:
    """What a command says."""
    done = subprocess.run(
        [sys.executable, "-m", "umbel", "--as-celery", "-A", "proj", *arguments],
        cwd=FLEET,
        env=place.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
