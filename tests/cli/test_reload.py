"""`umbel worker --reload`: real watchers, real workers, files that really change."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue

import pytest
from tests.cli.helpers import clean_environment, hear_interrupts, shell, wait_until

from umbel import AsyncResult, Umbel
from umbel.cli.exits import Mistake
from umbel.cli.reload import VARIABLE, Changes, folders_to_watch, start_number

CODE = """
import os, time
from umbel import Umbel
app = Umbel("proj", broker="sqlite:///tasks.db")

@app.task(name="version")
def version():
    return {version}

@app.task(name="wait")
def wait(gate):
    open(gate + ".begun", "w").close()
    while not os.path.exists(gate):
        time.sleep(0.01)
    return {version}
"""
NOBODY = 2**22 + 1
"""More than any process id of Linux."""


class Watched:
    """A watcher with its workers, in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = f"UMBEL_TEST_MARK={uuid.uuid4()}"
        self.app = Umbel("client", broker=f"sqlite:///{folder}/tasks.db", set_as_current=False)
        self.log = folder / "log.txt"
        self.write(1)

    def write(self, version: int | str, name: str = "proj.py") -> None:
        (self.folder / name).write_text(CODE.replace("{version}", str(version)))

    def start(
        self,
        *options: str,
        command: str = f"{sys.executable} -m umbel -A proj worker -l INFO -c 1 --reload",
        preexec: Callable[[], None] = hear_interrupts,
        ready: bool = True,
    ) -> None:
        name, value = self.mark.split("=")
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                [*command.split(), *options],
                cwd=self.folder,
                env=clean_environment(PYTHONDONTWRITEBYTECODE="", **{name: value}),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                preexec_fn=preexec,
            )
        if ready:
            self.ready(1)

    @property
    def text(self) -> str:
        return self.log.read_text()

    def says(self, words: str, times: int = 1) -> None:
        wait_until(lambda: self.text.count(words) >= times, f"{words!r} x {times}: {self.text}")

    def ready(self, times: int) -> None:
        self.says(" ready.", times)

    def runs(self, name: str, *args: object) -> AsyncResult[object]:
        return self.app.send_task(name, args)

    def begun(self, gate: Path) -> AsyncResult[object]:
        result = self.runs("wait", str(gate))
        wait_until(Path(f"{gate}.begun").exists, f"the task has begun: {self.text}")
        return result

    def pids(self) -> list[int]:
        found = []
        for entry in Path("/proc").iterdir():
            with suppress(OSError, ValueError):
                is_ours = self.mark.encode() in (entry / "environ").read_bytes().split(b"\0")
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                if is_ours and state != "Z":
                    found.append(int(entry.name))
        return found

    def ended(self) -> int:
        code = self.process.wait(30)
        wait_until(lambda: not self.pids(), "no process is left")
        return code


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    watched = Watched(tmp_path)
    yield watched
    for pid in watched.pids():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    with suppress(AttributeError):
        watched.process.wait(10)
    watched.app.close()


pytestmark = pytest.mark.filterwarnings("ignore::umbel.exceptions.NoWorkerYet")


def test_changed_code_is_what_runs_next(watched: Watched) -> None:
    watched.start()
    assert "--reload is for development, not for production" in watched.text
    assert watched.runs("version").get(timeout=30) == 1
    before = (watched.folder / "proj.py").stat()
    watched.write(2)
    # As if both were of one second, by which Python takes what it has compiled for fresh.
    os.utime(watched.folder / "proj.py", ns=(before.st_atime_ns, before.st_mtime_ns))
    watched.says("proj.py changed; the worker ends what it runs and starts anew")
    watched.ready(2)
    assert watched.runs("version").get(timeout=30) == 2
    watched.process.terminate()
    assert watched.ended() == 0


def test_code_that_cannot_be_imported_waits_for_the_next_change(watched: Watched) -> None:
    watched.start()
    watched.write("(")
    watched.says("SyntaxError: ")
    watched.says("the worker ended with exit code 1; the next change of its code starts it again")
    assert watched.process.poll() is None
    watched.write(3)
    watched.says("proj.py changed; the worker starts\n")
    watched.ready(2)
    assert watched.runs("version").get(timeout=30) == 3
    watched.process.terminate()
    assert watched.ended() == 0


def test_it_may_start_with_code_that_is_broken(watched: Watched) -> None:
    watched.write("(")
    watched.start(ready=False)
    watched.says("the next change of its code starts it again")
    watched.process.send_signal(signal.SIGINT)
    assert watched.ended() == 1


