"""Tasks that fail for ever, each with another retry policy; a journal of their runs.

A line is ``what task-name pid monotonic-seconds``; `what` is ``run:RETRIES``.
"""

from __future__ import annotations

import os
import time
from typing import Any

from umbel import Umbel
from umbel.retry import Exponential, Fixed, Linear

app = Umbel("retrying")
ERRORS = {kind.__name__: kind for kind in (ConnectionResetError, FileNotFoundError, KeyError)}


class Busy(Exception):
    """An error as a web client raises it: with the response that it is about."""

    def __init__(self, seconds: str) -> None:
        self.response = Response({"Retry-After": seconds})


class Response:
    def __init__(self, headers: dict[str, str]) -> None:
        self.headers = headers


def note(task: Any) -> None:
    line = f"run:{task.request.retries} {task.name} {os.getpid()} {time.monotonic()}\n"
    descriptor = os.open(os.environ["JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


@app.task(
    name="mapped",
    bind=True,
    autoretry_for={OSError: Fixed(0.3), ConnectionError: Linear(0.05)},
    attempts=3,
)
def mapped(self: Any, error: str) -> None:
    note(self)
    raise ERRORS[error]("always")


@app.task(
    name="told_to_wait",
    bind=True,
    autoretry_for=Busy,
    retry_backoff=Fixed(0, maximum=0.5),
    max_retries=1,
)
def told_to_wait(self: Any, seconds: str) -> None:
    note(self)
    raise Busy(seconds)


@app.task(
    name="in_a_hurry",
    bind=True,
    autoretry_for=OSError,
    max_retries=None,
    retry_backoff=Exponential(0.1, jitter="none"),
    retry_max_elapsed=1.2,
)
def in_a_hurry(self: Any) -> float:
    note(self)
    raise ConnectionError("never there")


@app.task(
    name="permanent",
    bind=True,
    autoretry_for=Exception,
    dead_letter_for=(KeyError,),
    retry_backoff=Fixed(0),
)
def permanent(self: Any, by_hand: bool) -> None:
    note(self)
    error = KeyError("no such customer")
    if by_hand:
        self.retry(exc=error, countdown=0)
    raise error
