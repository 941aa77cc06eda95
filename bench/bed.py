"""A contender at work: its worker and its sender as real processes, and the accounts afterwards."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from bench import environments
from bench.contenders import Contender
from bench.figures import DoesNotAddUp
from bench.notes import Noted, Notes
from bench.processes import cpu_seconds, pss_mib
from bench.server import PARKED, RedisServer

from umbel import Umbel
from umbel.states import SUCCESS

PATIENCE: Final = 180.0
WARM_UP: Final = 20
MOST_WARM_UP: Final = 640
"""Tasks sent at once, before those that are measured, until each process has run one: more each
time, since one process may take all of a few. They have numbers below zero."""


def until(ask: Callable[[], bool], what: str, patience: float = PATIENCE) -> None:
    """Returns once `ask` says so."""
    deadline = time.monotonic() + patience
    while not ask():
        if time.monotonic() > deadline:
            raise DoesNotAddUp(f"not within {patience:g} s: {what}")
        time.sleep(0.02)


@dataclass(slots=True)
class Ground:
    """Where one contender meets one workload: as many beds as it needs, one after the other."""

    contender: Contender
    server: RedisServer
    folder: Path
    tasks: int
    round: int = 1
    _beds: int = 0

    def bed(self, *, stored: bool = True, tasks: int | None = None) -> Bed:
        self._beds += 1
        folder = self.folder / str(self._beds)
        folder.mkdir()
        count = self.tasks if tasks is None else tasks
        return Bed(self.contender, self.server, folder, tasks=count, stored=stored)


class Bed:
    """One contender with an empty broker and an empty folder of its own."""

    def __init__(
        self,
        contender: Contender,
        server: RedisServer,
        folder: Path,
        *,
        tasks: int,
        stored: bool = True,
    ) -> None:
        self.contender = contender
        self.server = server
        self.folder = folder
        self.count = max(1, round(tasks * contender.share))
        """How many tasks to measure with."""
        self.stored = stored
        self.python = environments.python_of(contender.environment)
        self.notes = Notes(folder / "notes")
        self.notes.folder.mkdir()
        server.client.flushall()

    # Where the broker is

    def url(self, *, parked: bool = False) -> str:
        if self.contender.on_sqlite:
            return f"sqlite:///{self.folder / ('parked.db' if parked else 'bench.db')}"
        return self.server.url(PARKED if parked else 0)

    def environment(self, url: str) -> dict[str, str]:
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith("UMBEL_")},
            "PATH": f"{self.python.parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(environments.ROOT),
            "PYTHONDONTWRITEBYTECODE": "",
            "BENCH_URL": url,
            "BENCH_STORED": "1" if self.stored and self.contender.stores else "",
            "BENCH_VARIANT": self.contender.variant,
            "BENCH_NOTES": str(self.notes.folder),
            "BENCH_CAPACITY": str(2 * self.count + 200_000),
        }

    @contextmanager
    def sender(self) -> Iterator[Sender]:
        """A sender to the worker's own database."""
        with Sender(self, self.url()) as sender:
            yield sender

    # Tasks that wait first, and are seen at once

    @contextmanager
    def parking(self) -> Iterator[Parking]:
        """A sender whose tasks a worker sees only when they are released, all at once."""
        later = self.contender.on_sqlite and self.contender.library == "umbel"
        with Sender(self, self.url(parked=not later)) as sender:
            yield Parking(self, sender, sends_at_release=later)

    # What the operating system and the broker say

    def waiting(self) -> int:
        """How many messages wait in the worker's database."""
        if self.contender.on_sqlite:
            return _rows(self.folder / "bench.db", self.contender.library)
        name, client = self.contender.keys[0], self.server.client
        match client.type(name):
            case b"list":
                return int(client.llen(name))
            case b"stream":
                return int(client.xlen(name))
            case _:
                return 0

    def delayed(self) -> int:
        """How many messages are due later, at an Umbel broker."""
        with self._umbel() as app:
            return sum(queue.delayed for queue in app.broker.queues())

    def _umbel(self) -> Umbel:
        return Umbel("accounts", broker=self.url(), set_as_current=False)

    def account(self, ids: Sequence[str] | None, count: int) -> list[Noted]:
        """The notes of `count` tasks, oldest first. Raises unless each has been run once, nothing
        of them is left at an Umbel broker, and their results are stored where they should be."""
        noted = [each for each in self.notes.read() if each.number >= 0]
        if sorted(each.number for each in noted) != list(range(count)):
            different = len({each.number for each in noted})
            raise DoesNotAddUp(
                f"{count} tasks were sent; {len(noted)} executions of {different} of them are noted"
            )
        if self.contender.library == "umbel":
            self._account_for_umbel(ids or [])
        elif self.stored and not self.contender.on_sqlite:
            name, client = self.contender.results, self.server.client
            results = client.hlen(name) if name else client.dbsize()
            if results < count:
                raise DoesNotAddUp(f"{count} tasks were run; {results} results are stored")
        return noted

    def _account_for_umbel(self, ids: Sequence[str]) -> None:
        with self._umbel() as app:
            left = [
                q for q in app.broker.queues() if q.ready + q.delayed + q.leased + q.lost + q.dead
            ]
            if left or app.broker.runs():
                raise DoesNotAddUp(f"something is left: {left} {app.broker.runs()}")
            assert app.store is not None
            records = app.store.get(ids) if self.stored else []
        good = sum(record is not None and record.state == SUCCESS for record in records)
        if self.stored and good != len(ids):
            raise DoesNotAddUp(f"{good} of {len(ids)} results are SUCCESS")
        if not self.contender.on_sqlite and (keys := {*filter(_is_a_tasks, self.server.keys())}):
            raise DoesNotAddUp(f"{len(keys)} keys are left, such as {sorted(keys)[0]!r}")


