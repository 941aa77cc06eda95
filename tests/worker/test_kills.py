"""Processes, fork servers and whole workers, killed at moments that nobody has chosen."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.worker.harness import Worker, until
from tests.worker.killing import Scene
from tests.worker.living import ON_BOTH

from umbel.states import FAILURE, SUCCESS

PATIENT = 60.0
VICTIMS = ("pool process", "pool process", "fork server", "supervisor", "SIGTERM", "SIGQUIT")


@pytest.fixture
def scene(tmp_path: Path, url: str) -> Iterator[Scene]:
    made = Scene(tmp_path, url=url)
    yield made
    made.app.close()


def states_of(scene: Scene, ids: list[str]) -> dict[str, str]:
    store = scene.app.store
    assert store is not None
    found = zip(ids, store.get(ids), strict=True)
    return {id: "" if result is None else result.state for id, result in found}


def children_of(pid: int) -> list[int]:
    try:
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def pool_of(worker: Worker) -> list[int]:
    return [child for server in children_of(worker.pid) for child in children_of(server)]


def test_kills_of_a_solo_worker(scene: Scene) -> None:
    """Supervisor and pool in one process: there is no other death."""
    modes = scene.send_all(0.002)
    for _ in range(5):
        with scene.worker(options=("-P", "solo")) as worker:
            until(has_said(worker, " ready."), PATIENT)
            time.sleep(random.uniform(0.0, 0.2))  # the moment is the test
            worker.kill()
    scene.work_off(options=("-P", "solo"))
    told = scene.check(modes)
    assert sum(story.state == FAILURE for story in told.values()) <= 5


def strike(worker: Worker, what: str) -> int:
    """SIGKILL to one process of a worker, or another signal to the supervisor; how many there
    were to be killed."""
    if what.startswith("SIG"):
        worker.process.send_signal(signal.Signals[what])
        return 0
    if what == "supervisor":
        worker.kill()
        return 1
    victims = pool_of(worker) if what == "pool process" else children_of(worker.pid)
    for pid in random.sample(victims, min(1, len(victims))):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:  # it has ended by itself
            return 0
    return len(victims[:1])


def has_said(worker: Worker, what: str, times: int = 1) -> Callable[[], bool]:
    """For `until`: whether the log says so; fails where the worker has ended by itself."""

    def ask() -> bool:
        assert worker.process.poll() is None, worker.text
        return worker.text.count(what) >= times

    return ask


def wait_for_size(file: Path, size: int) -> None:
    until(lambda: file.stat().st_size > size, PATIENT)


def test_twenty_kills_in_a_stream_of_short_tasks_lose_none_that_had_ended(scene: Scene) -> None:
    count, kills = 30_000, 20
    with scene.app.batch():
        ids = [scene.send("quick") for _ in range(count)]
    journal = scene.log.with_name("quick")
    journal.touch()
    per_task = len(f"told\t{ids[0]}\nend\t{ids[0]}\n")
    with scene.worker() as worker:
        for number in range(1, kills + 1):
            wait_for_size(journal, number * count // (kills + 1) * per_task)
            until(lambda: strike(worker, "pool process"), PATIENT)
        until(scene.ended, PATIENT, scene.where())
        assert worker.stop() == 0, worker.text
    states = states_of(scene, ids)
    notes = [line.split("\t") for line in journal.read_text().splitlines()]
    ran = Counter(id for word, id in notes if word == "end")
    told = {id for word, id in notes if word == "told"}
    lost = {id for id, state in states.items() if state == FAILURE}
    assert {id for id, state in states.items() if state == SUCCESS} == set(ids) - lost
    assert {letter.id for letter in scene.app.broker.dead()} == lost
    assert not lost & told, "a task that had ended is reported as lost"
    assert len(lost) <= kills
    assert max(ran.values()) == 1
    print(f"{kills} kills, {len(lost)} tasks lost, {len(lost & ran.keys())} of them at their end")


@ON_BOTH
def test_tasks_of_a_batch_that_were_done_before_a_hard_limit_are_not_run_again(
    scene: Scene,
) -> None:
    """The third of each three keeps the interpreter, so its process can settle nothing."""
    with scene.app.batch():
        done = [scene.send("late+reject") for _ in range(30)]
        limited = []
        for _ in range(3):
            done += [scene.send("late+reject") for _ in range(2)]
            limited.append(scene.send("early", -30.0, time_limit=0.5))
    with scene.worker(options=("-c", "1")) as worker:
        until(scene.ended, PATIENT, scene.where())
        assert worker.stop() == 0, worker.text
        assert worker.text.count("Hard time limit (0.5s) exceeded") == 3
    events = Counter(line.rpartition("\t")[0] for line in scene.log.read_text().splitlines())
    for id in done:
        assert (events[f"start\t{id}"], events[f"end\t{id}"]) == (1, 1)
    dead = {letter.id: letter.error for letter in scene.app.broker.dead()}
    assert dead == dict.fromkeys(limited, "TimeLimitExceeded")
    assert set(states_of(scene, done).values()) == {SUCCESS}


def test_delayed_tasks_survive_twenty_kills_of_every_worker_and_run_once(scene: Scene) -> None:
    """They fall due between the kills and after them."""
    first, last, kills = 3.0, 18.0, 20
    with scene.app.batch():
        modes = {
            scene.send("early", countdown=first + (last - first) * number / 1000): "early"
            for number in range(1000)
        }
    for _ in range(kills):
        with scene.worker(options=("-c", "1")) as one, scene.worker(options=("-c", "1")) as two:
            until(has_said(one, " ready."), PATIENT)
            until(has_said(two, " ready."), PATIENT)
            one.kill()
            two.kill()
    scene.work_off()
    told = scene.check(modes)
    lost = [story for story in told.values() if story.state == FAILURE]
    assert len(lost) <= 2 * kills
    assert all(story.starts == 1 for story in told.values() if story.state == SUCCESS)
    print(f"{kills} kills of every worker, {len(lost)} tasks were running then")


@ON_BOTH
def test_killed_fork_servers_cost_only_what_was_running(scene: Scene) -> None:
    modes = scene.send_all(0.01)
    with scene.worker() as worker:
        for number in range(1, 4):
            until(has_said(worker, " ready.", number), PATIENT)
            assert strike(worker, "fork server") == 1
            until(has_said(worker, "its fork server died", number), PATIENT)
        until(has_said(worker, " ready.", 4), PATIENT)
        until(scene.ended, PATIENT, scene.where())
        assert worker.stop() == 0, worker.text
    told = scene.check(modes)
    assert sum(story.cut_off for story in told.values()) <= 2 * 3
    assert sum(story.state == FAILURE for story in told.values()) <= 2 * 3


@pytest.mark.parametrize("what", ["fork server", "supervisor"])
def test_what_a_task_has_forked_holds_up_nothing(scene: Scene, what: str) -> None:
    """Though it has inherited whatever its process had open."""
    scene.env["UMBEL_WORKER_LEASE_TIME"] = "600"
    with scene.worker(options=("-c", "1")) as worker:
        pid = int(scene.app.AsyncResult(scene.send("orphan", 100.0)).get(timeout=PATIENT))
        try:
            modes = {scene.send("late+reject", 2.0): "late+reject", scene.send("early"): "early"}
            until(lambda: "start" in scene.log.read_text(), PATIENT)
            strike(worker, what)
            if what == "supervisor":
                scene.work_off()
            else:
                until(scene.ended, PATIENT, scene.where())
            worker.stop()
        finally:
            os.kill(pid, signal.SIGKILL)
    told = scene.check(modes)
    assert {story.mode: story.starts for story in told.values()} == {"early": 1, "late+reject": 2}


@ON_BOTH
@pytest.mark.parametrize("heir_lives", [True, False])
def test_a_dead_worker_is_inherited_at_once_on_its_host(scene: Scene, heir_lives: bool) -> None:
    """By a worker that lives, or by the next that starts: long before the lease has passed."""
    scene.env["UMBEL_WORKER_LEASE_TIME"] = "600"
    modes = {scene.send(mode, 2.0): mode for mode in ("early", "late")}
    with ExitStack() as stack:
        dying = stack.enter_context(scene.worker())
        until(lambda: scene.log.read_text().count("start") == 2, PATIENT)
        for pid in pool_of(dying):  # so that no task ends while an heir starts
            os.kill(pid, signal.SIGSTOP)
        heir = None
        if heir_lives:
            heir = stack.enter_context(scene.worker())
            heir.pool(scene.app.broker)
        dying.kill()
        heir = heir or stack.enter_context(scene.worker())
        until(lambda: scene.log.read_text().count("start") == 3, PATIENT, heir.text)
        until(lambda: "failed" in scene.log.read_text(), PATIENT)
        until(scene.ended, PATIENT, scene.where())
        assert heir.stop() == 0, heir.text
    told = scene.check(modes)
    states = {story.mode: story.state for story in told.values()}
    assert states == {"early": FAILURE, "late": SUCCESS}


@ON_BOTH
def test_kills_of_whatever_there_is_at_whatever_moment(scene: Scene) -> None:
    """Pool processes, fork servers and supervisors of two workers, also while they stop."""
    modes = scene.send_all(0.0, 0.001, 0.03, 0.0, 0.005, 0.0, -0.08, 0.0, 0.0, 0.002, 0.0)
    killed: Counter[str] = Counter()
    with ExitStack() as stack:
        workers = [stack.enter_context(scene.worker()) for _ in range(2)]
        for worker in workers:
            until(has_said(worker, " ready."), PATIENT)
        for _ in range(25):
            time.sleep(random.uniform(0.0, 0.3))  # the moment is the test
            place = random.randrange(2)
            what = random.choice(VICTIMS)
            killed[what] += strike(workers[place], what)
            if workers[place].process.poll() is not None:
                workers[place] = stack.enter_context(scene.worker())
    scene.work_off()
    told = scene.check(modes)
    lost = sum(story.state == FAILURE for story in told.values())
    print(f"killed {dict(killed)}; {lost} tasks lost")
    assert killed.total() > 0
