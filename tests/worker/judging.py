"""What the log of the kill tests allows each task to have become, by DESIGN's outcome table."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

from tests.brokers.redis_keys import strays
from tests.worker.living import boards_of

from umbel import Umbel
from umbel.states import FAILURE, SUCCESS
from umbel.testing.faults import Kill, Point, Target

MAX_REDELIVERIES: Final = 3
IN_MAIN_THREAD: Final = frozenset(
    {Point.BEGUN, Point.STARTED, Point.FUNCTION, Point.RETURNED, Point.DECIDED, Point.ENDED}
)
DECIDED: Final = frozenset(
    {
        Point.DECIDED,
        Point.ENDED,
        Point.BEFORE_STORE,
        Point.AFTER_STORE,
        Point.BEFORE_TURN,
        Point.IN_TURN,
        Point.AFTER_TURN,
    }
)
"""Points at which a task that returned has its outcome on the scoreboard."""


@dataclass
class Story:
    """One task: its events in order ("start", "end", "failed", or a kill's point), and its end."""

    id: str
    mode: str
    events: list[str] = field(default_factory=list)
    state: str = ""
    letters: list[str] = field(default_factory=list)
    """The errors of its dead letters."""

    @property
    def starts(self) -> int:
        return self.events.count("start")

    @property
    def cut_off(self) -> int:
        """How many of its starts had no end."""
        return self.starts - self.events.count("end")

    @property
    def undecided(self) -> int:
        """How often it was killed while the scoreboard said that it ran, as far as is known."""
        ends = [each for each in self.events if each in ("end", Point.RETURNED, Point.STARTED)]
        returned = sum(one == "end" and two == Point.RETURNED for one, two in pairwise(ends))
        return self.cut_off + returned + ends.count(Point.STARTED)

    def faults(self) -> list[str]:
        """What must never be."""
        found = []
        if self.state not in (SUCCESS, FAILURE):
            found.append(f"ended in {self.state!r}")
        if self.letters != (["WorkerLostError"] if self.state == FAILURE else []):
            found.append(f"{self.state} with dead letters {self.letters}")
        if self.state == SUCCESS and self._last("start", "end") != "end":
            found.append("SUCCESS without an end")
        if self.mode == "early" and self.starts > 1:
            found.append("an early task was run twice")
        if self.mode == "early" and self.cut_off and self.state != FAILURE:
            found.append("an early task was cut off and isn't FAILURE")
        if self.cut_off > MAX_REDELIVERIES + 1:
            found.append("more redeliveries than allowed")
        if self.state == SUCCESS and self.undecided > MAX_REDELIVERIES:
            found.append("SUCCESS after too many redeliveries")
        if self.events.count("failed") > (self.state == FAILURE):
            found.append("task_failure ran too often")
        if self.state == FAILURE and "failed" not in self.events and not self._burier_killed():
            found.append("FAILURE without task_failure")
        return [*found, *self._after_decision()]

    def _after_decision(self) -> Iterable[str]:
        """A task that had returned when a kill found its outcome decided keeps that outcome."""
        for index, event in enumerate(self.events):
            before = [each for each in self.events[:index] if each in ("start", "end", "failed")]
            if event in DECIDED and before[-1:] == ["end"]:
                if self.state != SUCCESS:
                    yield f"{self.state} although its outcome was decided before {event!r}"
                if "start" in self.events[index:]:
                    yield f"run again although its outcome was decided before {event!r}"

    def faults_of_retries(self, retries: int) -> list[str]:
        """Of a late task with reject_on_worker_lost that retries so often, whatever happens."""
        found = []
        if (self.state, self.letters) != (SUCCESS, []):
            found.append(f"ended in {self.state!r} with dead letters {self.letters}")
        if self.events.count("end") < retries + 1:
            found.append("a retry wasn't run")
        return found

    def faults_of_large_outcomes(self) -> list[str]:
        """Of an early task that has ended only once its outcome is settled."""
        found = []
        if self.letters != (["WorkerLostError"] if self.state == FAILURE else []):
            found.append(f"{self.state} with dead letters {self.letters}")
        if self.state not in (SUCCESS, FAILURE) or self.starts > 1:
            found.append(f"{self.state} after {self.starts} starts")
        if self.state != SUCCESS and Point.AFTER_TURN in self.events and "end" in self.events:
            found.append(f"{self.state} although SUCCESS was settled")
        return found

    def _burier_killed(self) -> bool:
        """Whether whoever buried it died after the outcome was decided, before the signals."""
        return self._last(Point.DECIDED, "start", "end") == Point.DECIDED

    def _last(self, *kinds: str) -> str:
        return next((each for each in reversed(self.events) if each in kinds), "")

    def unexplained(self, target: Target | None) -> bool:
        """A FAILURE, or a rerun, for which the log shows no death while the task ran."""
        again = self.mode == "late+reject" or (self.mode == "late" and target is not Target.PROCESS)
        if self.state == SUCCESS:
            return self.starts - 1 > self.undecided
        if again:
            return self.undecided != MAX_REDELIVERIES + 1
        return self.undecided != 1


def stories(log: Path, modes: dict[str, str]) -> dict[str, Story]:
    """The story of each id in `modes` (id: mode), from the log."""
    told = {id: Story(id, mode) for id, mode in modes.items()}
    for line in log.read_text().splitlines():
        kill = Kill.read(line)
        if kill is not None:
            for id in kill.ids:
                told[id].events.append(kill.point)
        else:
            word, id, *_ = line.split("\t")
            told[id].events.append(word)
    return told


def judge(
    app: Umbel,
    log: Path,
    modes: dict[str, str],
    faults_of: Callable[[Story], list[str]] = Story.faults,
) -> dict[str, Story]:
    """The stories with their ends; fails where one of them must not be."""
    told = stories(log, modes)
    store = app.store
    assert store is not None
    results = store.get(list(told))
    for story, result in zip(told.values(), results, strict=True):
        story.state = "" if result is None else result.state
    for letter in app.broker.dead():
        told[letter.id].letters.append(letter.error)
    wrong = [(story, faults) for story in told.values() if (faults := faults_of(story))]
    assert not wrong, "\n".join(f"{faults}: {story}" for story, faults in wrong[:10])
    return told


def leftovers(app: Umbel) -> dict[str, object]:
    """What no living run or waiting message accounts for, of an app whose workers have ended."""
    broker, location = app.broker, app.broker.location
    queues = broker.queues()
    left: dict[str, object] = {
        "messages": sum(each.ready + each.delayed + each.leased + each.lost for each in queues),
        "living runs": len(broker.runs()),
        "boards": len(boards_of(app)),
    }
    if location.startswith("sqlite:"):
        left |= rows_left(Path(location.removeprefix("sqlite:")))
    else:
        left["keys"] = strays(
            str(app.conf.broker_url), [each.name for each in queues], running=False
        )
    return {name: count for name, count in left.items() if count}


def rows_left(database: Path) -> dict[str, int]:
    queries = {
        "message rows": "SELECT count(*) FROM message",
        "ready": "SELECT count(*) FROM ready",
        "delayed": "SELECT count(*) FROM delayed",
        "leases": "SELECT count(*) FROM lease",
        "owners": "SELECT count(*) FROM owner",
        "living runs": "SELECT count(*) FROM run WHERE dead = 0",
    }
    with sqlite3.connect(database) as connection:
        counts = {name: connection.execute(query).fetchone()[0] for name, query in queries.items()}
    connection.close()
    return counts


def tally(kills: Iterable[Kill]) -> Counter[tuple[Point, Target]]:
    """Real kills, each victim counted once."""
    victims = {(kill.point, kill.target, kill.victim) for kill in kills}
    return Counter((point, target) for point, target, _ in victims)