def test_running_tasks_end_before_new_code_starts(watched: Watched, tmp_path: Path) -> None:
    watched.start()
    gate = tmp_path / "gate"
    running = watched.begun(gate)
    watched.write(2)
    watched.says("Warm shutdown")
    waiting = watched.runs("version")
    watched.write(3)
    watched.says("proj.py changed too; the worker starts once its tasks have ended")
    watched.says("the worker still runs tasks that it had begun")
    assert watched.text.count(" ready.") == 1
    gate.touch()
    assert running.get(timeout=30) == 1
    assert waiting.get(timeout=30) == 3
    watched.process.terminate()
    assert watched.ended() == 0


@pytest.mark.parametrize(
    ("number", "code", "state"),
    [
        (signal.SIGTERM, 0, "SUCCESS"),
        (signal.SIGINT, 1, "SUCCESS"),
        (signal.SIGHUP, 0, "SUCCESS"),  # the terminal has gone
        (signal.SIGQUIT, 0, "FAILURE"),
    ],
)
def test_signals_end_both_as_they_end_a_worker(
    watched: Watched, tmp_path: Path, number: int, code: int, state: str
) -> None:
    watched.start()
    gate = tmp_path / "gate"
    running = watched.begun(gate)
    watched.process.send_signal(number)
    watched.says("Cold shutdown" if state == "FAILURE" else "Warm shutdown")
    gate.touch()
    assert watched.ended() == code
    assert running.state == state


def test_an_interrupt_while_a_change_waits_is_warm_and_the_second_cold(
    watched: Watched, tmp_path: Path
) -> None:
    watched.start()
    running = watched.begun(tmp_path / "gate")
    watched.write(2)
    watched.says("Warm shutdown")
    watched.process.send_signal(signal.SIGINT)
    wait_until(lambda: _has_handled(watched.process.pid, signal.SIGINT), "the signal is taken")
    assert "Cold" not in watched.text
    watched.process.send_signal(signal.SIGINT)
    assert watched.ended() == 1
    assert running.state == "FAILURE"
    assert watched.text.count(" ready.") == 1


def _has_handled(pid: int, number: int) -> bool:
    """Whether the signal doesn't wait any more, so that Python at least knows of it."""
    status = Path(f"/proc/{pid}/status").read_text()
    pending = re.findall(r"^(?:SigPnd|ShdPnd):\s+(\w+)$", status, re.MULTILINE)
    asleep = "State:\tS" in status
    return asleep and not any(int(mask, 16) >> (number - 1) & 1 for mask in pending)


def test_a_killed_watcher_takes_its_worker_along(watched: Watched, tmp_path: Path) -> None:
    watched.start()
    running = watched.begun(tmp_path / "gate")
    assert len(watched.pids()) >= 4  # watcher, supervisor, fork server, pool process
    watched.process.kill()
    assert watched.ended() == -signal.SIGKILL
    watched.start()  # and finds what that one has left
    wait_until(lambda: running.state == "FAILURE", "the task is known to be lost")
    watched.process.terminate()
    assert watched.ended() == 0


def test_ctrl_c_at_a_terminal_is_one_signal(watched: Watched, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()

    def at_the_terminal() -> None:
        os.setsid()
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)
        hear_interrupts()

    watched.start(preexec=at_the_terminal)
    gate = tmp_path / "gate"
    running = watched.begun(gate)
    os.write(ours, b"\x03")
    watched.says("Warm shutdown (SIGINT)")
    gate.touch()
    assert watched.ended() == 1
    assert running.state == "SUCCESS"
    assert "Cold" not in watched.text
    os.close(ours)
    os.close(theirs)


def test_a_worker_that_was_stopped_by_hand_stays_so(watched: Watched) -> None:
    watched.start()
    (record,) = watched.app.broker.runs()
    os.kill(json.loads(record.info)["pid"], signal.SIGTERM)
    assert watched.ended() == 0


def test_messages_are_purged_at_the_first_start_only(watched: Watched, tmp_path: Path) -> None:
    watched.app.broker.declare(["celery"])
    lost = watched.runs("version")
    watched.start("--purge")
    gate = tmp_path / "gate"
    running = watched.begun(gate)
    kept = watched.runs("version")
    watched.write(2)
    watched.says("Warm shutdown")
    gate.touch()
    assert running.get(timeout=30) == 1
    assert kept.get(timeout=30) == 2
    assert lost.state == "PENDING"
    watched.process.terminate()
    assert watched.ended() == 0


