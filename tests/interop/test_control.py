"""Remote control and fanout exchanges between Umbel and real Celery 5.7."""

from __future__ import annotations

import os
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.interop.environments import python_with
from tests.interop.sides import FLEET, UMBEL, Client, Place, Worker
from tests.servers import Redis
from tests.worker.harness import until

CELERY = "celery-5.7"
PONG = {"ok": "pong"}
EVERYWHERE = (UMBEL, "news", "calls")
DATABASE = 4


@pytest.fixture(scope="module")
def place(redis: Redis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("control"), redis, DATABASE)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def ours(place: Place) -> Worker:
    return place.worker(UMBEL, *EVERYWHERE).ready()


@pytest.fixture(scope="module")
def theirs(place: Place) -> Worker:
    return listening(place, CELERY, CELERY, "news", "calls")


@pytest.fixture(scope="module")
def clients(place: Place, ours: Worker, theirs: Worker) -> dict[str, Client]:
    return {side: place.client(side) for side in (UMBEL, CELERY)}


def listening(place: Place, side: str, *queues: str, mingles: bool = False) -> Worker:
    """A worker that hears what is sent from now on: Celery's is ready before that."""
    newest = max(int(each["id"]) for each in place.redis.client_list())
    worker = place.worker(side, *queues, mingles=mingles).ready()
    channels = 1 + len({"news", "calls"} & {*queues})

    def listens() -> bool:
        since = [each for each in place.redis.client_list() if int(each["id"]) > newest]
        return sum(int(each["psub"]) for each in since) >= channels

    until(listens, what=place.logs())
    return worker


@contextmanager
def working(place: Place, side: str, *queues: str, mingles: bool = False) -> Iterator[Worker]:
    """One more worker, which has ended when the next test begins."""
    worker = listening(place, side, *queues, mingles=mingles)
    try:
        yield worker
    finally:
        # A Celery worker now and then doesn't end when it is told to.
        worker.stop() if side == UMBEL else worker.kill()


@pytest.mark.parametrize("side", [UMBEL, CELERY])
def test_each_client_sees_the_workers_of_both(
    clients: dict[str, Client], ours: Worker, theirs: Worker, side: str
) -> None:
    found = clients[side].ask("ping", timeout=20.0, limit=2)
    assert sorted(found, key=str) == sorted([{ours.node: PONG}, {theirs.node: PONG}], key=str)
    one = clients[side].ask("ping", timeout=20.0, destination=[ours.node])
    assert one == [{ours.node: PONG}]
    other = clients[side].ask("ping", timeout=20.0, destination=[theirs.node])
    assert other == [{theirs.node: PONG}]


def test_celerys_command_line_sees_umbel(place: Place, ours: Worker) -> None:
    asked = "inspect", "ping", "--timeout", "10", "--destination"

    def inspect() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [python_with("5.7"), "-m", "celery", "-A", "proj", *asked, ours.node],
            cwd=FLEET,
            env=place.environment,
            capture_output=True,
            text=True,
            timeout=60,
        )

    done = inspect()
    assert done.returncode == 0, done.stderr
    assert f"{ours.node}: OK" in done.stdout
    os.kill(ours.process.pid, signal.SIGSTOP)
    try:
        assert ours.node not in place.client(UMBEL).ask("ping", timeout=0.3)
    finally:
        os.kill(ours.process.pid, signal.SIGCONT)


def test_nothing_is_left_of_those_who_asked(
    place: Place, clients: dict[str, Client], ours: Worker, theirs: Worker
) -> None:
    for side in (UMBEL, CELERY):
        clients[side].ask("ping", timeout=20.0, limit=2)
    left = [name for name in place.redis.scan_iter() if b"reply" in name or b"listen" in name]
    assert left == []


@pytest.mark.parametrize("side", [UMBEL, CELERY])
def test_a_revocation_by_either_client_holds_for_both(
    place: Place, clients: dict[str, Client], side: str
) -> None:
    gates = {queue: place.gate() for queue in (UMBEL, CELERY)}
    running = {}
    for queue, gate in gates.items():
        running[queue] = clients[side].send("gated", str(gate), gate.name, queue=queue)
        place.noted(what="gated", tag=gate.name)
    waiting = {queue: clients[side].send("ran", queue=queue) for queue in gates}
    for task_id in waiting.values():
        clients[side].ask("revoke", id=task_id)
    for task_id in running.values():
        clients[side].ask("revoke", id=task_id, terminate=True, signal="SIGKILL")
    after = {queue: clients[side].send("ran", queue=queue) for queue in gates}
    for queue, task_id in after.items():
        place.noted(what="ran", id=task_id)
        assert clients[side].ask("about", id=running[queue])["state"] == "REVOKED"
        until(
            lambda task_id=waiting[queue]: (  # type: ignore[misc]  # of this round
                clients[side].ask("about", id=task_id)["state"] == "REVOKED"
            ),
            what=place.logs(),
        )
        assert place.notes(id=waiting[queue]) == []


def test_a_worker_of_celerys_that_starts_learns_what_is_revoked(
    place: Place, clients: dict[str, Client], theirs: Worker
) -> None:
    """Also where none of its kind is there to say so."""
    os.kill(theirs.process.pid, signal.SIGSTOP)
    try:
        clients[UMBEL].ask("revoke", id="told-at-the-start")
        with working(place, CELERY, "late", mingles=True) as late:
            revoked = clients[CELERY].ask("revoked", node=late.node)
            assert "told-at-the-start" in revoked[late.node]
    finally:
        os.kill(theirs.process.pid, signal.SIGCONT)


@pytest.mark.parametrize("side", [UMBEL, CELERY])
def test_a_fanout_exchange_reaches_the_workers_of_both(
    place: Place, clients: dict[str, Client], side: str
) -> None:
    for _ in range(3):
        sent = clients[side].send("ran", queue="news")
        notes = place.noted(2, what="ran", id=sent)
        assert sorted(note.who for note in notes) == [CELERY, UMBEL]


@pytest.mark.parametrize("side", [UMBEL, CELERY])
def test_a_broadcast_reaches_each_worker_of_both_once(
    place: Place, clients: dict[str, Client], side: str
) -> None:
    with working(place, UMBEL, "calls"), working(place, CELERY, "calls"):
        sent = [clients[side].ask("broadcast", task="ran", exchange="calls") for _ in range(3)]
        for task_id in sent:
            place.noted(4, what="ran", id=task_id)
    for task_id in sent:
        notes = place.notes(what="ran", id=task_id)
        assert Counter(note.who for note in notes) == {UMBEL: 2, CELERY: 2}


def test_several_workers_of_umbel_on_one_fanout_queue_run_it_once(
    place: Place, clients: dict[str, Client]
) -> None:
    with working(place, UMBEL, "news"):
        sent = [clients[CELERY].send("ran", queue="news") for _ in range(5)]
        for task_id in sent:
            place.noted(2, what="ran", id=task_id)
    for task_id in sent:
        notes = place.notes(what="ran", id=task_id)
        assert Counter(note.who for note in notes) == {UMBEL: 1, CELERY: 1}
