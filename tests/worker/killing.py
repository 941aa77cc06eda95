"""One broker with workers that are killed, and are started again until all has ended."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

from tests.worker.harness import HERE, Worker, client
from tests.worker.judging import Story, judge, leftovers

from umbel import Umbel

LIMIT = 90.0
MODES = ("early", "late", "late+reject")
EACH = 100


class Scene:
    """One broker, its client, and the workers that come and go."""

    def __init__(
        self,
        folder: Path,
        *,
        separate_store: bool = False,
        tasks: str = "kill_app",
        url: str | None = None,
    ) -> None:
        """The broker is at `url`; without one it is a file."""
        self.folder = folder
        self.tasks = tasks
        self.url = url or f"sqlite:///{folder}/broker.db"
        self.log = folder / "events"
        self.log.touch()
        self.app: Umbel = client(self.url)
        self.env = {
            "UMBEL_TEST_LOG": str(self.log),
            "UMBEL_WORKER_LEASE_TIME": "1.5",
            "PYTHONPATH": str(HERE.parent.parent),
        }
        if separate_store:
            self.env["UMBEL_RESULT_BACKEND"] = f"sqlite:///{folder}/results.db"
            self.app.conf.result_backend = self.env["UMBEL_RESULT_BACKEND"]
        self.app.broker.enlist("nobody", None, b"{}")  # or the file is said to have no worker
        self.app.broker.leave("nobody")

    def send(self, mode: str, *args: object, **options: Any) -> str:
        return str(self.app.send_task(mode, args, **options).id)

    def send_all(self, *seconds: float) -> dict[str, str]:
        """`EACH` tasks of every mode and of all these durations, taking turns; modes by id."""
        durations = cycle(seconds or [0.0])
        with self.app.batch():
            return {self.send(mode, next(durations)): mode for _ in range(EACH) for mode in MODES}

    def send_with_consequences(self) -> dict[str, str]:
        """`EACH` tasks with two retries, and as many with large results; modes by id."""
        with self.app.batch():
            modes = {}
            for _ in range(EACH):
                modes[self.send("again", 2)] = "again"
                modes[self.send("large", 5000)] = "large"
            return modes

    def worker(self, *kills: dict[str, object], options: tuple[str, ...] = ("-c", "2")) -> Worker:
        env = {**self.env, "UMBEL_TEST_KILLS": json.dumps(kills)}
        return Worker(self.url, *options, app=self.tasks, env=env, folder=self.folder)

    def ended(self) -> bool:
        """No message waits or is held, and no run is known but the one that lives."""
        broker = self.app.broker
        return len(broker.runs()) == 1 and not any(
            each.ready + each.delayed + each.leased + each.lost for each in broker.queues()
        )

    def where(self) -> str:
        broker = self.app.broker
        return f"{broker.queues()}, runs {[record.run for record in broker.runs()]}"

    def work_off(self, *kills: dict[str, object], options: tuple[str, ...] = ("-c", "2")) -> None:
        """Start workers until all has ended, then stop the last one warm."""
        deadline = time.monotonic() + LIMIT
        while True:
            with self.worker(*kills, options=options) as worker:
                while worker.process.poll() is None:
                    if self.ended() and " ready." in worker.text:
                        worker.stop()
                        if worker.process.returncode == 0:
                            return
                        break
                    late = time.monotonic() > deadline
                    assert not late, f"{self.where()}\n{worker.text}"
                    time.sleep(0.02)
                killed = worker.process.returncode == -signal.SIGKILL
                assert killed, f"the worker ended by itself:\n{worker.text}"

    def check(
        self,
        modes: dict[str, str],
        faults_of: Callable[[Story], list[str]] = Story.faults,
    ) -> dict[str, Story]:
        """Everything is in one of its allowed places, and nothing else is left; the stories."""
        told = judge(self.app, self.log, modes, faults_of)
        left = leftovers(self.app)
        assert not left, left
        return told