def test_a_folder_of_ones_own_choice(watched: Watched, tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    watched.start("--reload-dir", "lib")
    watched.write(2)
    (tmp_path / "lib" / "part.py").touch()
    watched.says("part.py changed")
    watched.ready(2)
    assert "proj.py changed" not in watched.text
    watched.process.terminate()
    assert watched.ended() == 0


def test_a_missing_package_is_one_sentence(folder: Path) -> None:
    (folder / "watchfiles.py").write_text("raise ImportError(name='watchfiles')")
    ended = shell("-A", "proj", "-q", "worker", "--reload", cwd=folder)
    assert ended.code == 78
    assert "pip install 'umbel[reload]'" in ended.sentence


def test_changes_that_cannot_be_watched_end_it(folder: Path) -> None:
    (folder / "watchfiles.py").write_text(
        "def watch(*_, **__): raise OSError('OS file watch limit reached')"
    )
    ended = shell("-q", "-A", "proj", "worker", "--reload", "-c", "1", cwd=folder)
    assert ended.code == 69
    assert "changes can't be watched: OS file watch limit reached. Name fewer" in ended.err


def test_a_log_in_json_has_the_watchers_words_in_json(watched: Watched) -> None:
    watched.start("--log-json")
    watched.write("(")
    watched.says("starts it again")
    watched.process.terminate()
    assert watched.ended() == 0
    lines = [json.loads(line) for line in watched.text.splitlines()]
    assert {"umbel.cli", "umbel.worker"} == {line["logger"] for line in lines}
    assert lines[0]["message"].startswith("--reload is for development")


def test_a_program_that_is_a_worker_reloads_too(watched: Watched) -> None:
    """`app.worker_main`: the program itself is run again, and knows that it is the worker."""
    with (watched.folder / "proj.py").open("a") as file:
        file.write('\nif __name__ == "__main__": raise SystemExit(app.worker_main(ARGUMENTS))\n')
    text = (watched.folder / "proj.py").read_text()
    arguments = ["worker", "--reload", "-c", "1", "-l", "INFO"]
    (watched.folder / "proj.py").write_text(text.replace("ARGUMENTS", repr(arguments)))
    watched.start(command=f"{sys.executable} proj.py")
    assert watched.runs("version").get(timeout=30) == 1
    (watched.folder / "proj.py").touch()
    watched.ready(2)
    watched.process.terminate()
    assert watched.ended() == 0


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--reload-dir", "."], 64, "add --reload"),
        (["--reload", "--reload-dir", "nowhere"], 66, "there is no such folder"),
        (["--reload", "-c", "0"], 64, "--concurrency 0"),
    ],
)
def test_mistakes_end_it_at_once(folder: Path, options: list[str], code: int, words: str) -> None:
    ended = shell("-q", "-A", "proj", "worker", *options, cwd=folder)
    assert ended.code == code
    assert words in ended.sentence


def _files(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x = 1\n")


def test_only_code_counts_as_a_change(tmp_path: Path) -> None:
    root = tmp_path / ".venv" / "proj"  # what is above the watched folder doesn't matter
    _files(root / "old.py")
    changes = Changes([root])
    found: SimpleQueue[str] = SimpleQueue()
    try:
        deadline = time.monotonic() + 30
        while found.empty() and time.monotonic() < deadline:
            # Again and again, since nobody knows when the watching has begun.
            _files(root / ".#new.py", root / "flycheck_new.py", root / "x.txt")
            _files(root / ".venv" / "y.py", root / "venv/site-packages/z.py")
            _files(root / "sub" / "new.py")
            for change in changes.take():
                assert isinstance(change, set)
                for path in change:
                    found.put(path)
            time.sleep(0.01)
    finally:
        changes.stop()
    names = {found.get() for _ in range(found.qsize())}
    assert names == {str(root / "sub" / "new.py")}


def test_what_is_watched_when_nothing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    _files(here / "inside" / "__init__.py", there / "outside" / "__init__.py", there / "single.py")
    monkeypatch.chdir(here)
    monkeypatch.syspath_prepend(str(there))
    assert folders_to_watch("inside.sub:app", []) == [here]
    assert folders_to_watch("outside.sub", []) == [here, there / "outside"]
    assert folders_to_watch("single:app", []) == [here, there]
    assert folders_to_watch("click", [])[0] == here
    assert folders_to_watch("nobodys", []) == folders_to_watch("", []) == [here]
    assert folders_to_watch("outside", [str(there)]) == [there]
    with pytest.raises(Mistake, match="there is no such folder"):
        folders_to_watch("x", [str(there / "nowhere")])


def test_who_inherits_the_variable_is_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task may start a worker of its own: its watcher is alive, but isn't its parent."""
    assert start_number() is None
    monkeypatch.setenv(VARIABLE, f"{os.getpid()}:1")
    assert start_number() is None


def test_a_child_whose_watcher_is_gone_ends(folder: Path) -> None:
    ended = shell("-A", "proj", "worker", "--reload", cwd=folder, **{VARIABLE: f"{NOBODY}:1"})
    assert (ended.code, ended.out, ended.err) == (1, "", "")
