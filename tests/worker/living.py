"""One test's broker, journal, workers and client, and a check that nothing is left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.worker.harness import HERE, Worker, until

from umbel import AsyncResult, Umbel
from umbel.clock import SYSTEM, Clock
from umbel.drivers import BrokerDriver
from umbel.worker.scoreboard import HEADER_BYTES, default_folder

ON_BOTH = pytest.mark.parametrize("url", ["sqlite", "redis"], indirect=True)
"""A test that is to be run on a file and on a server."""
PYTHONPATH = os.pathsep.join([str(HERE.parent.parent), os.environ.get("PYTHONPATH", "")])
"""With which a worker finds the apps of this folder."""
NO_SETTINGS: Mapping[str, object] = {}
_BOARD = re.compile(r"/dev/shm/umbel-\S+\.board")


@dataclass(frozen=True, slots=True)
class Note:
    """A line of the journal; `at` is monotonic time in seconds, the same in all processes."""

    what: str
    tag: str
    pid: int
    at: float


def _stands_still(pid: int) -> bool:
    stats = [path.read_bytes() for path in Path(f"/proc/{pid}").glob("task/*/stat")]
    return all(stat.rpartition(b")")[2].split()[0] in (b"T", b"t", b"Z") for stat in stats)


class Place:
    """Everything of one test. `lease` is in seconds and holds for its workers and its client, as
    `settings` do."""

    def __init__(
        self,
        folder: Path,
        lease: float = 30.0,
        clock: Clock = SYSTEM,
        url: str | None = None,
        settings: Mapping[str, object] = NO_SETTINGS,
    ) -> None:
        self.folder = folder
        self.url = url or f"sqlite:///{folder}/broker.db"
        self.file = folder / "broker.db"
        self.journal = folder / "journal.txt"
        self.lease = lease
        self.settings = settings
        self.app = Umbel(
            "client", broker=self.url, set_as_current=False, clock=clock, changes=settings
        )
        self.app.conf.worker_lease_time = lease
        # Else the first message says that no worker was ever here, which is so.
        nobody = uuid.uuid4().hex
        self.app.broker.enlist(nobody, None, b"{}")
        self.app.broker.leave(nobody)
        self._workers: list[Worker] = []

    @property
    def broker(self) -> BrokerDriver:
        return self.app.broker

    def worker(
        self,
        *options: str,
        app: str = "tests.worker.live_app",
        env: dict[str, str] | None = None,
        ready: bool = True,
    ) -> Worker:
        """A worker of this place, once its pool fetches."""
        named = {
            "JOURNAL": str(self.journal),
            "UMBEL_WORKER_LEASE_TIME": str(self.lease),
            "PYTHONPATH": PYTHONPATH,
            "SETTINGS": json.dumps(self.settings),
        }
        worker = Worker(
            self.url, *options, app=app, env={**named, **(env or {})}, folder=self.folder
        )
        self._workers.append(worker)
        if ready:
            until(
                lambda: " ready." in worker.text or worker.process.poll() is not None,
                what="the worker is ready",
            )
            assert worker.process.poll() is None, worker.text
            worker.pool(self.broker)
        return worker

    def send(self, name: str, *args: object, **options: Any) -> AsyncResult[Any]:
        return self.app.send_task(name, args, **options)

    def gate(self, name: str = "gate") -> Path:
        """A file that a task waits for; `touch()` opens it."""
        return self.folder / name

    def notes(self, what: str | None = None, tag: str | None = None) -> list[Note]:
        if not self.journal.exists():
            return []
        lines = [line.split(" ") for line in self.journal.read_text().splitlines()]
        notes = [Note(what, tag, int(pid), float(at)) for what, tag, pid, at in lines]
        return [
            each
            for each in notes
            if (what is None or each.what == what) and (tag is None or each.tag == tag)
        ]

    def noted(self, what: str, tag: str | None = None, times: int = 1) -> list[Note]:
        """The first notes of a kind, once there are as many."""
        until(
            lambda: len(self.notes(what, tag)) >= times,
            what=f"{times} x {what} {tag}; {self.logs()}",
        )
        return self.notes(what, tag)

    def counts(self, what: str) -> Counter[str]:
        return Counter(each.tag for each in self.notes(what))

    def pids(self, root: int | None = None) -> list[int]:
        """Living processes of this place; those under `root` alone, itself included."""
        mine = f"UMBEL_BROKER_URL={self.url}".encode()
        found: dict[int, int] = {}
        for entry in Path("/proc").iterdir():
            with suppress(OSError, ValueError):
                if mine in (entry / "environ").read_bytes().split(b"\0"):
                    after_name = (entry / "stat").read_text().rpartition(")")[2].split()
                    if after_name[0] != "Z":
                        found[int(entry.name)] = int(after_name[1])
        if root is None:
            return sorted(found)
        family = {root} & found.keys()
        while more := {pid for pid, parent in found.items() if parent in family} - family:
            family |= more
        return sorted(family)

    def freeze(self, pids: Iterable[int]) -> None:
        """Stop processes; every thread of theirs stands still when this returns."""
        stopping = list(pids)
        for pid in stopping:
            os.kill(pid, signal.SIGSTOP)
        until(lambda: all(map(_stands_still, stopping)), what="all threads stand still")

    def thaw(self, pids: Iterable[int]) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def boards(self) -> set[str]:
        """Scoreboards of this place's living processes and known runs that exist as files."""
        found: set[str] = set()
        for pid in self.pids():
            with suppress(OSError):
                found.update(_BOARD.findall(Path(f"/proc/{pid}/maps").read_text()))
        for record in self.broker.runs():
            found.add(json.loads(record.info)["board"])
        return {path for path in found if os.path.exists(path)}

    def logs(self) -> str:
        return "\n".join(f"--- worker {each.pid}\n{each.text[-4000:]}" for each in self._workers)

    def close(self) -> None:
        """End what a test left running; then nothing may be there."""
        clean = all(worker.process.poll() == 0 for worker in self._workers)
        for worker in self._workers:
            with worker:
                pass
        try:
            until(lambda: not self.pids(), 10, what=f"no process is left of {self.pids()}")
        finally:
            self.app.close()
            left = self._boards_left()
            for path in left:
                path.unlink(missing_ok=True)
        assert not (clean and left), f"workers that ended well left {left}"

    def _boards_left(self) -> list[Path]:
        return boards_of(self.app)


def boards_of(app: Umbel) -> list[Path]:
    """Scoreboards whose header names the broker of this app."""
    name = f"{app.connections.unopened().location}\0".encode()
    found = []
    for path in default_folder().glob("umbel-*.board"):
        with suppress(FileNotFoundError), path.open("rb") as file:
            if name in file.read(HEADER_BYTES):
                found.append(path)
    return found
