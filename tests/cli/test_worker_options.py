"""``umbel worker``: Celery's options, and what is said about those that aren't there."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.helpers import Ended, clean_environment, wait_until

from umbel import Umbel
from umbel.cli.worker import command
from umbel.worker.options import WorkerOptions, usable_processors

Run = Callable[..., Ended]


def parse(*arguments: str) -> WorkerOptions:
    given = command.make_context("worker", [*arguments]).params
    for own in ("log_json", "reload", "reload_dir"):  # what the command sees to itself
        assert not given.pop(own)
    return WorkerOptions(**given)


def test_defaults_leave_the_choice_to_the_settings() -> None:
    assert parse() == WorkerOptions()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["-n", "w1@%h", "-c", "3", "-P", "solo"],
         WorkerOptions(hostname="w1@%h", concurrency=3, pool="solo")),
        (["-c", "auto"], WorkerOptions(concurrency=usable_processors())),
        (["-P", "processes"], WorkerOptions(pool="prefork")),
        (["-l", "info", "-f", "w.log"], WorkerOptions(loglevel="INFO", logfile="w.log")),
        (["--loglevel=15"], WorkerOptions(loglevel=15)),
        (["-Q", "a,b", "-Q", "c", "-X", "b", "-I", "x.y, z"],
         WorkerOptions(queues=("a", "b", "c"), exclude_queues=("b",), include=("x.y", "z"))),
        (["--time-limit", "2.5", "--soft-time-limit=1", "--max-tasks-per-child", "9"],
         WorkerOptions(time_limit=2.5, soft_time_limit=1, max_tasks_per_child=9)),
        (["--prefetch-multiplier", "0", "--discard", "--events"],
         WorkerOptions(prefetch_multiplier=0, purge=True)),
        (["--purge", "-E"], WorkerOptions(purge=True)),
        (["--without-gossip", "--without-mingle", "--without-heartbeat", "-O", "fair",
          "--heartbeat-interval", "3", "-S", "state.db", "--disable-prefetch"], WorkerOptions()),
    ],
)  # fmt: skip
def test_celerys_options(arguments: list[str], expected: WorkerOptions) -> None:
    assert parse(*arguments) == expected


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-c", "0"], "--concurrency 0: expected a whole number from 1, or 'auto'"),
        (["-c", "many"], "--concurrency many: expected"),
        (["-l", "loud"], "--loglevel loud: expected one of DEBUG, INFO,"),
        (["-P", "gevent"], "this one has prefork (the default), threads, asyncio and solo"),
        (["-P", "eventlet"], "greenlets come with a later release"),
        (["-P", "nope"], "--pool nope: this one has prefork (the default), threads, asyncio and"),
        (
            ["-P", "prefork", "--processes", "2"],
            "--processes 2 is for the pools threads and asyncio",
        ),
        (["--processes", "0"], "--processes"),
        (["-B"], "-B/--beat isn't an option of this worker: periodic tasks come"),
        (["--autoscale", "10,2"], "-c sets its size"),
        (["-D"], "process manager"),
        (["--pidfile", "x"], "process manager"),
        (["--uid", "1"], "start the worker as that user"),
        (["--max-memory-per-child", "0"], "0 is not in the range"),
        (["--time-limit", "-1"], "--time-limit -1: expected seconds, above 0 and below a billion"),
        (["--time-limit", "0"], "--time-limit 0: expected seconds, above 0"),
        (["--time-limit", "nan"], "--time-limit nan: expected seconds"),
        (["--time-limit", "1e11"], "--time-limit 1e11: expected seconds"),
        (["--soft-time-limit", "inf"], "--soft-time-limit inf: expected seconds"),
        (["--soft-time-limit", "soon"], "--soft-time-limit soon: expected seconds"),
        (["--prefetch-multiplier", "65536"], "65536 is not in the range"),
        (["--max-tasks-per-child", "0"], "0"),
        (["--time-limit", "5", "--soft-time-limit", "5"], "--soft-time-limit 5 isn't below"),
        (["--concurency", "2"], "no such option"),
    ],
)
def test_what_it_refuses_in_one_sentence(umbel: Run, arguments: list[str], said: str) -> None:
    ended = umbel("-A", "proj", "worker", *arguments)
    assert ended.code == 64
    assert said in ended.sentence


def test_several_processes_of_the_solo_pool(umbel: Run) -> None:
    options = ["--time-limit", "5", "-P", "solo", "-c", "4"]  # which solo can't keep, so it ends
    ended = umbel("-A", "proj", "worker", *options)
    assert "umbel: the solo pool runs one process, not 4\n" in ended.err
    assert "one process" not in umbel("-A", "proj", "worker", *options[:-1], "1").err


def test_a_broker_that_lives_in_one_process(umbel: Run) -> None:
    ended = umbel("-A", "proj", "-b", "memory://", "worker")
    assert ended.code == 78
    assert "memory://" in ended.sentence
    assert "sqlite:///tasks.db" in ended.sentence


def test_a_worker_from_start_to_stop(folder: Path, umbel: Run, app: Umbel) -> None:
    options = ["-l", "INFO", "-c", "1", "-n", "w1@here", "-f", "w.log"]
    process = subprocess.Popen(
        [sys.executable, "-m", "umbel", "-A", "proj", "worker", *options],
        cwd=folder,
        env=clean_environment(),
    )
    try:
        # It is enlisted a moment before it answers.
        said = "->  w1@here: OK\n"
        wait_until(lambda: umbel("-A", "proj", "status").out == said, "a worker online")
        sent = umbel("-A", "proj", "call", "proj.add", "-a", "[2, 3]").out.strip()
        assert umbel("-A", "proj", "result", sent).out == "5\n"
        sent = umbel("-A", "proj", "call", "proj.boom").out.strip()
        failed = umbel("-q", "-A", "proj", "result", sent)
        assert (failed.code, failed.sentence) == (1, "umbel: FAILURE: ValueError: no good")
        traceback = umbel("-A", "proj", "result", sent, "--traceback")
        assert traceback.code == 0
        assert "in boom" in traceback.out
        assert "ValueError: no good" in umbel("-A", "proj", "why", sent).out
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert "proj.add" in (folder / "w.log").read_text()
