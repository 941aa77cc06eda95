"""SIGKILL between a step's result and what follows from it: no chain is lost, and none forks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.worker.judging import leftovers
from tests.worker.killing import Scene

from umbel import AsyncResult
from umbel.canvas import chain, signature
from umbel.testing.faults import Point, Target, kills_in

EACH = 40
STEPS = 3
MOST = {Target.PROCESS: 8, Target.WORKER: 3}


IN_ONE_DATABASE = [
    Point.FUNCTION,
    Point.RETURNED,
    Point.DECIDED,
    Point.BEFORE_TURN,
    Point.IN_TURN,
    Point.AFTER_TURN,
]
WITH_A_STORE_OF_ITS_OWN = [Point.FUNCTION, Point.BEFORE_STORE, Point.AFTER_STORE]


@pytest.fixture
def scene(separate: bool, tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path, separate_store=separate, tasks="tests.worker.chained_app")
    made.env["JOURNAL"] = str(tmp_path / "journal")
    yield made
    made.app.close()


def send(scene: Scene, name: str) -> AsyncResult[Any]:
    """``1 + 10 + 100``, each step and each callback at the end of a step adding to it."""
    steps = [signature(name, (n,), app=scene.app) for n in (1, 10, 100)]
    for step in steps:
        step.link(signature(name, (1000,), app=scene.app))
        step.link_error(signature("told", app=scene.app))
    result: AsyncResult[Any] = chain(steps).apply_async((0,))
    return result


def path(last: AsyncResult[Any]) -> list[AsyncResult[Any]]:
    """The results of a chain's steps, from the first."""
    steps = [last]
    while steps[0].parent is not None:
        steps.insert(0, steps[0].parent)
    return steps


def runs(scene: Scene) -> Counter[tuple[str, str]]:
    """How often something ran, by what and root."""
    lines = Path(scene.env["JOURNAL"]).read_text().splitlines()
    return Counter((line.split()[0], line.split()[1]) for line in lines)


@pytest.mark.parametrize("target", Target)
@pytest.mark.parametrize(
    ("separate", "point"),
    [
        *((False, point) for point in IN_ONE_DATABASE),
        *((True, point) for point in WITH_A_STORE_OF_ITS_OWN),
    ],
)
def test_kills_on_the_way_of_a_chain(scene: Scene, point: Point, target: Target) -> None:
    with scene.app.batch():
        chains = {name: [send(scene, name) for _ in range(EACH)] for name in ("add", "late")}
    scene.work_off({"point": point, "target": target, "every": 11, "most": MOST[target]})
    kills = len(kills_in(scene.log))
    assert kills > 0, "no kill has reached this point"
    assert not leftovers(scene.app)
    counts = runs(scene)
    dead = {letter.id for letter in scene.app.broker.dead()}
    repeats = 0
    for last in chains["late"]:
        assert last.result == 111, (last.state, last.result)
        repeats += counts["late", path(last)[0].id] - 2 * STEPS
        callbacks = [child for step in path(last) for child in step.children or ()]
        states = {each.id: each.state for each in callbacks}
        assert len(states) == 2 * STEPS - 1
        assert set(states.values()) == {"SUCCESS"}
    assert 0 <= repeats <= 2 * kills
    for last in chains["add"]:
        judge_early(path(last), counts, dead)


def judge_early(
    steps: list[AsyncResult[Any]], counts: Counter[tuple[str, str]], dead: set[str]
) -> None:
    """Every step that began ran once; what died took the rest with it, and is a dead letter."""
    good = [step.state for step in steps].count("SUCCESS")
    bad = steps[good:]
    assert all(step.state == "FAILURE" for step in bad), [step.state for step in steps]
    assert {type(step.result).__name__ for step in bad} <= {"WorkerLostError"}
    assert [step.id in dead for step in bad] == [step is bad[0] for step in bad]
    assert counts["told", bad[0].id] == 1 if bad else True
    assert counts["add", steps[0].id] <= 2 * STEPS
    for step in steps[:good]:
        followers = {child.id: child.state for child in step.children or ()}
        assert set(followers.values()) <= {"SUCCESS", "FAILURE"}
        assert len(followers) == 1 + (step is not steps[-1])
        assert all(state == "SUCCESS" or id in dead for id, state in followers.items())
