"""Tasks whose messages and results are of other kinds than plain JSON, and typed ones.

``SETTINGS`` of the environment are those of the app, in JSON.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID

from tests.worker.live_app import note

from umbel import Umbel, signals
from umbel.serialization import register

register(
    "own",
    lambda value: json.dumps(value)[::-1],
    lambda data: json.loads(data.decode()[::-1]),
    "application/x-own",
)
app = Umbel("formats", changes=json.loads(os.environ.get("SETTINGS", "{}")), set_as_current=False)
if app.conf.task_serializer == "auth":
    app.setup_security()


class Colour(Enum):
    RED = "red"


@dataclass(frozen=True)
class Order:
    id: UUID
    total: Decimal
    colour: Colour
    files: tuple[Path, ...] = ()
    tags: frozenset[str] = field(default_factory=frozenset)


@app.task(name="formats.kinds")
def kinds(order: Order | None, *paths: Path, colours: set[Colour] | None = None) -> list[str]:
    assert order is None or isinstance(order.files[0], Path)
    return [type(order).__name__, *(type(each).__name__ for each in paths), type(colours).__name__]


@app.task(name="formats.total")
async def total(order: Order) -> str:
    return str(order.total)


@app.task(name="formats.strict", autoretry_for=(Exception,), default_retry_delay=0.01)
def strict(key: UUID) -> str:
    note("ran", key)
    return str(key)


@app.task(name="formats.loose", typing=False)
def loose(key: UUID) -> str:
    return type(key).__name__


@app.task(name="formats.again", bind=True, default_retry_delay=0.01, serializer="msgpack")
def again(self: Any, order: Order) -> str:
    if self.request.retries == 0:
        self.retry(args=(Order(order.id, order.total + 1, order.colour, order.files),))
    return str(order.total)


@app.task(name="formats.made")
def made(number: int) -> Order:
    return Order(UUID(int=number), Decimal("1.10"), Colour.RED, (Path("/a"),), frozenset({"x"}))


@app.task(name="formats.made_later")
async def made_later(number: int) -> set[Colour] | None:
    return {Colour.RED} if number else None


@app.task(name="formats.made_untyped", typing=False)
def made_untyped(number: int) -> Order:
    return made(number)


@app.task(name="formats.made_of_what_is_not_plain", autoretry_for=(Exception,))
def made_of_what_is_not_plain() -> list[Order]:
    return [object()]  # type: ignore[list-item]  # what its annotation doesn't say


@app.task(name="formats.echo")
def echo(value: object) -> object:
    note("ran", "echo")
    return value


@app.task(name="formats.fail")
def fail() -> None:
    raise KeyError("k", {1, 2})


@app.task(name="t.add")
def add(*args: object, **kwargs: object) -> list[object]:
    return [args, kwargs]


@signals.task_prerun.connect
def before(args: Any, **more: Any) -> None:
    note("prerun", type(args[0]).__name__ if args else "-")


@signals.task_postrun.connect
def after(state: str, **more: Any) -> None:
    note("postrun", state)


@signals.task_rejected.connect
def rejected(exc: object, **more: Any) -> None:
    note("rejected", type(exc).__name__)
