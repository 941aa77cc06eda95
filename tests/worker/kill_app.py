"""The app of the kill tests: tasks that write down each start and end, and die as told.

``UMBEL_TEST_LOG`` is the file of all starts, ends and kills, in their order. ``UMBEL_TEST_KILLS``
is JSON: a list of the keyword arguments of `faults.kill_at`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from umbel import Task, Umbel
from umbel.request import Context
from umbel.signals import task_failure, task_success
from umbel.testing import faults

LOG = Path(os.environ["UMBEL_TEST_LOG"])
QUICK = LOG.with_name("quick")
_open: dict[int, int] = {}

app = Umbel("kill", set_as_current=False)


def body(request: Context, seconds: float) -> int:
    """Start, pass the point, take `seconds` (negative: without letting go), end."""
    faults.note(LOG, f"start\t{request.id}\t{os.getpid()}")
    faults.in_function(request.id or "")
    if seconds > 0:
        time.sleep(seconds)
    elif seconds < 0:
        hold_the_interpreter(-seconds)
    faults.note(LOG, f"end\t{request.id}\t{os.getpid()}")
    return os.getpid()


def hold_the_interpreter(seconds: float) -> None:
    """Take some `seconds` in steps that let no other thread have the interpreter."""
    until = time.monotonic() + seconds
    with_interval = sys.getswitchinterval()
    sys.setswitchinterval(100)
    while time.monotonic() < until:
        sum(range(10_000))
    sys.setswitchinterval(with_interval)


@app.task(name="early", bind=True)
def early(self: Task[..., int], seconds: float = 0.0) -> int:
    return body(self.request, seconds)


@app.task(name="late", bind=True, acks_late=True)
def late(self: Task[..., int], seconds: float = 0.0) -> int:
    return body(self.request, seconds)


@app.task(name="late+reject", bind=True, acks_late=True, reject_on_worker_lost=True)
def late_reject(self: Task[..., int], seconds: float = 0.0) -> int:
    return body(self.request, seconds)


@app.task(name="again", bind=True, acks_late=True, reject_on_worker_lost=True)
def again(self: Task[..., int], times: int) -> int:
    """Ask for `times` retries, at once."""
    value = body(self.request, 0.0)
    if self.request.retries < times:
        raise self.retry(countdown=0)
    return value


@app.task(name="large", bind=True)
def large(self: Task[..., str], size: int) -> str:
    """An outcome that has no room on the scoreboard."""
    body(self.request, 0.0)
    return "x" * size


@app.task(name="orphan", bind=True)
def orphan(self: Task[..., int], seconds: float) -> int:
    """Leave a fork of this process behind, as `multiprocessing` would in a death."""
    pid = os.fork()
    if pid == 0:
        time.sleep(seconds)
        os._exit(0)
    return pid


@app.task(name="quick", bind=True)
def quick(self: Task[..., None]) -> None:
    """Only the end is written down, and that it was announced (`told`)."""
    write(QUICK, f"end\t{self.request.id}")


@task_success.connect
def told(sender: Task[..., object], **_: object) -> None:
    if sender.name == "quick":
        write(QUICK, f"told\t{sender.request.id}")


def write(log: Path, line: str) -> None:
    """As `note`, with a file that stays open in this process."""
    descriptor = _open.get(os.getpid())
    if descriptor is None:
        descriptor = _open[os.getpid()] = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(descriptor, f"{line}\n".encode())


@task_failure.connect
def failed(task_id: str, exception: BaseException, **_: object) -> None:
    faults.note(LOG, f"failed\t{task_id}\t{type(exception).__name__}")


for fault in json.loads(os.environ.get("UMBEL_TEST_KILLS", "[]")):
    faults.kill_at(
        faults.Point(fault.pop("point")),
        faults.Target(fault.pop("target")),
        log=LOG,
        driver=type(app.connections.unopened()),
        **fault,
    )
