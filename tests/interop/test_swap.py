"""The rolling swap of ``docs/migrating.md``: from Celery to Umbel and back, under load."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest
from tests.interop.sides import CELERIES, STARTS, UMBEL, Client, Place, Worker
from tests.servers import Redis
from tests.worker.harness import until


@pytest.fixture
def place(redis: Redis, celeries: None, tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path, redis, 6)
    try:
        yield made
    finally:
        made.close()


class Load:
    """Tasks of every kind, sent one after the other by one client of each."""

    def __init__(self, *clients: Client) -> None:
        self._clients = clients
        self.runs: dict[str, int] = {}
        """How often each has to run."""
        self._ending = threading.Event()
        self._failed: list[BaseException] = []

    @contextmanager
    def going(self) -> Iterator[None]:
        thread = threading.Thread(target=self._send_all)
        thread.start()
        try:
            yield
        finally:
            self._ending.set()
            thread.join()
        assert not self._failed, self._failed

    def _send_all(self) -> None:
        try:
            for number in count():
                self._send(self._clients[number % len(self._clients)])
                if self._ending.wait(0.02):
                    return
        except BaseException as error:
            self._failed.append(error)

    def _send(self, client: Client) -> None:
        step = ["add", [1], {"options": {"queue": UMBEL}}]
        self.runs[client.send("ran")] = 1
        self.runs[client.send("late", "l")] = 1
        self.runs[client.send("ran", countdown=1.5)] = 1
        self.runs[client.send("flaky", 2, kwargs={"countdown": 1.0})] = 3
        self.runs.update(dict.fromkeys(client.ask("send_chain", steps=[step, step]), 1))

    def ends_well(self, place: Place) -> None:
        """Each has run as often as it has to, and both clients see it."""
        for client in self._clients:
            states = client.ask("states", ids=list(self.runs))
            wrong = {each: state for each, state in states.items() if state != "SUCCESS"}
            assert not wrong, (wrong, place.logs())
        # Of `late` two are noted.
        ran = Counter(note.id for note in place.notes() if note.what != "end")
        assert {i: (n, ran[i]) for i, n in self.runs.items() if ran[i] != n} == {}


@pytest.mark.parametrize("celery", CELERIES)
def test_a_fleet_is_swapped_and_swapped_back(place: Place, celery: str) -> None:
    def theirs() -> Worker:
        # A warm stop of prefork lasts 30 s where a result is on its way.
        return place.worker(celery, UMBEL, options=["-P", "solo"]).ready()

    def ours() -> Worker:
        return place.worker(UMBEL, UMBEL).ready()

    load = Load(place.client(celery), place.client(UMBEL))
    old, older = theirs(), theirs()
    with load.going():
        run_some(place, old, older)
        new = ours()
        older.stop()
        run_some(place, old, new)
        newer = ours()
        old.stop()
        run_some(place, new, newer)
        back = theirs()
        newer.stop()
        run_some(place, new, back)
        again = theirs()
        new.stop()
        run_some(place, back, again)
    load.ends_well(place)
    until(lambda: place.redis.llen(UMBEL) + place.redis.hlen("unacked") == 0)
    assert place.redis.keys("umbel:{*}:due") == []


def run_some(place: Place, *workers: Worker) -> None:
    """Until each of these has run a good many more."""

    def counts() -> Counter[str]:
        return Counter(note.worker for note in place.notes())

    before = counts()
    until(
        lambda: all(counts()[each.node] - before[each.node] >= 20 for each in workers),
        what=f"{[each.name for each in workers]} run some; {place.logs()}",
    )


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
def test_the_page_shows_the_commands_that_start_these_workers(start: tuple[str, ...]) -> None:
    page = Path(__file__).parents[2] / "docs" / "migrating.md"
    shown = [line.strip() for line in page.read_text().splitlines()]
    assert [line for line in shown if line.startswith(f"{' '.join(start)} -n ")]
