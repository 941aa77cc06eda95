"""SIGKILL at every point of a delivery's way, to the pool process and to the whole worker.

Each cell sends 100 tasks in each of the three modes, early, late, and late with
reject_on_worker_lost, lets real workers be killed at one point again and again, and starts the
worker anew until all has ended. Then every id must be in exactly one of its allowed places.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.capture import CaptureManager
from tests.worker.judging import IN_MAIN_THREAD, Story, tally
from tests.worker.killing import Scene

from umbel.states import FAILURE
from umbel.testing.faults import Point, Target, kills_in

TURN_POINTS = (
    Point.FETCHED,
    Point.BEFORE_INBOX,
    Point.BEFORE_TURN,
    Point.IN_TURN,
    Point.AFTER_TURN,
)
STORE_POINTS = (Point.BEFORE_STORE, Point.AFTER_STORE)
MOST = {Target.PROCESS: 10, Target.WORKER: 3}

_received: Counter[tuple[Point, Target]] = Counter()


@pytest.fixture(scope="module", autouse=True)
def report(request: pytest.FixtureRequest) -> Iterator[None]:
    """Say at the end how many real kills each point and target received."""
    yield
    capture = request.config.pluginmanager.getplugin("capturemanager")
    assert isinstance(capture, CaptureManager)
    with capture.global_and_fixture_disabled():
        print()
        for (point, target), count in sorted(_received.items()):
            print(f"killed at {point:<15} {target:<8} {count:>3} times")


@pytest.fixture
def scene(tmp_path: Path, url: str) -> Iterator[Scene]:
    made = Scene(tmp_path, url=url)
    yield made
    made.app.close()


def allowance(point: Point, target: Target, kills: int) -> int:
    """How many deaths the log may not explain: of threads that weren't at the point themselves."""
    if target is Target.PROCESS:
        return 0 if point in IN_MAIN_THREAD else kills
    return kills if point in IN_MAIN_THREAD else 2 * kills


def kill_everywhere(scene: Scene, point: Point, target: Target, every: int) -> None:
    modes = scene.send_all(0.0 if point in IN_MAIN_THREAD else 0.001)
    scene.work_off({"point": point, "target": target, "every": every, "most": MOST[target]})
    told = scene.check(modes)
    received = tally(kills_in(scene.log))
    _received.update(received)
    kills = received[point, target]
    assert kills > 0, "no kill has reached this point"
    if target is Target.PROCESS:
        lost = [story for story in told.values() if story.mode == "late" and story.cut_off]
        assert all(story.state == FAILURE and story.starts == 1 for story in lost), lost
    unexplained = [story for story in told.values() if story.unexplained(target)]
    assert len(unexplained) <= allowance(point, target, kills), unexplained[:10]


@pytest.mark.parametrize("target", Target)
@pytest.mark.parametrize("point", sorted(IN_MAIN_THREAD))
def test_kill_where_tasks_are_executed(scene: Scene, point: Point, target: Target) -> None:
    kill_everywhere(scene, point, target, 20)


@pytest.mark.parametrize("target", Target)
@pytest.mark.parametrize("point", TURN_POINTS)
def test_kill_where_turns_are_taken(scene: Scene, point: Point, target: Target) -> None:
    kill_everywhere(scene, point, target, 4)


@pytest.mark.parametrize("target", Target)
@pytest.mark.parametrize("point", STORE_POINTS)
def test_kill_where_results_are_stored_elsewhere(
    tmp_path: Path, point: Point, target: Target
) -> None:
    scene = Scene(tmp_path, separate_store=True)
    try:
        kill_everywhere(scene, point, target, 3)
    finally:
        scene.app.close()