def _is_a_tasks(key: str) -> bool:
    """Whether it is neither a result nor one of the few keys that a broker on Redis always has."""
    kept = ("n", "routes", "queues", "bindings", "beat", "ended", "revocations")
    return not key.startswith(
        ("celery-task-meta-", "_kombu.binding", *(f"umbel:{name}" for name in kept))
    )


def _rows(file: Path, library: str) -> int:
    if library == "umbel":
        with Umbel("counts", broker=f"sqlite:///{file}", set_as_current=False) as app:
            return sum(queue.ready for queue in app.broker.queues())
    with closing(sqlite3.connect(file)) as connection:
        return int(connection.execute("SELECT count(*) FROM task").fetchone()[0])


class Sender:
    """The contender's own sender, to the broker at `url`."""

    def __init__(self, bed: Bed, url: str) -> None:
        self.bed = bed
        self._log = bed.folder / "sender.log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [bed.python, "-m", "bench.sender", bed.contender.module],
                cwd=bed.folder,
                env=bed.environment(url),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def __enter__(self) -> Self:
        self._answer()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def call(self, function: str, *arguments: object) -> dict[str, Any]:
        """The answer: `value`, `cpu` and `wall`."""
        assert self._process.stdin is not None
        given = [
            {"first": each.start, "last": each.stop} if isinstance(each, range) else each
            for each in arguments
        ]
        self._process.stdin.write(json.dumps([function, *given]) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise DoesNotAddUp(f"the sender ended: {_end_of(self._log)}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise DoesNotAddUp(f"sending failed: {answer['error']}")
        return answer


class Parking:
    """Tasks that are sent, and seen by a worker when they are released."""

    def __init__(self, bed: Bed, sender: Sender, *, sends_at_release: bool) -> None:
        self._bed = bed
        self._sender = sender
        self._sends_at_release = sends_at_release
        self._deferred: list[tuple[str, range]] = []

    def send(self, task: str, numbers: range) -> list[str] | None:
        """Their ids, where the library has them. A broker that can't park them sends at release;
        then there are none yet."""
        self._deferred.append((task, numbers))
        if self._sends_at_release:
            return None
        bulk = "send_in_bulk" if self._bed.contender.has_bulk else "send"
        ids: list[str] | None = self._sender.call(bulk, task, numbers)["value"]
        return ids

    def release(self) -> list[str] | None:
        """All that was sent becomes visible in one step; the ids of what is sent only now."""
        ids = []
        if self._sends_at_release:
            for task, numbers in self._deferred:
                ids += self._sender.call("send_in_bulk", task, numbers)["value"]
        elif self._bed.contender.on_sqlite:
            self._copy_rows()
        else:
            self._bed.server.release(*self._bed.contender.keys)
        self._deferred.clear()
        return ids or None

    def _copy_rows(self) -> None:
        """Those of Huey's."""
        parked, file = self._bed.folder / "parked.db", self._bed.folder / "bench.db"
        if not file.exists():
            with closing(sqlite3.connect(parked)) as source, closing(sqlite3.connect(file)) as copy:
                copy.execute("PRAGMA journal_mode=WAL")
                source.backup(copy)
                source.execute("DELETE FROM task")
                source.commit()
            return
        with closing(sqlite3.connect(file, timeout=30)) as connection:
            connection.execute("ATTACH ? AS parked", (str(parked),))
            connection.execute(
                "INSERT INTO task (queue, data, priority) "
                "SELECT queue, data, priority FROM parked.task ORDER BY id"
            )
            connection.execute("DELETE FROM parked.task")
            connection.commit()


class Worker:
    """The contender's worker; in the body it is ready, warm and idle, and after it it has ended."""

    def __init__(
        self, bed: Bed, parking: Parking, command: str = "", processes: int | None = None
    ) -> None:
        self.bed = bed
        self._processes = bed.contender.processes if processes is None else processes
        self._parking = parking
        self._log = bed.folder / "worker.log"
        name, *arguments = shlex.split(command or bed.contender.worker)
        self._command = [str(bed.python.parent / name), *arguments]
        self._first = -1_000_000
        self._warm_up_with = WARM_UP
        self.first_task = 0.0
        """Seconds from the command to the first execution."""

    def __enter__(self) -> Self:
        self._send_warm_up()
        started = time.monotonic()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=self.bed.folder,
                env=self.bed.environment(self.bed.url()),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            self._warm_up()
        except BaseException:
            self._kill()
            raise
        self.first_task = self.bed.notes.read()[0].at - started
        return self

    def _warm_up(self) -> None:
        notes, wanted = self.bed.notes, self._processes
        deadline = time.monotonic() + 30
        while notes.processes < wanted:
            self._check()
            if time.monotonic() > deadline:
                if notes.processes:  # one process took all of them, time and again
                    break
                raise DoesNotAddUp(f"no task has run after 30 s: {_end_of(self._log)}")
            time.sleep(0.1)
            if notes.processes:
                self._warm_up_with = min(2 * self._warm_up_with, MOST_WARM_UP)
            self._send_warm_up()
        self.settle()

    def _send_warm_up(self) -> None:
        self._parking.send("noop", range(self._first, self._first + self._warm_up_with))
        self._parking.release()
        self._first += self._warm_up_with

    def settle(self, patience: float = 5.0) -> None:
        """Until it has done what is to be done after the last task, as far as can be seen: it uses
        no CPU that is worth mentioning."""
        deadline, before = time.monotonic() + patience, self.cpu_seconds()
        while time.monotonic() < deadline:
            time.sleep(0.1)
            now = self.cpu_seconds()
            if now - before < 0.004:
                return
            before = now

    def run(self, count: int) -> None:
        """Until so many notes are there beside those of warming up, and all is settled."""
        notes, ours = self.bed.notes, self.noted + count

        def are_there() -> bool:
            self._check()
            return notes.count >= ours

        until(are_there, f"{count} notes")
        self.settle()

    @property
    def noted(self) -> int:
        return sum(1 for each in self.bed.notes.read() if each.number < 0)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        code = self._stop()
        if kind is None and self.bed.contender.library == "umbel" and code != 0:
            raise DoesNotAddUp(f"the worker ended with exit code {code}: {_end_of(self._log)}")

    def _stop(self) -> int | None:
        try:
            # Huey's signal for an end in order.
            asks = signal.SIGINT if self.bed.contender.library == "huey" else signal.SIGTERM
            self._process.send_signal(asks)
            # What the others' tasks noted is there however their workers end.
            return self._process.wait(60 if self.bed.contender.library == "umbel" else 5)
        except subprocess.TimeoutExpired:
            return None
        finally:
            self._kill()

    def _kill(self) -> None:
        """Whatever is left of its session, by whose leader's id it is known."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _check(self) -> None:
        if self._process.poll() is not None:
            raise DoesNotAddUp(
                f"the worker ended with exit code {self._process.returncode}: {_end_of(self._log)}"
            )

    def cpu_seconds(self) -> float:
        return cpu_seconds(self._process.pid)

    def pss_mib(self) -> float:
        return pss_mib(self._process.pid)


def _end_of(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return " / ".join(lines[-3:])[-600:] or "it said nothing"
