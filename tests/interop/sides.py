"""Workers and clients of the application in ``fleet``, each of Umbel or of a real Celery."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import redis
from tests.cli.helpers import clean_environment
from tests.interop.environments import python_with
from tests.servers import Redis
from tests.worker.harness import until

from umbel import Umbel

FLEET: Final = Path(__file__).resolve().parent / "fleet"
UMBEL: Final = "umbel"
CELERY: Final = "celery"
CELERIES: Final = ("celery-5.6", "celery-5.7")
SIDES: Final = (UMBEL, *CELERIES)
"""Names of both kinds; each is also the queue that its worker of the shared fleet consumes."""
STARTS: Final = {
    UMBEL: ("umbel", "--as-celery", "-A", "proj", "worker", "-l", "INFO"),
    CELERY: ("celery", "-A", "proj", "worker", "-l", "INFO"),
}
"""The commands of workers, as ``docs/migrating.md`` has them."""
ALONE: Final = ("--without-gossip", "--without-heartbeat")


@dataclass(frozen=True, slots=True)
class Note:
    """What a task has noted; `at` is Unix time."""

    what: str
    tag: str | None
    who: str
    id: str
    at: float
    retries: int
    worker: str


def _python(side: str) -> str:
    return sys.executable if side == UMBEL else str(python_with(side.removeprefix("celery-")))


class Process:
    """One process of a place; what it says is in its log."""

    def __init__(self, place: Place, side: str, command: Sequence[str], **streams: Any) -> None:
        self.side = side
        self.name = f"{side}-{uuid.uuid4().hex[:6]}"
        self.log = place.folder / f"{self.name}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [_python(side), *command],
                cwd=FLEET,
                env=place.environment,
                stderr=log,
                start_new_session=True,
                **{"stdin": subprocess.DEVNULL, "stdout": log, **streams},
            )

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def kill(self) -> None:
        """SIGKILL to it and all its processes."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, 9)
        self.process.wait(10)


class Worker(Process):
    """A worker of one process, for these queues."""

    def __init__(
        self,
        place: Place,
        side: str,
        *queues: str,
        options: Sequence[str] = (),
        mingles: bool = False,
    ) -> None:
        """`mingles`: a Celery asks the other workers for what is revoked, which takes a second."""
        name = f"w{uuid.uuid4().hex[:6]}@test"
        one = ["-c", "1", "-Q", ",".join(queues), "-n", name]
        alone = () if side == UMBEL else ALONE if mingles else (*ALONE, "--without-mingle")
        command = [*STARTS.get(side, STARTS[CELERY]), *one, *alone, *options]
        super().__init__(place, side, ["-m", *command])
        self.node = name
        self._place = place

    def ready(self) -> Self:
        """Wait until it consumes."""
        until(
            lambda: " ready." in self.text or self.process.poll() is not None,
            60.0,
            f"{self.side} is ready; {self.text[-2000:]}",
        )
        assert self.process.poll() is None, self.text
        # A Celery that says so listens a moment later, and misses what is published until then.
        until(
            lambda: self._place.app.control.ping(destination=[self.node], timeout=1.0),
            60.0,
            f"{self.side} answers; {self.text[-2000:]}",
        )
        return self

    def stop(self) -> None:
        """A warm stop; Celery's has no exit code of its own for it."""
        self.process.terminate()
        self.process.wait(30)


class Client(Process):
    """A program that sends to the fleet, and waits for its results."""

    def __init__(self, place: Place, side: str) -> None:
        start = ["-m", "umbel.compat.celery", "caller.py"] if side == UMBEL else ["caller.py"]
        super().__init__(place, side, start, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def kill(self) -> None:
        super().kill()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()

    def begin(self, do: str, **arguments: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"{self.name} ended: {self.text}"
        answer = json.loads(line)
        assert "ok" in answer, f"{self.name}: {answer['error']}"
        return answer["ok"]

    def ask(self, do: str, **arguments: object) -> Any:
        self.begin(do, **arguments)
        return self.answer()

    def send(self, task: str, *args: object, **options: object) -> str:
        sent: str = self.ask("send", task=task, args=args, **options)
        return sent

    def get(self, task_id: str) -> Any:
        """The return value; an exception is an error."""
        answer = self.ask("get", id=task_id)
        assert "value" in answer, answer
        return answer["value"]

    def failure(self, task_id: str) -> Any:
        """The exception that it raises there, as `fleet/caller.py` describes it."""
        answer = self.ask("get", id=task_id)
        assert "raised" in answer, answer
        return answer


class Place:
    """A database, its journal, its workers and clients."""

    def __init__(self, folder: Path, server: Redis, database: int, **environment: str) -> None:
        self.folder = folder
        self.journal = folder / "journal.txt"
        self.broker = f"redis://127.0.0.1:{server.port}/{database}"
        self.redis = redis.Redis(port=server.port, db=database)
        self.environment = clean_environment(
            PROJ_BROKER=self.broker,
            PROJ_RESULTS=f"redis://127.0.0.1:{server.port}/{database + 1}",
            PROJ_JOURNAL=str(self.journal),
            # Else Celery refuses to run as root, as tests do in a container, with pickle allowed.
            C_FORCE_ROOT="1",
            **environment,
        )
        self.app = Umbel("looking", broker=self.broker, set_as_current=False)
        self._processes: list[Process] = []

    def worker(
        self, side: str, *queues: str, options: Sequence[str] = (), mingles: bool = False
    ) -> Worker:
        """A worker; it may not be ready yet."""
        worker = Worker(self, side, *queues, options=options, mingles=mingles)
        self._processes.append(worker)
        return worker

    def process(self, side: str, command: Sequence[str]) -> Process:
        process = Process(self, side, command)
        self._processes.append(process)
        return process

    def client(self, side: str) -> Client:
        client = Client(self, side)
        self._processes.append(client)
        return client

    def notes(self, **wanted: object) -> list[Note]:
        """Those with these values, in their order."""
        if not self.journal.exists():
            return []
        notes = [Note(**json.loads(line)) for line in self.journal.read_text().splitlines()]
        return [n for n in notes if all(getattr(n, k) == v for k, v in wanted.items())]

    def noted(self, times: int = 1, timeout: float = 30.0, **wanted: object) -> list[Note]:
        """The same, once there are as many."""
        return until(
            lambda: notes if len(notes := self.notes(**wanted)) >= times else [],
            timeout,
            f"{times} x {wanted}; {self.logs()}",
        )

    def gate(self) -> Path:
        """A file that a task waits for; `touch()` opens it."""
        return self.folder / f"gate-{uuid.uuid4().hex}"

    def logs(self) -> str:
        return "\n".join(f"--- {each.name}\n{each.text[-3000:]}" for each in self._processes)

    def close(self) -> None:
        with ExitStack() as stack:
            stack.callback(self.redis.close)
            stack.callback(self.app.close)
            for each in self._processes:
                stack.callback(each.kill)