@pytest.mark.parametrize("target", Target)
@pytest.mark.parametrize(
    "point",
    [Point.RETURNED, Point.DECIDED, Point.BEFORE_TURN, Point.IN_TURN, Point.AFTER_TURN],
)
def test_kill_where_retries_and_large_outcomes_are_settled(
    scene: Scene, point: Point, target: Target
) -> None:
    """A retry is one step, however often: no task gets lost on the way, and none becomes two."""
    modes = scene.send_with_consequences()
    scene.work_off({"point": point, "target": target, "every": 20, "most": MOST[target]})

    def faults_of(story: Story) -> list[str]:
        large = story.mode == "large"
        return story.faults_of_large_outcomes() if large else story.faults_of_retries(2)

    told = scene.check(modes, faults_of)
    received = tally(kills_in(scene.log))
    _received.update(received)
    kills = received[point, target]
    assert kills > 0, "no kill has reached this point"
    retried = [story for story in told.values() if story.mode == "again"]
    repeated = sum(story.starts - 3 for story in retried)
    lost = sum(story.state == FAILURE for story in told.values())
    at_once = 1 if target is Target.PROCESS else 2
    assert repeated + lost <= at_once * kills, (repeated, lost, kills)
    if point is Point.DECIDED and target is Target.PROCESS:
        assert repeated == 0, retried


ON_REDIS = pytest.mark.parametrize("url", ["redis"], indirect=True)


@ON_REDIS
@pytest.mark.parametrize("target", Target)
@pytest.mark.parametrize(
    ("point", "every"),
    [
        (Point.DECIDED, 20),
        (Point.FETCHED, 4),
        (Point.BEFORE_INBOX, 4),
        (Point.BEFORE_TURN, 4),
        (Point.AFTER_TURN, 4),
    ],
)
def test_kill_on_redis(scene: Scene, point: Point, target: Target, every: int) -> None:
    """Where the broker takes part; what is between these points is the worker's own."""
    kill_everywhere(scene, point, target, every)


# Whoever acts for a dead, slow or leaving process can die at it too.

IN_FUNCTION = {"point": Point.FUNCTION, "target": Target.PROCESS, "every": 15, "most": 12}


@pytest.mark.parametrize(
    "point",
    [
        Point.BEFORE_ABANDON,
        Point.IN_ABANDON,
        Point.AFTER_ABANDON,
        Point.BEFORE_LEAVE,
        Point.AFTER_LEAVE,
    ],
)
def test_kill_of_a_worker_that_settles_for_a_dead_process(scene: Scene, point: Point) -> None:
    """Also of the next worker, while it takes over from the one that was killed at this."""
    kill = {"point": point, "target": Target.WORKER, "every": 1, "most": 5}
    judge_kills(scene, scene.send_all(), point, Target.WORKER, kill, IN_FUNCTION)


@pytest.mark.parametrize(
    ("point", "target"),
    [
        (Point.GIVING_BACK, Target.PROCESS),
        (Point.GIVING_BACK, Target.WORKER),
        (Point.FORBIDDEN, Target.WORKER),
        (Point.FREED, Target.WORKER),
    ],
)
def test_kill_while_work_is_given_back(scene: Scene, point: Point, target: Target) -> None:
    """Behind long tasks; every other of them keeps its process's interpreter to itself."""
    modes = scene.send_all(0.001, 0.0, 0.1, 0.0, 0.0, 0.001, 0.0, -0.15, 0.001, 0.0, 0.0)
    kill = {"point": point, "target": target, "every": 1, "most": MOST[target]}
    judge_kills(scene, modes, point, target, kill)


@pytest.mark.parametrize("target", Target)
def test_kill_of_a_process_that_has_just_been_made_known(scene: Scene, target: Target) -> None:
    modes = scene.send_all()
    kill = {"point": Point.ENLISTED, "target": target, "every": 1, "most": 4}
    judge_kills(scene, modes, Point.ENLISTED, target, kill, IN_FUNCTION)


def judge_kills(
    scene: Scene, modes: dict[str, str], point: Point, target: Target, *kills: dict[str, object]
) -> None:
    """Work off under several faults at once."""
    scene.work_off(*kills)
    told = scene.check(modes)
    received = tally(kills_in(scene.log))
    _received.update(received)
    assert received[point, target] > 0, "no kill has reached this point"
    unexplained = [story for story in told.values() if story.unexplained(None)]
    assert len(unexplained) <= 2 * received.total(), unexplained[:10]
