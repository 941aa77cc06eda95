"""`umbel shell`: what is in scope, at a terminal, from a pipe, and with other shells."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.helpers import Ended, clean_environment

import umbel as package
from umbel import Umbel
from umbel.cli.shell import scope_of

Run = Callable[..., Ended]
pytestmark = pytest.mark.filterwarnings("ignore::umbel.exceptions.NoWorkerYet")


def fed(text: str, *options: str, cwd: Path, **environment: str) -> Ended:
    done = subprocess.run(
        [sys.executable, "-m", "umbel", "-A", "proj", "shell", *options],
        cwd=cwd,
        env=clean_environment(**environment),
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def test_what_comes_from_a_pipe_is_a_program(folder: Path) -> None:
    program = """
for each in (add, boom):
    print(each.name)
print(tasks["proj.add"] is add, app is celery, app.main)
print(chain(add.s(1, 2), add.s(3)), signature("proj.add"), AsyncResult("some-id"))
print(add.delay(2, 3).state)
"""
    ended = fed(program, cwd=folder)
    assert (ended.code, ended.err.count("Traceback")) == (0, 0)
    assert ended.out.splitlines() == [
        "proj.add",
        "proj.boom",
        "True True proj",
        "proj.add(1, 2) | proj.add(3) proj.add() some-id",
        "PENDING",
    ]


def test_eager_runs_in_the_shell(folder: Path) -> None:
    ended = fed("print(add.delay(2, 3).get())", "--eager", cwd=folder)
    assert (ended.code, ended.out, ended.err) == (0, "5\n", "")


def test_without_tasks_only_the_registry_has_them(folder: Path) -> None:
    ended = fed("print('add' in globals(), tasks['proj.add'].name)", "-T", cwd=folder)
    assert (ended.code, ended.out) == (0, "False proj.add\n")


@pytest.mark.parametrize(
    ("program", "code", "err"),
    [
        ("1/0", 1, "ZeroDivisionError"),
        ("add(", 1, "SyntaxError"),
        ("exit(3)", 3, ""),
        ("raise SystemExit('enough')", 1, "enough\n"),
        ("raise SystemExit", 0, ""),
    ],
)
def test_how_a_program_ends(folder: Path, program: str, code: int, err: str) -> None:
    ended = fed(program, cwd=folder)
    assert ended.code == code
    assert err in ended.err
    assert bool(ended.err) == bool(err)


def test_modules_of_the_settings_are_imported(folder: Path) -> None:
    (folder / "more.py").write_text("from proj import app\n@app.task\ndef extra(): return 7\n")
    with (folder / "proj.py").open("a") as file:
        file.write("\napp.conf.imports = ['more']\n")
    assert fed("print(extra())", cwd=folder).out == "7\n"
    (folder / "more.py").write_text("1/0")
    ended = fed("print(extra())", cwd=folder)
    assert ended.code == 1
    assert "ZeroDivisionError: division by zero (" in ended.sentence
    assert "more.py, line 1)" in ended.sentence


class Terminal:
    """A shell at a terminal."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._ours, theirs = pty.openpty()
        mode = termios.tcgetattr(theirs)
        mode[3] &= ~termios.ECHO
        termios.tcsetattr(theirs, termios.TCSANOW, mode)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "umbel", "-A", "proj", "shell", *options],
            cwd=folder,
            env=clean_environment(TERM="dumb"),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        self.text = ""

    def until(self, words: str) -> str:
        """What has been printed up to `words`."""
        deadline = time.monotonic() + 30
        while words not in self.text:
            assert time.monotonic() < deadline, f"not there: {words!r}: {self.text}"
            if select.select([self._ours], [], [], 0.1)[0]:
                try:
                    self.text += os.read(self._ours, 4096).decode()
                except OSError:  # the other end is closed
                    break
        before, found, self.text = self.text.partition(words)
        assert found, before
        return before

    def type(self, line: str) -> None:
        os.write(self._ours, line.encode() + b"\n")

    def end(self) -> int:
        code = self.process.wait(30)
        os.close(self._ours)
        return code


def test_at_a_terminal(folder: Path) -> None:
    terminal = Terminal(folder, "--python")
    banner = terminal.until(">>> ")
    assert f"umbel {package.__version__}, Python" in banner
    assert "app 'proj' at sqlite:///tasks.db" in banner
    assert "its tasks: add, boom" in banner
    terminal.type("add(20, 22)")
    assert "42" in terminal.until(">>> ")
    terminal.type("1/0")
    assert "ZeroDivisionError" in terminal.until(">>> ")
    terminal.type("exit()")
    assert terminal.end() == 0


def _with_shells(folder: Path) -> None:
    (folder / "IPython.py").write_text(
        "def start_ipython(argv, user_ns): print('IPython', argv, user_ns['add'].name)\n"
    )
    (folder / "bpython.py").write_text(
        "def embed(locals_, banner): print('bpython', locals_['add'].name, 'add' in banner)\n"
    )


def test_ipython_is_taken_where_it_is_installed(folder: Path) -> None:
    _with_shells(folder)
    terminal = Terminal(folder)
    assert "its tasks: add, boom" in terminal.until("IPython [] proj.add")
    assert terminal.end() == 0


def test_shells_by_name(umbel: Run, folder: Path) -> None:
    _with_shells(folder)
    assert umbel("-q", "-A", "proj", "shell", "-I").out == "IPython [] proj.add\n"
    assert umbel("-A", "proj", "shell", "-B").out == "bpython proj.add True\n"


@pytest.mark.parametrize(("option", "name"), [("-I", "IPython"), ("--bpython", "bpython")])
def test_a_shell_that_is_not_installed(umbel: Run, folder: Path, option: str, name: str) -> None:
    (folder / f"{name}.py").write_text("raise ImportError")
    ended = umbel("-A", "proj", "shell", option)
    assert ended.code == 78
    assert f"pip install {name.lower()}" in ended.sentence


@pytest.mark.parametrize("option", ["--eventlet", "--gevent"])
def test_celerys_greenlets_are_refused(umbel: Run, option: str) -> None:
    ended = umbel("-A", "proj", "shell", option)
    assert ended.code == 64
    assert "later release" in ended.sentence


def test_an_app_has_to_be_named(umbel: Run) -> None:
    assert umbel("shell").code == 64


def test_names_that_are_taken_are_left_out(umbel: Run, folder: Path) -> None:
    app = Umbel("names", broker="memory://", set_as_current=False)
    app.task(name="one.clean")(lambda: 1)

    def clean() -> None: ...

    def group() -> None: ...

    def alone() -> None: ...

    for name, function in (("a", clean), ("b", clean), ("c", group), ("d", alone)):
        app.task(name=name)(function)
    scope = scope_of(app)
    assert "clean" not in scope
    assert scope["group"] is package.group
    assert scope["alone"].name == "d"
    assert set(scope["tasks"]) >= {"a", "b", "c", "d", "one.clean"}
