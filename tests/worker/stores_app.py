"""Tasks for the tests of result stores; settings come from the environment of the worker."""

from __future__ import annotations

import json
import os
from typing import Any

from tests.worker.live_app import note, wait_for

from umbel import Umbel

app = Umbel("stores", changes=json.loads(os.environ.get("SETTINGS", "{}")))


@app.task(name="quick")
def quick(tag: str) -> str:
    note("start", tag)
    return tag


@app.task(name="late", acks_late=True)
def late(tag: str) -> str:
    note("start", tag)
    return tag


@app.task(name="gated")
def gated(tag: str, gate: str) -> str:
    note("start", tag)
    wait_for(gate)
    return tag


@app.task(name="fail")
def fail(tag: str) -> None:
    raise KeyError(tag)


@app.task(name="large")
def large(size: int) -> str:
    return "x" * size


@app.task(name="retried", bind=True)
def retried(self: Any, size: int, tag: str = "-") -> int:
    """Retried once, for an error as large as it is told."""
    if not self.request.retries:
        raise self.retry(exc=ValueError("x" * size), countdown=0)
    return int(self.request.retries)


@app.task(name="spoils_its_arguments")
def spoils_its_arguments(rows: list[object], *, name: str) -> str:
    rows.append(object())
    return name
