"""Tasks that say how their message was made; ``SETTINGS`` are the app's, in JSON."""

from __future__ import annotations

import json
import os
from typing import Any

from tests.worker.chained_app import note

from umbel import Umbel, signals

app = Umbel("mixed", changes=json.loads(os.environ.get("SETTINGS", "{}")), set_as_current=False)


def note_message(task: Any) -> None:
    message = task.request.delivery.message
    kind = message.content_type.rpartition("/")[2].removeprefix("x-")
    note(f"{kind}:{message.headers.get('compression', '-')}", task.request.root_id)


@app.task(name="passes", bind=True)
def passes(self: Any, value: object) -> object:
    """What it got."""
    note_message(self)
    return value


@app.task(name="as_bytes", bind=True, serializer="msgpack", compression="zstd")
def as_bytes(self: Any, value: list[int]) -> bytes:
    note_message(self)
    return bytes(value)


@app.task(name="fails")
def fails(value: object) -> None:
    raise ValueError(value)


@app.task(name="fails_once", bind=True)
def fails_once(self: Any, value: object) -> object:
    if not self.request.retries:
        raise self.retry(countdown=0)
    return value


@app.task(name="passes_changed", bind=True)
def passes_changed(self: Any, value: list[object]) -> object:
    """What its second try gets."""
    if not self.request.retries:
        raise self.retry(countdown=0)
    note_message(self)
    return value


if os.environ.get("CHANGE_RETRIES"):

    @signals.before_task_publish.connect
    def change(body: Any, headers: dict[str, Any], **_: object) -> None:
        body[0][0].append("changed")
