"""A real ``umbel worker`` with default settings, and what the operating system says of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.figures import DoesNotAddUp
from bench.tasks import app

from umbel.states import SUCCESS
from umbel.worker.scoreboard import Scoreboard, Word

ROOT: Final = Path(__file__).resolve().parents[1]
PROCESSES: Final = 2
PATIENCE: Final = 300.0
_TICKS: Final = os.sysconf("SC_CLK_TCK")


def until(ask: Callable[[], bool], what: str, every: float = 0.01) -> None:
    """Returns once `ask` says so."""
    deadline = time.monotonic() + PATIENCE
    while not ask():
        if time.monotonic() > deadline:
            raise DoesNotAddUp(f"not within {PATIENCE:g} s: {what}")
        time.sleep(every)


@contextmanager
def sending_to(folder: Path) -> Iterator[None]:
    """This process's app is at the broker file of `folder` meanwhile."""
    app.conf.broker_url = f"sqlite:///{folder / 'bench.db'}"
    try:
        with app:
            yield
    finally:
        del app.conf.broker_url


class Worker:
    """``umbel worker -c 2``, or with other options for its two processes, on the broker file of
    `folder`, ready when the body starts.

    Everything else is as it is by default. After the body it is stopped in order.
    """

    def __init__(self, folder: Path, options: Sequence[str] = ("-c", str(PROCESSES))) -> None:
        self._notes = folder / "notes"
        self._notes.mkdir()
        self._log = folder / "worker.log"
        with self._log.open("wb") as output:
            command = [sys.executable, "-m", "umbel", "-A", "bench.tasks", "worker"]
            self.process = subprocess.Popen(
                [*command, *options],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={
                    **os.environ,
                    "UMBEL_BROKER_URL": str(app.conf.broker_url),
                    "BENCH_NOTES": str(self._notes),
                },
            )

    def __enter__(self) -> Worker:
        try:
            until(self._is_ready, "the worker is ready")
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise DoesNotAddUp("the worker didn't stop within 60 s") from None
        if self.process.returncode != 0:
            raise DoesNotAddUp(
                f"the worker ended with exit code {self.process.returncode}; it said: "
                f"{self._log.read_text(errors='replace')[-2000:]}"
            )

    def _is_ready(self) -> bool:
        if self.process.poll() is not None:
            raise DoesNotAddUp(f"the worker didn't start: {self._log.read_text()[-2000:]}")
        for record in app.broker.runs():
            info = json.loads(record.info)
            if info["pid"] == self.process.pid:
                path = Path(info["board"])
                board = Scoreboard(path, os.open(path, os.O_RDWR | os.O_CLOEXEC))
                try:
                    return sum(slot.words[Word.READY] for slot in board.slots) == PROCESSES
                finally:
                    board.close()
        return False

    # What the operating system says, of the whole process tree.

    def cpu_seconds(self) -> float:
        """User and system time so far."""
        ticks = 0
        for pid in tree(self.process.pid):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / _TICKS

    def pss_bytes(self) -> int:
        """Memory, with what several processes share counted once."""
        total = 0
        for pid in tree(self.process.pid):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
        return total

    # What the tasks noted, once the worker has stopped.

    def numbers(self) -> list[int]:
        """The numbers of all executions, sorted."""
        noted = array("q")
        for path in self._notes.glob("*.numbers"):
            noted.frombytes(path.read_bytes())
        return sorted(noted)

    def times(self) -> list[float]:
        """The monotonic times that the tasks noted, sorted."""
        noted = array("d")
        for path in self._notes.glob("*.times"):
            noted.frombytes(path.read_bytes())
        return sorted(noted)


def tree(pid: int) -> list[int]:
    """`pid` and all that descends from it."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(each for child in children for each in tree(int(child)))]


def is_drained() -> bool:
    """Whether no message waits, is due later or is held."""
    return not any(q.ready + q.delayed + q.leased + q.lost for q in app.broker.queues())


def account(numbers: Sequence[int], count: int, stored: Sequence[str] = ()) -> None:
    """Raise unless `numbers` are 0 … count-1, once each, nothing is left at the broker, and the
    tasks of the ids `stored` are SUCCESS."""
    if numbers != list(range(count)):
        raise DoesNotAddUp(
            f"{count} tasks were sent; {len(numbers)} executions of {len(set(numbers))} of them "
            "were noted"
        )
    if left := [q for q in app.broker.queues() if q.ready + q.delayed + q.leased + q.lost + q.dead]:
        raise DoesNotAddUp(f"something is left: {left}")
    if not stored:
        return
    assert app.store is not None
    records = app.store.get(stored)
    good = sum(record is not None and record.state == SUCCESS for record in records)
    if good != len(stored):
        raise DoesNotAddUp(f"{good} of {len(stored)} results are SUCCESS")
