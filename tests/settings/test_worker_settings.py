"""Settings of workers, each changed for a real one."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from typing import Any

import pytest
from tests.worker.harness import Worker, until
from tests.worker.living import Place

from umbel import states

MakePlace = Callable[[float], Place]


def start(place: Place, *options: str, ready: bool = True, **settings: Any) -> Worker:
    """A worker of the app with these settings."""
    env = {"SETTINGS": json.dumps(settings)}
    return place.worker(*options, app="tests.settings.settings_app", env=env, ready=ready)


# Processes


@pytest.mark.setting("worker_concurrency")
@pytest.mark.parametrize("processes", [1, 3])
def test_concurrency(place: Place, processes: int) -> None:
    worker = start(place, worker_concurrency=processes)
    results = [place.send("gated", f"{n}", str(place.gate())) for n in range(4)]
    place.noted("start", times=processes)
    until(lambda: sum(queue.leased for queue in place.broker.queues()) == processes)
    place.gate().touch()
    assert len({result.get(timeout=30) for result in results}) == processes
    assert worker.stop() == 0, worker.text


@pytest.mark.setting("worker_pool")
@pytest.mark.parametrize("pool", ["prefork", "solo"])
def test_pool(place: Place, pool: str) -> None:
    worker = start(place, worker_pool=pool, worker_concurrency=1)
    ran_in = place.send("quick", "tag").get(timeout=30)
    assert (ran_in == worker.pid) is (pool == "solo")


@pytest.mark.setting("worker_max_tasks_per_child")
@pytest.mark.parametrize("most", [None, 2])
def test_max_tasks_per_child(place: Place, most: int | None) -> None:
    start(place, "-c", "1", worker_max_tasks_per_child=most)
    pids = [place.send("quick", f"{n}").get(timeout=30) for n in range(6)]
    assert len(set(pids)) == (1 if most is None else 3)


@pytest.mark.setting("worker_max_memory_per_child")
@pytest.mark.parametrize("how", ["setting", "option", "none"])
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_max_memory_per_child(place: Place, how: str, pool: str) -> None:
    """After its task, a process that has grown beyond 300 MiB is replaced; others aren't."""
    most = 300 * 1024
    settings: dict[str, Any] = {}
    if how == "setting":
        settings["worker_max_memory_per_child"] = most
    options = ("--max-memory-per-child", str(most)) if how == "option" else ()
    worker = start(place, "-c", "1", "-P", pool, *options, **settings)
    small = [place.send("grow", 1024).get(timeout=30) for _ in range(2)]
    large = place.send("grow", most).get(timeout=30)
    after = place.send("grow", 1024).get(timeout=30)
    assert {*small, large} == {small[0]}
    assert (after == large) is (how == "none")
    assert ("worker_max_memory_per_child is 307200" in worker.text) is (how != "none")


@pytest.mark.setting("worker_prefetch_multiplier")
@pytest.mark.parametrize(("multiplier", "held"), [(None, {1}), (3, {3, 4}), (0, {8})])
def test_prefetch_multiplier(place: Place, multiplier: int | None, held: set[int]) -> None:
    """What stands behind a task that runs long goes back, unless so many may be held; 0 is no
    limit, and the running one may count or not."""
    with place.app.batch():
        for n in range(8):
            place.send("gated", f"{n}", str(place.gate()))
    start(place, "-c", "1", worker_prefetch_multiplier=multiplier)
    place.noted("start")
    until(lambda: sum(queue.leased for queue in place.broker.queues()) in held)
    place.gate().touch()


@pytest.mark.setting("worker_lease_time")
def test_lease_time(make_place: MakePlace) -> None:
    """A silent worker is taken for dead after its lease time, not before."""
    place = make_place(1.0)
    frozen = start(place, "-c", "1")
    late = place.send("gated", "late", str(place.gate()))
    place.noted("start")
    (record,) = place.broker.runs()
    assert json.loads(record.info)["lease_time"] == 1.0
    place.freeze(place.pids(frozen.pid))
    start(place, "-c", "1")
    until(late.ready, 10, "the run is taken for dead")
    assert type(late.result).__name__ == "WorkerLostError"


@pytest.mark.setting("worker_proc_alive_timeout")
@pytest.mark.parametrize("timeout", [0.1, 600.0])
def test_a_slow_start_is_told(place: Place, timeout: float) -> None:
    env = {
        "SETTINGS": json.dumps({"worker_proc_alive_timeout": timeout}),
        "START_GATE": str(place.gate()),
    }
    worker = place.worker("-c", "1", app="tests.settings.settings_app", env=env, ready=False)
    place.noted("process_init")
    told = "hasn't started within 0.1 s (worker_proc_alive_timeout)"
    until(lambda: timeout > 1 or told in worker.text, what="it is said")
    place.gate().touch()
    assert place.send("quick", "tag").get(timeout=30)
    assert worker.text.count("hasn't started within") == (1 if timeout < 1 else 0)


# Modules


@pytest.mark.setting("imports", "include")
@pytest.mark.parametrize("name", ["imports", "include"])
def test_modules_are_imported(place: Place, name: str) -> None:
    env = {"SETTINGS": json.dumps({name: ["tests.settings.extra"]})}
    place.worker("-c", "1", app="tests.settings.settings_app", env=env)
    assert place.send("extra").get(timeout=30) == "from extra"


def test_without_them_the_task_is_unknown(place: Place) -> None:
    start(place, "-c", "1", task_unknown_wait=0)
    extra = place.send("extra")
    until(lambda: place.app.dead.get(extra.id), what="a dead letter")


# Stops


