"""Real workers for the tests: processes that the `umbel worker` command starts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from umbel import Umbel
from umbel.drivers import BrokerDriver
from umbel.worker.scoreboard import Scoreboard, Word

T = TypeVar("T")
HERE = Path(__file__).parent


def until(ask: Callable[[], T], timeout: float = 30.0, what: str = "") -> T:
    """What `ask` gives once it is true; fails after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        answer = ask()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout} s: {what or ask}; last answer {answer!r}")
        time.sleep(0.01)


class Worker:
    """One `umbel worker` on the app of a module in this folder, with its broker file."""

    def __init__(
        self,
        broker: str,
        *options: str,
        app: str = "tasks_app",
        env: dict[str, str] | None = None,
        folder: Path | None = None,
    ) -> None:
        """`folder` is for the log of one whose broker isn't a file."""
        base = Path(broker.removeprefix("sqlite:///")) if folder is None else folder / "worker"
        self.log = base.with_suffix(f".{time.monotonic_ns()}.log")
        self._out = self.log.open("wb")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "umbel", "-A", app, "worker", "-l", "INFO", *options],
            cwd=HERE,
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=self._out,
            env={**os.environ, "UMBEL_BROKER_URL": broker, **(env or {})},
        )

    @property
    def pid(self) -> int:
        """The supervisor's."""
        return self.process.pid

    @property
    def text(self) -> str:
        """All that it has logged."""
        return self.log.read_text()

    def run(self, broker: BrokerDriver) -> str:
        """The run id, once the worker is enlisted."""

        def find() -> str:
            for record in broker.runs():
                if json.loads(record.info).get("pid") == self.pid:
                    return record.run
            return ""

        return until(find, what=f"the worker enlists; its log: {self.text}")

    def pool(self, broker: BrokerDriver) -> list[int]:
        """Process ids of the pool, once all of them fetch."""
        run = self.run(broker)
        info = next(json.loads(r.info) for r in broker.runs() if r.run == run)
        with board(Path(info["board"])) as scoreboard:
            until(
                lambda: (
                    sum(slot.words[Word.READY] for slot in scoreboard.slots) >= info["processes"]
                ),
                what="the pool is ready",
            )
            return [slot.pid for slot in scoreboard.slots if slot.words[Word.READY]]

    def kill(self) -> None:
        """SIGKILL to the supervisor; its processes die with it."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)

    def stop(self, number: int = signal.SIGTERM, timeout: float = 30.0) -> int:
        """A shutdown by signal; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the worker didn't stop; its log:\n{self.text}") from None
        finally:
            self._out.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.kill()
        self._out.close()


@contextmanager
def board(path: Path) -> Iterator[Scoreboard]:
    """A living run's scoreboard, to be read."""
    scoreboard = Scoreboard(path, os.open(path, os.O_RDWR))
    try:
        yield scoreboard
    finally:
        scoreboard.close()


def client(broker: str) -> Umbel:
    """An app that sends to the same file; its tasks are known by name only."""
    return Umbel("client", broker=broker, set_as_current=False)
