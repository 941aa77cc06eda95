"""What the tests of the command line share: running commands, and messages made by hand."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from umbel import Umbel
from umbel.message import Dead, How, Settlement


@dataclass(frozen=True, slots=True)
class Ended:
    """What a command left: exit code, standard output, standard error."""

    code: int
    out: str
    err: str

    @property
    def sentence(self) -> str:
        """Standard error, which must be exactly one line."""
        assert self.err.endswith("\n"), self.err
        assert self.err.count("\n") == 1, self.err
        assert "Traceback" not in self.err
        return self.err.removesuffix("\n")


def shell(*arguments: str, cwd: Path, **environment: str) -> Ended:
    """Run ``python -m umbel …`` as a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "umbel", *arguments],
        cwd=cwd,
        env=clean_environment(**environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def clean_environment(**more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("UMBEL_", "CELERY_"))}
    return {**kept, **more}


def bury(app: Umbel, task_id: str, reason: str = "ValueError: no good") -> None:
    """Make the waiting message of this id a dead letter, as a worker's process would."""
    broker, run = app.broker, uuid.uuid4().hex
    owner = f"{run}#1"
    broker.enlist(run, owner, b"{}")
    [delivery] = broker.turn(owner, 1, queues=["celery"], limit=1).deliveries
    dead = Dead(reason, "ValueError")
    broker.turn(owner, 2, settlements=[Settlement(delivery.lease, How.ACK, dead=dead)])
    broker.leave(run)
    assert app.dead.get(task_id) is not None


def wait_until(condition: Callable[[], bool], what: str, limit: float = 30.0) -> None:
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, f"not within {limit} s: {what}"
        time.sleep(0.02)


def hear_interrupts() -> None:
    """For `preexec_fn`: a shell's background jobs, and so these tests, may ignore SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
