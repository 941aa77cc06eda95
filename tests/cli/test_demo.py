"""``umbel demo`` as a person runs it: a process, with workers of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.helpers import Ended, clean_environment, hear_interrupts, shell, wait_until


@pytest.fixture
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the demo puts its files; nothing of it may be left, neither files nor processes."""
    folder = tmp_path_factory.mktemp("t")
    yield folder
    assert list(folder.iterdir()) == []
    # A worker that is stopped while it starts takes its children with it, but not in one step.
    wait_until(lambda: not processes_about(folder), "the end of all processes", limit=5)


def processes_about(folder: Path) -> list[str]:
    """The command lines that name `folder`."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in line:
            found.append(line)
    return found


def demo(folder: Path, scratch: Path) -> Ended:
    return shell("demo", str(folder), cwd=folder.parent, TMPDIR=str(scratch))


@pytest.mark.parametrize("number", [1, 3, 60])
def test_every_count_adds_up(tmp_path: Path, scratch: Path, number: int) -> None:
    for n in range(number):
        (tmp_path / f"{n}.txt").write_text("word " * n)
    ended = demo(tmp_path, scratch)
    assert (ended.code, ended.err) == (0, ""), ended
    assert f"{number} text file" in ended.out
    summary = dict(re.findall(r"^  ([a-z ]+?) +([\d,.]+)$", ended.out, re.MULTILINE))
    assert summary["files"] == str(number)
    assert summary["dead letters"] == "1"
    assert int(summary["retries"]) > 0 or number == 1
    assert "WorkerLostError" in ended.out
    assert "umbel dead requeue" in ended.out
    assert ended.out.endswith("Every count adds up.\n")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("empty", "there are no text files under"),
        ("missing", "doesn't exist; name one with text files in it"),
        ("file", "isn't a folder"),
        ("binary", "there are no text files under binary (left out: 1 binary)"),
    ],
)
def test_a_folder_without_text(tmp_path: Path, scratch: Path, name: str, said: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    (tmp_path / "binary").mkdir()
    (tmp_path / "binary" / "x").write_bytes(b"\0")
    ended = shell("demo", name, cwd=tmp_path, TMPDIR=str(scratch))
    assert ended.code == 66
    assert said in ended.sentence


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_nothing_behind(
    tmp_path: Path, scratch: Path, number: signal.Signals
) -> None:
    for n in range(500):
        (tmp_path / f"{n}.txt").write_text("word " * n)
    process = subprocess.Popen(
        [sys.executable, "-m", "umbel", "demo", str(tmp_path)],
        env=clean_environment(TMPDIR=str(scratch)),
        preexec_fn=hear_interrupts,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    # Its workers are the first to name its folder.
    wait_until(lambda: len(processes_about(scratch)) > 0, "a worker")
    os.kill(process.pid, number)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err.strip()) == (130, "umbel: interrupted")
