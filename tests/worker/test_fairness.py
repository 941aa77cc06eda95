"""No process sits on what another could run, and an idle worker costs nothing.

The bounds are those that are promised for an idle machine; medians of many tries are held to
them, so that a single hiccup of the machine doesn't count. Each test prints what it measured.
"""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path
from statistics import median

import pytest
from tests.worker.living import Place

UNSET_OR_ONE = pytest.mark.parametrize("prefetch", [(), ("--prefetch-multiplier", "1")])


def _say(what: str, seconds: list[float], bound: float) -> None:
    print(
        f"{what}: median {median(seconds) * 1000:.1f} ms, slowest {max(seconds) * 1000:.1f} ms "
        f"of {len(seconds)}; bound for the median {bound * 1000:.0f} ms"
    )


def _warm_up(place: Place) -> None:
    """Many short tasks, so that a process that adapts takes several at a time."""
    with place.app.batch():
        results = [place.send("quick", f"warm-{uuid.uuid4()}") for _ in range(200)]
    for result in results:
        result.get(timeout=60)


def _last_start(place: Place, prefix: str) -> float:
    return max(note.at for note in place.notes("start") if note.tag.startswith(prefix))


@UNSET_OR_ONE
@pytest.mark.parametrize("shape", ["two processes", "two workers"])
def test_a_free_slot_takes_a_waiting_task(
    place: Place, shape: str, prefetch: tuple[str, ...]
) -> None:
    if shape == "two workers":
        for _ in range(2):
            place.worker("-c", "1", *prefetch)
    else:
        place.worker("-c", "2", *prefetch)
    waits = []
    for turn in range(20):
        _warm_up(place)
        gate = place.gate(f"gate-{turn}")
        sent_at = time.monotonic()
        # In one message batch, so that one process could well take them all.
        with place.app.batch():
            long = place.send("gated", f"long-{turn}", str(gate))
            short = [place.send("quick", f"short-{turn}-{n}") for n in range(3)]
        for result in short:
            result.get(timeout=60)
        assert not long.ready()
        gate.touch()
        long.get(timeout=60)
        waits.append(_last_start(place, f"short-{turn}-") - sent_at)
    _say(f"short tasks beside a long one, {shape} {prefetch}", waits, 0.1)
    assert median(waits) <= 0.1
    assert max(waits) < 5
    assert set(place.counts("start").values()) == {1}


@UNSET_OR_ONE
def test_what_waits_behind_a_held_interpreter_lock_runs_elsewhere(
    place: Place, prefetch: tuple[str, ...]
) -> None:
    place.worker("-c", "2", *prefetch)
    waits = []
    for turn, seconds in enumerate((3.0, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6)):
        _warm_up(place)
        with place.app.batch():
            long = place.send("hold", f"hold-{turn}", seconds)
            short = [place.send("quick", f"short-{turn}-{n}") for n in range(10)]
        started_at = place.noted("start", f"hold-{turn}")[0].at
        for result in short:
            result.get(timeout=60)
        waits.append(_last_start(place, f"short-{turn}-") - started_at)
        long.get(timeout=60)
    _say(f"10 tasks behind a held interpreter lock {prefetch}", waits, 0.2)
    assert median(waits) <= 0.2
    assert waits[0] < 2  # not after the 3 s
    assert set(place.counts("start").values()) == {1}


def test_what_stands_behind_long_tasks_goes_back(place: Place) -> None:
    """All processes get busy with what they took together with the rest; then one is free."""
    place.worker("-c", "2")
    _warm_up(place)
    first, second = place.gate("first"), place.gate("second")
    with place.app.batch():
        longs = [place.send("gated", f"long-{n}", str(g)) for n, g in enumerate((first, second))]
        rest = [place.send("quick", f"rest-{n}") for n in range(60)]
    place.noted("start", "long-0")
    place.noted("start", "long-1")
    second.touch()
    pids = {result.get(timeout=60) for result in rest}
    assert pids == {longs[1].get(timeout=60)}
    assert not longs[0].ready()
    first.touch()
    longs[0].get(timeout=60)
    assert set(place.counts("start").values()) == {1}


def test_an_idle_worker_is_woken_within_20_ms(place: Place) -> None:
    place.worker("-c", "2")
    place.send("quick", "first").get(timeout=60)
    waits = []
    for turn in range(30):
        sent_at = time.monotonic()
        place.send("quick", f"turn-{turn}").get(timeout=60)
        waits.append(place.notes("start", f"turn-{turn}")[0].at - sent_at)
    _say("an idle worker, from before delay() to the function's first line", waits, 0.02)
    assert median(waits) <= 0.02


def test_an_idle_worker_uses_under_1_percent_of_a_core(place: Place) -> None:
    worker = place.worker("-c", "2")
    place.send("quick", "first").get(timeout=60)
    tree = place.pids(worker.pid)
    assert len(tree) == 4
    before, began = _cpu_seconds(tree), time.monotonic()
    # Time itself is what is measured.
    time.sleep(10)
    used, took = _cpu_seconds(tree) - before, time.monotonic() - began
    print(f"the idle tree used {used:.2f} s of CPU in {took:.1f} s: {100 * used / took:.2f} %")
    assert used / took < 0.01


def _cpu_seconds(pids: list[int]) -> float:
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")
