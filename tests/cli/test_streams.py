"""Outputs that take nothing more, or not every letter."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.helpers import Ended, clean_environment

from umbel import Umbel

pytestmark = pytest.mark.filterwarnings("ignore::umbel.exceptions.NoWorkerYet")
needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")


def through_a_shell(line: str, folder: Path, **environment: str) -> Ended:
    """Run `line`, in which ``$umbel`` is the command."""
    done = subprocess.run(
        ["bash", "-c", line],
        cwd=folder,
        env=clean_environment(umbel=f"{sys.executable} -m umbel -A proj", **environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
    )
    return Ended(done.returncode, done.stdout.decode(), done.stderr.decode())


@needs_full
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("command", ["queues", "queues --json", "--help", "why x"])
def test_a_full_disk_is_one_sentence(
    folder: Path, app: Umbel, command: str, unbuffered: str
) -> None:
    ended = through_a_shell(f"$umbel {command} > /dev/full", folder, PYTHONUNBUFFERED=unbuffered)
    assert ended.code == 74
    assert ended.sentence == "umbel: the output can't be written: No space left on device"


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_who_has_read_enough_hears_nothing_more(folder: Path, app: Umbel, unbuffered: str) -> None:
    line = "$umbel queues | true; exit ${PIPESTATUS[0]}"
    ended = through_a_shell(line, folder, PYTHONUNBUFFERED=unbuffered)
    assert (ended.code in (0, 1), ended.err) == (True, "")  # 0: it was the faster one


@pytest.mark.parametrize(
    ("command", "code"),
    [
        pytest.param("queues 2> /dev/full", 0, marks=needs_full),
        ("queues 2>&-", 0),
        ("queues >&-", 0),
        pytest.param("call nobodys.task 2> /dev/full", 0, marks=needs_full),
        pytest.param("zzz 2> /dev/full", 64, marks=needs_full),
    ],
)
def test_what_nobody_can_hear_changes_nothing(
    folder: Path, app: Umbel, command: str, code: int
) -> None:
    ended = through_a_shell(f"$umbel {command}", folder)
    assert (ended.code, ended.err) == (code, "")


def test_letters_that_the_encoding_lacks(folder: Path, app: Umbel) -> None:
    app.send_task("x", queue="grün🐍")
    ended = through_a_shell("$umbel queues", folder, PYTHONIOENCODING="ascii")
    assert ended.code == 0
    assert "gr\\xfcn\\U0001f40d" in ended.out
    ended = through_a_shell("$umbel queues --json", folder, PYTHONIOENCODING="ascii")
    assert "grün🐍" in [queue["name"] for queue in json.loads(ended.out)]
    ended = through_a_shell("$umbel dead show grün", folder, PYTHONIOENCODING="ascii")
    assert "there is no dead letter 'gr" in ended.sentence
