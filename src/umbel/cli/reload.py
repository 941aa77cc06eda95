"""``umbel worker --reload``: a worker that starts anew when its code changes. For development.

This process, the watcher, never imports the app. It runs the same command once more as its child,
which finds in `VARIABLE` that it is one, and so works. What happens, in the order of a day:

- Python code changes: the child is stopped warm (SIGTERM), and when it has ended, the next one is
  started. What changes until then is read by the next one too.
- The child ends by itself, because the new code can't be imported, say: its own sentence is on
  the screen, and the next change starts the next one.
- SIGINT, SIGTERM, SIGQUIT come here (the child has a process group of its own, so that a Ctrl-C
  reaches it once) and go on to the child; its exit code becomes this one's.
- The watcher is killed: the system kills the child with it, as it does a worker's processes.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Final

from umbel.cli.exits import Exit, Mistake
from umbel.cli.output import count, one_line, remark
from umbel.worker.forkserver import die_with_parent, wakeup_pipe
from umbel.worker.options import ExitCode

VARIABLE: Final = "UMBEL_RELOADED_BY"
"""In the environment of a child: ``PID:NUMBER``, its watcher and which of its children it is."""
IGNORED: Final = frozenset(
    (".git", ".hg", ".svn", ".tox", ".nox", ".venv", "__pycache__", "node_modules", "site-packages")
)
"""Folders whose files are never an app's code."""
EDITORS: Final = (".", "flycheck_")
"""How the names of files begin that editors put beside the one that they edit."""
GROUPING_MS: Final = 400
"""A save of many files is one change; a file that is written all the time may not hide others."""
LONG: Final = 3.0
"""Seconds after which a person asks why the new code isn't there."""
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP)

Change = set[str] | Exception
"""Paths of code that has changed; or why no change will be seen any more."""


def start_number() -> int | None:
    """As which child of a watcher this process was started, from 1; None where it is none.

    A child ends with its watcher from here on, at once where that has gone already.
    """
    try:
        watcher, number = map(int, os.environ.get(VARIABLE, "").split(":"))
    except ValueError:
        return None
    if os.getppid() != watcher and _is_there(watcher):
        return None  # inherited through a task that has started a worker of its own
    die_with_parent(watcher)
    return number


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def folders_to_watch(app_name: str, named: Iterable[str]) -> list[Path]:
    """Where the app's code is: the folders that are `named`, else the working directory and, if
    it lies elsewhere, that of the app's package. Raises `Mistake` for what isn't a folder."""
    folders = [Path(name).resolve() for name in named]
    for folder in folders:
        if not folder.is_dir():
            raise Mistake(f"--reload-dir {folder}: there is no such folder", Exit.NO_INPUT)
    return folders or _folders_of(app_name.partition(":")[0].partition(".")[0])


def _folders_of(package: str) -> list[Path]:
    here = Path.cwd()
    if str(here) not in sys.path:
        sys.path.insert(0, str(here))
    spec = None
    with contextlib.suppress(ImportError, ValueError):
        spec = importlib.util.find_spec(package)
    found = [*(spec.submodule_search_locations or ())] if spec else []
    if spec and not found and spec.origin and os.path.isfile(spec.origin):
        found = [os.path.dirname(spec.origin)]
    elsewhere = {Path(each).resolve() for each in found}
    elsewhere = {each for each in elsewhere if each.name not in IGNORED}
    return [here, *sorted(each for each in elsewhere if not each.is_relative_to(here))]


def watch_and_run(folders: list[Path], started_in: str) -> int:
    """Run workers, one after the other, until told to stop; the last one's exit code."""
    return _Watcher(Changes(folders), started_in).run()


