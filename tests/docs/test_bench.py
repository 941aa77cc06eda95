"""The measuring itself: it runs as a command, and a run that doesn't add up has no figures."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from bench.figures import DoesNotAddUp, Figure
from bench.harness import account, sending_to
from bench.tasks import app, noop

from umbel.exceptions import NoWorkerYet

ROOT = Path(__file__).resolve().parents[2]


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "bench/run.py", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_a_workload_runs_as_a_command() -> None:
    ended = bench("--rounds", "2", "calls")
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.strip().splitlines()
    assert lines[0].split() == ["figure", "median", "least", "greatest", "target"]
    assert lines[1].startswith("publish, Python calls, per message")
    assert "40 or less" in lines[1]
    assert lines[4].startswith("consume, Python calls, per message")
    assert "90 or less" in lines[4]


def test_a_workload_that_is_not_there_is_named() -> None:
    ended = bench("drian")
    assert ended.returncode == 2
    assert "there is no workload 'drian'" in ended.stderr


def test_a_page_of_part_of_the_workloads_is_refused() -> None:
    assert bench("--write", "calls").returncode == 2


def test_what_does_not_add_up_is_refused(tmp_path: Path) -> None:
    with sending_to(tmp_path), warnings.catch_warnings():
        warnings.simplefilter("ignore", NoWorkerYet)
        app.broker.declare(["celery"])
        account([0, 1, 2], 3)
        for numbers in ([0, 2], [0, 1, 1], [0, 0, 1, 2], []):
            with pytest.raises(DoesNotAddUp, match="3 tasks were sent"):
                account(numbers, 3)
        with pytest.raises(DoesNotAddUp, match="0 of 1 results"):
            account([0], 1, ["never-stored"])
        noop.delay(0)
        with pytest.raises(DoesNotAddUp, match="ready=1"):
            account([0], 1)


def test_a_target_is_reached_or_missed() -> None:
    assert Figure("rate", "tasks", at_least=2000).verdict(1999) == "missed (1.00x)"
    assert Figure("rate", "tasks", at_least=2000).verdict(2000) == "reached (1.00x)"
    assert Figure("wait", "ms", at_most=10).verdict(12.5) == "missed (1.25x)"
    assert Figure("wait", "ms").verdict(1) == ""
