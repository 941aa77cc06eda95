"""The measuring itself: it runs as a command, and a run that doesn't add up has no figures."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from bench import run, together
from bench.bed import Ground, Worker, until
from bench.contenders import CONTENDERS, Contender
from bench.figures import DoesNotAddUp, Figure, Measured, Workload, spread
from bench.notes import Notes
from bench.page import Run, page, text
from bench.processes import cpu_seconds, pss_mib, tree
from bench.server import RedisServer
from bench.targets import BEST, Less, Limit, More, Target, Within

ROOT = Path(__file__).resolve().parents[2]


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench.run", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_umbel_is_measured_beside_the_floor() -> None:
    ended = bench(
        "drain", "enqueue", "--peers", "umbel-late,floor", "--tasks", "100",
        "--rounds", "1",
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert "failed" not in ended.stdout
    assert ended.stdout.count("drain, stored, CPU: ") == 2
    assert ended.stdout.count("enqueue, in bulk, CPU: ") == 1
    assert "umbel-late: celery / 50: not measured; the best peer / 8: not measured; 3 x floor" in (
        ended.stdout
    )


def test_umbel_is_measured_on_sqlite(tmp_path: Path) -> None:
    with RedisServer(tmp_path) as server:
        ground = Ground(contender("umbel-sqlite"), server, tmp_path, 20)
        values = together.WORKLOAD.measure(ground)
    assert values["sent while it runs, rate"] > 0


def test_a_workload_and_a_peer_that_are_not_there_are_named() -> None:
    ended = bench("drian")
    assert ended.returncode == 2
    assert "there is no workload 'drian'" in ended.stderr
    ended = bench("--peers", "celary")
    assert ended.returncode == 2
    assert "there is no peer 'celary'" in ended.stderr


def test_a_page_of_a_part_is_refused() -> None:
    assert bench("--write", "calls").returncode == 2
    assert bench("--write", "--peers", "umbel").returncode == 2


def contender(name: str) -> Contender:
    return next(each for each in CONTENDERS if each.name == name)


def test_a_drain_is_accounted_for(tmp_path: Path) -> None:
    with RedisServer(tmp_path) as server:
        bed = Ground(contender("umbel"), server, tmp_path, 20).bed()
        with bed.parking() as parking:
            with Worker(bed, parking) as worker:
                ids = parking.send("noop", range(20))
                parking.release()
                worker.run(20)
            assert ids is not None
            assert sorted(each.number for each in bed.account(ids, 20)) == list(range(20))
            with pytest.raises(DoesNotAddUp, match="21 tasks were sent; 20 executions of 20"):
                bed.account(ids, 21)
            with pytest.raises(DoesNotAddUp, match="19 tasks were sent"):
                bed.account(ids, 19)
            with pytest.raises(DoesNotAddUp, match="20 of 21 results are SUCCESS"):
                bed.account([*ids, "never-stored"], 20)
            server.client.set("umbel:leases:here#1", "left")
            with pytest.raises(DoesNotAddUp, match="1 keys are left, such as 'umbel:leases"):
                bed.account(ids, 20)
            server.client.delete("umbel:leases:here#1")
            parking.send("noop", range(20, 21))
            parking.release()
            with pytest.raises(DoesNotAddUp, match=r"something is left: .*ready=1"):
                bed.account(ids, 20)


def test_what_fails_is_said_and_the_rest_goes_on() -> None:
    def fails(ground: Ground) -> dict[str, float]:
        raise DoesNotAddUp("2 of 3 ran")

    measured = Measured()
    broken = Workload("drain", "tasks", (Figure("drain, ignored, CPU", "µs"),), fails)
    who = [contender("umbel"), contender("celery")]
    whole = Run([broken], who, 1, 20, "7", measured)
    measured.add("drain, ignored, CPU", "celery", 1, 1000.0)
    ground = Ground(who[0], None, Path(), 20)  # type: ignore[arg-type]  # it isn't touched
    run.take(broken, ground, measured)
    assert "failed: 2 of 3 ran (round 1)" in text(whole)
    assert "drain, ignored, CPU: 1,000" in text(whole)
    assert "failed: 2 of 3 ran (round 1)" in page(whole)
    assert "\n\n## Targets\n\n" in page(whole)


_FAMILY = """
import os, threading, time
def burn():
    ends = time.process_time() + 0.1
    while time.process_time() < ends: pass
def fork(reaps):
    child = os.fork()
    if child == 0:
        burn()
        if not reaps:
            time.sleep(60)
        os._exit(0)
    if reaps:
        os.waitpid(child, 0)
    else:
        time.sleep(60)
fork(True)
threading.Thread(target=fork, args=(False,)).start()
burn()
print("burnt", flush=True)
"""


def test_cpu_is_that_of_the_whole_tree_and_of_those_that_have_ended() -> None:
    family = subprocess.Popen(
        [sys.executable, "-c", _FAMILY], stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        assert family.stdout is not None
        family.stdout.readline()
        until(lambda: cpu_seconds(family.pid) > 0.28, "all three have used 0.1 s", 20)
        assert len(list(tree(family.pid))) == 2
        assert pss_mib(family.pid) > 1
    finally:
        os.killpg(family.pid, signal.SIGKILL)
        family.communicate()


def test_each_process_has_notes_of_its_own(tmp_path: Path) -> None:
    program = "import os; from bench.notes import note; note(1); os.fork(); note(2)"
    environment = {**os.environ, "BENCH_NOTES": str(tmp_path), "BENCH_CAPACITY": "10"}
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=environment, check=True)
    notes = Notes(tmp_path)
    until(lambda: notes.count == 3, "both have noted", 10)
    assert notes.processes == 2
    assert [each.number for each in notes.read()] == [1, 2, 2]


def test_targets_are_judged_by_ratios_within_rounds() -> None:
    measured = Measured()
    for number, (mine, celerys, dramatiqs, hueys) in enumerate(
        [(10, 250, 80, 40), (20, 480, 160, 100), (10, 260, 80, 30)], 1
    ):
        measured.add("CPU", "umbel", number, mine)
        measured.add("CPU", "celery", number, celerys)
        measured.add("CPU", "dramatiq", number, dramatiqs)
        measured.add("CPU", "huey", number, hueys)
    less = Less("CPU", "celery", 25).judge(measured, "umbel")
    assert less.is_reached
    assert less.text == "celery / 25: is / 25"
    best = Less("CPU", BEST, 5).judge(measured, "umbel")
    assert best.is_reached is False
    assert best.text == "huey / 5: is / 4"
    assert More("CPU", "celery", 0.05).judge(measured, "umbel").is_reached is False
    assert Within("CPU", "huey", 0.25).judge(measured, "umbel").is_reached
    assert Limit("CPU", "µs", at_most=9).judge(measured, "umbel").is_reached is False
    assert Limit("CPU", "µs", at_least=9).judge(measured, "umbel").is_reached
    assert Less("CPU", "taskiq", 2).judge(measured, "umbel").is_reached is None
    row = Target("CPU", (Less("CPU", "celery", 25),), subjects=("umbel", "umbel-late"))
    assert row.judge(row.first, measured).is_reached is None


def test_a_spread_has_least_and_greatest() -> None:
    assert spread(Figure("wait", "ms", digits=1), [2.0, 1.0, 4.0]) == "2.0 (1.0 to 4.0)"
    assert spread(Figure("wait", "ms"), [2000.0]) == "2,000"