@pytest.mark.setting("worker_soft_shutdown_timeout")
@pytest.mark.parametrize("soft", [0.0, 30.0])
def test_soft_shutdown_timeout(place: Place, soft: float) -> None:
    worker = start(place, "-c", "1", worker_soft_shutdown_timeout=soft)
    running = place.send("gated", "running", str(place.gate()))
    place.noted("start")
    worker.process.send_signal(signal.SIGQUIT)
    if soft:
        until(lambda: "Running tasks have 30.0 s to end" in worker.text)
        place.gate().touch()
    assert worker.process.wait(30) == 0
    until(running.ready)
    assert running.state == (states.SUCCESS if soft else states.FAILURE)


@pytest.mark.setting("worker_enable_soft_shutdown_on_idle")
@pytest.mark.parametrize("on", [True, False])
def test_soft_shutdown_on_idle(place: Place, on: bool) -> None:
    worker = start(
        place,
        "-c",
        "1",
        worker_soft_shutdown_timeout=0.3,
        worker_enable_soft_shutdown_on_idle=on,
    )
    worker.process.send_signal(signal.SIGQUIT)
    assert worker.process.wait(30) == 0
    assert ("Running tasks have 0.3 s to end" in worker.text) is on


# The log


def talked(place: Place, worker: Worker) -> list[str]:
    """The lines of the log once a task has talked and the worker has stopped."""
    place.send("talk", "tag").get(timeout=30)
    assert worker.stop() == 0, worker.text
    return worker.text.splitlines()


@pytest.mark.setting("worker_log_format", "worker_log_datefmt")
def test_log_format(place: Place) -> None:
    worker = start(
        place,
        "-c",
        "1",
        ready=False,
        worker_log_format="W %(asctime)s %(message)s",
        worker_log_datefmt="%Y!",
    )
    lines = talked(place, worker)
    assert any(re.fullmatch(r"W \d{4}! other tag", line) for line in lines)
    assert any(re.fullmatch(r"W \d{4}! .* ready\.", line) for line in lines)
    assert not any(line.startswith("W") and "said tag" in line for line in lines)


@pytest.mark.setting("worker_task_log_format", "worker_task_log_datefmt")
def test_task_log_format(place: Place) -> None:
    worker = start(
        place,
        "-c",
        "1",
        worker_task_log_format="T %(asctime)s %(task_name)s %(message)s",
        worker_task_log_datefmt="%Y?",
    )
    lines = talked(place, worker)
    assert any(re.fullmatch(r"T \d{4}\? talk said tag", line) for line in lines)
    assert not any(line.startswith("T ") and "other tag" in line for line in lines)


@pytest.mark.setting("worker_log_color")
@pytest.mark.parametrize(("colour", "coloured"), [(True, True), (False, False), (None, False)])
def test_log_color(place: Place, colour: bool | None, coloured: bool) -> None:
    """None is for terminals, and the log of the test is a file."""
    lines = talked(place, start(place, "-c", "1", worker_log_color=colour))
    (said,) = [line for line in lines if "said tag" in line]
    (other,) = [line for line in lines if "other tag" in line]
    assert (said.startswith("\x1b[31m["), said.endswith("\x1b[0m")) == (coloured, coloured)
    assert other.startswith("\x1b[33m[") is coloured
    assert any(line.startswith("[") and "INFO" in line for line in lines)


@pytest.mark.parametrize("settings", [{"worker_log_json": True}, {}])
def test_no_colours_in_a_file_or_in_json(place: Place, settings: dict[str, Any]) -> None:
    file = place.folder / "log.txt"
    options = () if settings else ("--logfile", str(file))
    worker = start(place, "-c", "1", *options, ready=not options, worker_log_color=True, **settings)
    assert not [line for line in talked(place, worker) if "\x1b" in line]
    assert not file.exists() or "\x1b" not in file.read_text()


@pytest.mark.setting("worker_hijack_root_logger")
@pytest.mark.parametrize("hijack", [True, False, None])
def test_hijack_root_logger(place: Place, hijack: bool | None) -> None:
    """Unset, a set-up of the app's own is left alone."""
    settings = {} if hijack is None else {"worker_hijack_root_logger": hijack}
    env = {"SETTINGS": json.dumps(settings), "OWN_LOGGING": "1"}
    worker = place.worker("-c", "1", app="tests.settings.settings_app", env=env)
    lines = talked(place, worker)
    assert ("OWN:WARNING:other tag" in lines) is not hijack
    assert any(line.startswith("[") and "other tag" in line for line in lines) is bool(hijack)


@pytest.mark.setting("worker_redirect_stdouts")
@pytest.mark.parametrize("redirect", [True, False])
def test_redirect_stdouts(place: Place, redirect: bool) -> None:
    lines = talked(place, start(place, "-c", "1", worker_redirect_stdouts=redirect))
    assert ("printed tag" in lines) is not redirect
    assert any("WARNING/" in line and "printed tag" in line for line in lines) is redirect


@pytest.mark.setting("worker_redirect_stdouts_level")
def test_redirect_stdouts_level(place: Place) -> None:
    lines = talked(place, start(place, "-c", "1", worker_redirect_stdouts_level="ERROR"))
    assert [line for line in lines if "ERROR/" in line and "printed tag" in line]


# Queues


@pytest.mark.setting("worker_direct")
@pytest.mark.parametrize("direct", [True, False])
def test_a_worker_may_have_a_queue_of_its_own(place: Place, direct: bool) -> None:
    start(place, "-c", "1", "-n", "w1@here", worker_direct=direct)
    own = place.send("quick", "own", queue="w1@here.dq2")
    place.send("quick", "usual").get(timeout=30)
    if direct:
        own.get(timeout=30)
    assert set(place.counts("start")) == ({"own", "usual"} if direct else {"usual"})
