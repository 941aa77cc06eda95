"""Tasks on a fleet whose processes, workers and server are killed at random, and what became of
each of them.

Early tasks end as SUCCESS, or as FAILURE with `WorkerLostError` and one dead letter, and are never
run twice. Late ones run to SUCCESS. Nothing is run again once its result is stored. There is no
more than one lost or repeated run for each process that was killed. At the end nothing is left:
the broker's keys are those that were there before.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any, Final

from tests.brokers.redis_keys import keys_at
from tests.servers import Redis
from tests.worker.harness import Worker, until
from tests.worker.judging import leftovers
from tests.worker.living import Place

from umbel.message import Result
from umbel.states import FAILURE, READY_STATES, SUCCESS

MODES: Final = ("early", "late", "again")
WORKERS: Final = 2
PROCESSES: Final = 2
LEASE: Final = 3.0
STEP: Final = 50
"""Tasks that are sent at once."""
PATIENCE: Final = 120.0
"""Seconds without any task that ends, after which the rest is said to be stranded."""
NEVER_MIND: Final = frozenset({"umbel:revocations:version", "umbel:revocations:looked"})
"""Keys of which there is one, made when it is first needed and kept."""


@dataclass(frozen=True, slots=True)
class Plan:
    """`kills` are those of whole workers; as many single processes are killed, and a server, where
    there is one, a quarter as often. They are spread over `seconds`."""

    tasks: int
    kills: int
    seconds: float
    seed: int

    def strikes(self, has_server: bool) -> list[str]:
        chosen = ["worker", "process"] * self.kills
        chosen += ["server"] * (-(-self.kills // 4) if has_server else 0)
        random.Random(self.seed).shuffle(chosen)
        return chosen


@dataclass(slots=True)
class Report:
    """What was done, what came of it, and what must not be (`faults`)."""

    kills: Counter[str] = field(default_factory=Counter[str])
    ends: Counter[str] = field(default_factory=Counter[str])
    faults: list[str] = field(default_factory=list[str])
    deaths: int = 0
    """Processes that may have been running a task when they were killed."""
    repeated: int = 0
    keys: tuple[int, int] = (0, 0)

    def lines(self) -> Iterator[str]:
        yield "killed: " + (_counted(self.kills) or "nothing")
        yield f"processes that died of it: {self.deaths}"
        yield f"ended: {_counted(self.ends)}"
        yield f"runs that were repeated: {self.repeated}"
        if any(self.keys):
            yield f"keys before and after: {self.keys[0]}, {self.keys[1]}"
        yield f"faults: {len(self.faults)}"
        yield from (f"  {fault}" for fault in self.faults[:20])


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{number} {name}" for name, number in sorted(counts.items()))


def run(plan: Plan, folder: Path, server: Redis | None, say: Callable[[str], None]) -> Report:
    """Do it on `server`, which is empty, or on a file in `folder`."""
    place = Place(folder, LEASE, url=None if server is None else server.url)
    with closing(place):
        return _Campaign(plan, place, server, say).run()


class _Campaign:
    def __init__(
        self, plan: Plan, place: Place, server: Redis | None, say: Callable[[str], None]
    ) -> None:
        self._plan = plan
        self._place = place
        self._server = server
        self._say = say
        self._chance = random.Random(plan.seed)
        self._modes = cycle(MODES)
        self._sent: dict[str, str] = {}
        self._fleet: list[Worker] = []
        self._report = Report()

    def run(self) -> Report:
        before = self._warm_up()
        self._fleet = [self._worker() for _ in range(WORKERS)]
        self._send_and_strike()
        self._work_off()
        self._judge()
        self._look_for_leaks(before)
        return self._report

    def _worker(self) -> Worker:
        options = "-c", str(PROCESSES)
        return self._place.worker(*options, app="tests.chaos.app", ready=False)

    def _warm_up(self) -> set[str]:
        """Tasks of all kinds and a death, so that what is kept for good is there; the keys."""
        sent = self._send(len(MODES))
        dying, other = self._worker(), self._worker()
        until(lambda: self._ended(sent) == len(sent), PATIENCE, self._place.logs())
        until(lambda: _is_ready(dying) and _is_ready(other), PATIENCE)
        dying.kill()
        until(lambda: len(self._place.broker.runs()) == 1, PATIENCE, self._place.logs())
        assert other.stop() == 0, other.text
        self._forget(sent)
        return self._keys()

    def _send(self, count: int) -> dict[str, str]:
        with self._place.app.batch():
            return {
                self._place.send(mode, self._chance.choice((0.0, 0.002, 0.02))).id: mode
                for _, mode in zip(range(count), self._modes, strict=False)
            }

    def _send_and_strike(self) -> None:
        """The tasks come as evenly as the kills do."""
        strikes = self._plan.strikes(self._server is not None)
        began = time.monotonic()
        for number, strike in enumerate(strikes, 1):
            wanted = self._plan.tasks * number // len(strikes)
            while len(self._sent) < wanted:
                self._sent |= self._send(min(STEP, wanted - len(self._sent)))
            due = began + self._plan.seconds * (number - self._chance.random()) / len(strikes)
            time.sleep(max(0.0, due - time.monotonic()))  # the moment is the test
            self._strike(strike)
            if number % 25 == 0:
                self._say(f"{number} of {len(strikes)} kills, {self._ended(self._sent)} have ended")

    def _strike(self, what: str) -> None:
        self._report.kills[what] += 1
        if what == "server":
            assert self._server is not None
            self._server.kill()
            self._server.start()
            return
        index = self._chance.randrange(WORKERS)
        worker = self._fleet[index]
        if worker.process.poll() is None and what == "process":
            inner = [pid for pid in self._place.pids(worker.pid) if pid != worker.pid]
            if inner:
                self._report.deaths += PROCESSES  # it may be the one that the others end with
                with suppress(ProcessLookupError):
                    os.kill(self._chance.choice(inner), signal.SIGKILL)
        elif what == "worker":
            self._report.deaths += PROCESSES
            worker.kill()
        self._revive()

    def _revive(self) -> None:
        for index, worker in enumerate(self._fleet):
            code = worker.process.poll()
            if code is None:
                continue
            if code != -signal.SIGKILL:
                self._report.faults.append(f"a worker ended by itself with {code}: {worker.text}")
            self._fleet[index] = self._worker()

    def _work_off(self) -> None:
        """Until all have ended and the broker is empty; then the fleet ends."""
        ended, since = -1, time.monotonic()
        while not (self._is_empty() and self._ended(self._sent) == len(self._sent)):
            self._revive()
            if (now_ended := self._ended(self._sent)) != ended:
                ended, since = now_ended, time.monotonic()
            if time.monotonic() - since > PATIENCE:
                left = len(self._sent) - ended
                self._report.faults.append(f"{left} are stranded: {self._place.broker.queues()}")
                break
            time.sleep(0.2)
        for worker in self._fleet:
            until(partial(_is_ready, worker), PATIENCE, worker.text)
            if (code := worker.stop()) != 0:
                self._report.faults.append(f"a worker stopped with {code}: {worker.text[-2000:]}")

    def _is_empty(self) -> bool:
        return len(self._place.broker.runs()) == WORKERS and not any(
            each.ready + each.delayed + each.leased + each.lost
            for each in self._place.broker.queues()
        )

    def _results(self, ids: dict[str, str]) -> dict[str, Result | None]:
        store = self._place.app.store
        assert store is not None
        return dict(zip(ids, store.get(list(ids)), strict=True)) if ids else {}

    def _ended(self, ids: dict[str, str]) -> int:
        return sum(
            each is not None and each.state in READY_STATES for each in self._results(ids).values()
        )

    def _judge(self) -> None:
        starts: dict[str, list[tuple[str, float]]] = {id: [] for id in self._sent}
        for line in self._place.journal.read_text().splitlines():
            _, id, retry, at = line.split()
            if id in starts:  # else of the warm-up
                starts[id].append((retry, float(at)))
        letters: dict[str, list[str]] = {id: [] for id in self._sent}
        for letter in self._place.broker.dead():
            letters[letter.id].append(letter.error)
        report, lost = self._report, 0
        for id, result in self._results(self._sent).items():
            mode, state = self._sent[id], "" if result is None else result.state
            report.ends[f"{mode} {state or 'PENDING'}"] += 1
            lost += state == FAILURE
            tries = Counter(retry for retry, _ in starts[id])
            report.repeated += sum(number - 1 for number in tries.values())
            report.faults += [
                f"{mode} {id} {fault}" for fault in _faults(mode, result, starts[id], letters[id])
            ]
        if (cost := lost + report.repeated) > report.deaths:
            report.faults.append(f"{report.deaths} deaths cost {cost} runs")

    def _look_for_leaks(self, before: set[str]) -> None:
        """Of results, before they are forgotten, too: each has an expiry."""
        self._place.broker.dead_delete(None)
        left = leftovers(self._place.app)
        self._forget(self._sent)
        after = self._keys()
        self._report.keys = len(before), len(after)
        left |= {f"key {key}": "wasn't there before" for key in after - before - NEVER_MIND}
        self._report.faults += [f"left behind: {what}: {why}" for what, why in left.items()]

    def _forget(self, ids: dict[str, str]) -> None:
        store = self._place.app.store
        assert store is not None
        if ids:
            store.forget(list(ids))

    def _keys(self) -> set[str]:
        return set() if self._server is None else keys_at(self._server.url)


def _is_ready(worker: Worker) -> bool:
    """As the run that it is now: a signal before that ends it as it would any program."""
    return " ready." in worker.text.rpartition("starts again as a new run")[2]


def _faults(
    mode: str, result: Result | None, starts: list[tuple[str, float]], letters: list[str]
) -> Iterator[str]:
    """What must never be, of one task."""
    state = "" if result is None else result.state
    if state not in READY_STATES:
        yield f"ended in {state!r}"
    if state == FAILURE and (mode != "early" or letters != ["WorkerLostError"]):
        yield f"is FAILURE with dead letters {letters}"
    if state == SUCCESS and (letters or not starts):
        yield f"is SUCCESS with dead letters {letters} and {len(starts)} starts"
    if mode == "early" and len(starts) > 1:
        yield f"was run {len(starts)} times"
    if mode == "again" and {retry for retry, _ in starts} != {"0", "1"}:
        yield f"was tried as {starts}"
    if result is not None and state in READY_STATES and starts:
        stored = _stored_at(json.loads(result.meta))
        if (late_by := max(at for _, at in starts) - stored) > 0:
            yield f"was started {late_by:.3f} s after its result was there"


def _stored_at(meta: dict[str, Any]) -> float:
    return datetime.fromisoformat(meta["date_done"]).timestamp()
