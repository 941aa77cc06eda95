"""An app whose settings come from the environment; tasks that end in every way that they decide.

The journal has lines ``what tag pid monotonic-seconds``, as that of ``tests.worker.live_app``.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import time
from collections.abc import Callable
from typing import Any

from tests.worker.live_app import hold_interpreter, note, wait_for

from umbel import Umbel, get_task_logger, signals
from umbel.exceptions import SoftTimeLimitExceeded

app = Umbel("settings", changes=json.loads(os.environ.get("SETTINGS", "{}")))
HOARD: list[bytearray] = []
OPTIONS: dict[str, Any] = json.loads(os.environ.get("OPTIONS", "{}"))
"""Of every task here, below what it says itself."""


def task(name: str, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    decorate: Any = app.task  # the options come as data
    made: Callable[[Callable[..., Any]], Any] = decorate(**{"name": name, **OPTIONS, **options})
    return made


if os.environ.get("OWN_LOGGING"):
    logging.basicConfig(format="OWN:%(levelname)s:%(message)s", level=logging.INFO)
task_logger = get_task_logger(__name__)


@task("quick")
def quick(tag: str) -> int:
    note("start", tag)
    return os.getpid()


@task("gated")
def gated(tag: str, gate: str) -> int:
    note("start", tag)
    wait_for(gate)
    note("end", tag)
    return os.getpid()


@task("nap")
def nap(tag: str, seconds: float) -> str:
    note("start", tag)
    try:
        time.sleep(seconds)
    except SoftTimeLimitExceeded:
        return "soft"
    return "slept"


@task("hold")
def hold(tag: str, seconds: float) -> None:
    """Holds the interpreter lock, so that no soft limit comes through."""
    note("start", tag)
    hold_interpreter(seconds)


@task("fail")
def fail(tag: str) -> None:
    note("start", tag)
    raise KeyError(tag)


@task("die", bind=True)
def die(self: Any, tag: str) -> int:
    """Kills its process in the first run of its first message."""
    note("start", tag)
    if not self.request.retries and not self.request.delivery_info["redelivered"]:
        os.kill(os.getpid(), signal.SIGKILL)
    return int(self.request.retries)


@task("always_dies", acks_late=True, reject_on_worker_lost=True)
def always_dies(tag: str) -> None:
    note("start", tag)
    os.kill(os.getpid(), signal.SIGKILL)


@task("parent", bind=True)
def parent(self: Any, queue: str) -> int:
    app.send_task("child", queue=queue)
    app.send_task("urgent child", queue=queue, priority=9)
    return int(self.request.delivery_info["priority"])


@task("talk")
def talk(tag: str) -> None:
    print(f"printed {tag}")
    task_logger.error("said %s", tag)
    logging.getLogger("shop").warning("other %s", tag)


@signals.worker_process_init.connect
def on_process_init(**_: object) -> None:
    note("process_init")
    if gate := os.environ.get("START_GATE"):
        wait_for(gate)


@task("grow")
def grow(kib: int) -> int:
    """Has that much more memory for good."""
    block = bytearray(kib * 1024)
    block[::1024] = b"x" * kib  # so that it is really there
    HOARD.append(block)
    return os.getpid()


@task("echo")
def echo(text: str) -> str:
    return text


@task("expected_fail", throws=KeyError)
def expected_fail(tag: str) -> None:
    raise KeyError(tag)