class Changes:
    """Watches for changes of code, in a thread. `fileno` is ready to read when there is news."""

    def __init__(self, folders: list[Path]) -> None:
        self._folders = folders
        self._news: SimpleQueue[Change] = SimpleQueue()
        self._stop = threading.Event()
        self.read_end, self.write_end = wakeup_pipe()
        try:
            from watchfiles import watch
        except ImportError as error:
            raise Mistake(
                "--reload needs the package watchfiles; install it: pip install 'umbel[reload]'",
                Exit.CONFIG,
            ) from error
        self._watch = watch
        self._thread = threading.Thread(target=self._run, name="umbel-changes", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def take(self) -> Iterator[Change]:
        """What has come since the last call; never blocks."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self.read_end, 4096):
                pass
        with contextlib.suppress(Empty):
            while True:
                yield self._news.get_nowait()

    def _run(self) -> None:
        try:
            for found in self._watch(
                *self._folders,
                watch_filter=lambda _, path: self._is_code(path),
                debounce=GROUPING_MS,
                stop_event=self._stop,
                rust_timeout=200,
                raise_interrupt=False,
                ignore_permission_denied=True,
            ):
                self._tell({path for _, path in found})
        except Exception as error:
            self._tell(error)

    def _tell(self, news: Change) -> None:
        self._news.put(news)
        with contextlib.suppress(BlockingIOError):
            os.write(self.write_end, b"\0")

    def _is_code(self, path: str) -> bool:
        name = os.path.basename(path)
        if not name.endswith(".py") or name.startswith(EDITORS):
            return False
        inside = [
            Path(path).relative_to(folder).parts
            for folder in self._folders
            if Path(path).is_relative_to(folder)
        ]
        return any(IGNORED.isdisjoint(parts) for parts in inside)


class _Watcher:
    def __init__(self, changes: Changes, started_in: str) -> None:
        self._changes = changes
        self._started_in = started_in
        self._child: subprocess.Popen[bytes] | None = None
        self._number = 0
        self._asked: list[int] = []
        """Signals that ask this process to end."""
        self._is_changing = False
        """The child has been told to make room for the next one."""
        self._has_explained = False
        self._exit_code: int | None = None
        self._changed: set[str] = set()

    def run(self) -> int:
        wake = self._changes.write_end
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        for number in _SIGNALS:
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # only to be woken
        self._start()
        try:
            while self._exit_code is None:
                self._wait()
                for change in self._changes.take():
                    self._on_change(change)
                self._look_after_child()
        finally:
            self._changes.stop()
        return self._exit_code

    def _wait(self) -> None:
        waits = self._is_changing and not self._has_explained
        ready, _, _ = select.select([self._changes.read_end], [], [], LONG if waits else None)
        if not ready and not self._asked:
            self._has_explained = True
            remark(
                "umbel: the worker still runs tasks that it had begun; the new code is started "
                "after them. Ctrl-C twice ends them"
            )

    def _start(self) -> None:
        self._number += 1
        self._is_changing = self._has_explained = False
        _forget_compiled(self._changed)
        self._changed.clear()
        self._child = subprocess.Popen(
            [sys.executable, *sys.orig_argv[1:]],
            cwd=self._started_in,
            env={**os.environ, VARIABLE: f"{os.getpid()}:{self._number}"},
            process_group=0,
        )
        if self._asked:  # meanwhile, when there was no child to tell
            self._child.terminate()

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        """Told on to the child, as far as it is news to it."""
        child, first = self._child, not self._asked
        self._asked.append(number)
        if child is None or (first and self._is_changing and number != signal.SIGQUIT):
            return  # it's stopping warm already; one more signal would make that cold
        child.send_signal(signal.SIGTERM if number == signal.SIGHUP else number)

    def _on_change(self, change: Change) -> None:
        if isinstance(change, Exception):
            self._give_up(change)
            return
        if self._asked:
            return
        self._changed |= change
        paths = sorted(change)
        first = one_line(os.path.relpath(paths[0]))
        more = f" and {count(len(paths) - 1, 'other file')}" if len(paths) > 1 else ""
        if self._child is None:
            remark(f"umbel: {first}{more} changed; the worker starts")
            self._start()
        elif not self._is_changing:
            remark(f"umbel: {first}{more} changed; the worker ends what it runs and starts anew")
            self._is_changing = True
            self._child.terminate()
        else:
            remark(f"umbel: {first}{more} changed too; the worker starts once its tasks have ended")

    def _give_up(self, error: Exception) -> None:
        if self._child is not None:
            self._child.terminate()
            self._child.wait()
        raise Mistake(
            f"changes can't be watched: {one_line(str(error))}. Name fewer folders with "
            "--reload-dir, or start the worker without --reload",
            Exit.UNAVAILABLE,
        ) from error

    def _look_after_child(self) -> None:
        if self._child is None:
            if self._asked:
                interrupted = self._asked[0] == signal.SIGINT
                self._exit_code = ExitCode.INTERRUPTED if interrupted else ExitCode.OK
            return
        code = self._child.poll()
        if code is None:
            return
        self._child = None
        if self._asked:
            self._exit_code = self._code_after(code)
        elif self._is_changing:
            self._start()
        elif code in (ExitCode.OK, ExitCode.USAGE):
            self._exit_code = code  # somebody has stopped it; or no code can make up for that
        else:
            how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
            remark(f"umbel: the worker ended {how}; the next change of its code starts it again")

    def _code_after(self, code: int) -> int:
        if code < 0:
            return 128 - code
        # It may have been told by SIGTERM, for a change, what was asked for by Ctrl-C.
        interrupted = code == ExitCode.OK and self._asked[0] == signal.SIGINT
        return ExitCode.INTERRUPTED if interrupted else code


def _forget_compiled(paths: Iterable[str]) -> None:
    """Python takes a compiled file for fresh by the second and the size of the source, and two
    changes in one second can be of one size."""
    for path in paths:
        with contextlib.suppress(OSError, NotImplementedError):
            os.unlink(importlib.util.cache_from_source(path))
