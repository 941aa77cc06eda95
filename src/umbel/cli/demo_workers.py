"""The workers of ``umbel demo``: real ones, each a process of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from umbel.cli.demo_app import app
from umbel.cli.exits import Mistake

_LONGEST_START = 60.0
_LONGEST_STOP = 10.0


class Workers:
    """Some ``umbel worker`` processes, started on entry and gone after exit."""

    def __init__(self, url: str, folder: Path, number: int, concurrency: int) -> None:
        self._url = url
        self._folder = folder
        self._logs = [folder / f"worker{n}.log" for n in range(1, number + 1)]
        self._concurrency = concurrency
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        try:
            for log in self._logs:
                self._start(log)
            self._wait_until_online()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop()

    def check(self) -> None:
        """Raises `Mistake` where one of them has ended by itself."""
        for process, log in zip(self._processes, self._logs, strict=True):
            if (code := process.poll()) is not None:
                raise Mistake(f"{log.stem} ended with exit code {code}; it said: {_last_line(log)}")

    def _start(self, log: Path) -> None:
        command = [sys.executable, "-m", "umbel", "-A", "umbel.cli.demo_app", "-b", self._url]
        command += ["--result-backend", self._url, "worker", "-n", f"{log.stem}@%h"]
        command += ["-c", str(self._concurrency), "-P", "prefork"]
        with log.open("wb") as output:
            # A session of its own: Ctrl-C is for the demo, which then stops its workers in order.
            self._processes.append(
                subprocess.Popen(
                    command,
                    cwd=self._folder,  # nothing there hides a module of Python's
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            )

    def _wait_until_online(self) -> None:
        deadline = time.monotonic() + _LONGEST_START
        while len(app.broker.runs()) < len(self._logs):
            started = [process.poll() is None for process in self._processes]
            if all(started) and time.monotonic() > deadline:
                raise Mistake(f"the workers weren't online after {_LONGEST_START:g} s")
            self.check()
            time.sleep(0.02)

    def _stop(self) -> None:
        try:
            for process in self._processes:
                process.send_signal(signal.SIGTERM)
            deadline = time.monotonic() + _LONGEST_STOP
            for process in self._processes:
                process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            pass  # killed below
        finally:
            for process in self._processes:
                # The whole session: a worker that was stopped while it started may have left
                # children that are about to end, and that still hold the files.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line for line in reversed(lines) if line.strip()), "nothing")
