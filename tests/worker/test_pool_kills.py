"""SIGKILL at the points of a delivery's way where many tasks run in the process at once.

As `test_kill_points`; but one kill ends many tasks, so the deaths aren't counted one by one: every
id must be in exactly one of its allowed places. Nor can a task be told from others that run beside
the one at whose point the kill came: one that was just decided is settled without being announced.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.worker.judging import Story, tally
from tests.worker.killing import Scene

from umbel.testing.faults import Point, Target, kills_in

POOLS = {
    "threads": ("kill_app", ("-P", "threads", "-c", "8", "--processes", "2")),
    "asyncio": ("kill_loop_app", ("-P", "asyncio", "-c", "20", "--processes", "2")),
    "asyncio, threads of it": ("kill_app", ("-P", "asyncio", "-c", "8", "--processes", "2")),
}
EVERY = {Point.FETCHED: 3, Point.BEFORE_INBOX: 3, Point.BEFORE_TURN: 3, Point.AFTER_TURN: 3}
UNTOLD = "FAILURE without task_failure"
MOST = {Target.PROCESS: 8, Target.WORKER: 3}


@pytest.fixture(params=POOLS)
def pool(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Scene, tuple[str, ...]]]:
    app, options = POOLS[request.param]
    scene = Scene(tmp_path, tasks=app)
    yield scene, options
    scene.app.close()


@pytest.mark.parametrize("target", Target)
@pytest.mark.parametrize(
    "point",
    [
        Point.FETCHED,
        Point.BEGUN,
        Point.FUNCTION,
        Point.DECIDED,
        Point.AFTER_TURN,
    ],
)
def test_kill_with_many_tasks(
    pool: tuple[Scene, tuple[str, ...]], point: Point, target: Target
) -> None:
    scene, options = pool
    modes = scene.send_all(0.004)
    kill = {"point": point, "target": target, "every": EVERY.get(point, 25), "most": MOST[target]}
    scene.work_off(kill, options=options)
    untold: list[str] = []

    def faults_of(story: Story) -> list[str]:
        faults = story.faults()
        untold.extend(story.id for each in faults if each == UNTOLD)
        return [each for each in faults if each != UNTOLD]

    told = scene.check(modes, faults_of)
    kills = tally(kills_in(scene.log))[point, target]
    assert kills > 0, "no kill has reached this point"
    assert len(untold) <= kills
    lost = [story for story in told.values() if story.mode == "early" and story.starts > 1]
    assert not lost, lost


@pytest.mark.parametrize("target", Target)
@pytest.mark.parametrize("point", [Point.DECIDED, Point.BEFORE_TURN])
def test_kill_where_retries_and_large_outcomes_are_settled(
    pool: tuple[Scene, tuple[str, ...]], point: Point, target: Target
) -> None:
    scene, options = pool
    modes = scene.send_with_consequences()
    kill = {"point": point, "target": target, "every": 20, "most": MOST[target]}
    scene.work_off(kill, options=options)

    def faults_of(story: Story) -> list[str]:
        large = story.mode == "large"
        return story.faults_of_large_outcomes() if large else story.faults_of_retries(2)

    scene.check(modes, faults_of)
    assert tally(kills_in(scene.log))[point, target] > 0, "no kill has reached this point"
