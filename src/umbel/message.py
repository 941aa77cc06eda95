"""The values that travel between callers, brokers and workers.

::

    Message   one request to run a task, as it is stored
    Posting   a message, where it goes and when it is due
    Delivery  one handing of a message to one owner, under a lease
    Settlement  the end of a delivery, with all that follows from it

All are frozen. Drivers store and return them and understand none of the headers. The garbage
collector leaves out those of which there may be tens of thousands: none can be in a cycle, since
they are sent as JSON.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Any, Final

import msgspec

MAX_PRIORITY: Final = 9


class Message(
    msgspec.Struct,
    frozen=True,
    gc=False,
    rename={"content_type": "content-type", "content_encoding": "content-encoding"},
):
    """One request to run a task: Celery's protocol 2 headers, properties and encoded body.

    As JSON it is the envelope that Kombu keeps in Redis: five keys, the body in base64.
    """

    body: bytes
    content_encoding: str
    content_type: str
    headers: dict[str, Any]
    properties: dict[str, Any]

    @property
    def id(self) -> str:
        """The task id; empty where a stranger sent none."""
        value = self.headers.get("id")
        return value if isinstance(value, str) else ""

    @property
    def task(self) -> str:
        """The task's registered name; empty where a stranger sent none."""
        value = self.headers.get("task")
        return value if isinstance(value, str) else ""


class Unreadable(msgspec.Struct, frozen=True):
    """What a queue held in place of a message: the bytes, and why they can't be read."""

    raw: bytes
    reason: str


class Posting(msgspec.Struct, frozen=True, gc=False):
    """A message to be stored: published by a caller, or following from a settlement.

    `exchange` is empty for the default exchange, where `routing_key` is the queue's name; to any
    other, one copy goes to each queue that the broker's bindings take it to.
    `due_at` is in unix seconds; None is due now. `priority` is 0 to 9, 9 served first.
    """

    message: Message
    routing_key: str
    exchange: str = ""
    priority: int = 0
    due_at: float | None = None


class Result(msgspec.Struct, frozen=True):
    """A task's state and value, as the result store keeps it.

    `meta` is Celery's result meta (JSON). `expires_at` is in unix seconds, None is never.
    """

    task_id: str
    state: str
    meta: bytes
    expires_at: float | None = None


class Loss(StrEnum):
    """What ended an execution from outside."""

    PROCESS = "process"
    WORKER = "worker"
    HARD_LIMIT = "hard limit"
    TERMINATED = "terminated"
    COLD_STOP = "cold stop"


class Lost(msgspec.Struct, frozen=True):
    """Why a begun delivery was set aside for burial.

    `info` is what the dead run gave to `enlist`; the burier reads its task options there.
    """

    loss: Loss
    detail: str
    info: bytes = b""


class Delivery(msgspec.Struct, frozen=True):
    """One handing of a message to one owner.

    `lease` counts from 1 within the owner, without gaps, in the order of handing out.
    `redeliveries` are the counted ones. `redelivered` says that an earlier delivery ended
    without a settlement or was requeued. `unknown_since_at` is when a worker first did not
    know the task's name. `lost` marks a delivery that is to be buried, not run.
    """

    lease: int
    queue: str
    message: Message | Unreadable
    redeliveries: int = 0
    redelivered: bool = False
    unknown_since_at: float | None = None
    lost: Lost | None = None


class How(IntEnum):
    """The four ways to end a delivery."""

    ACK = 0
    """Done: the message is gone."""
    REJECT = 1
    """Refused: the message is gone; a server with dead-letter rules of its own sees it."""
    REQUEUE = 2
    """Delivered again, counted; to the back of its queue."""
    RELEASE = 3
    """Given back, uncounted; to the place in its queue that it had, or due after `delay`.

    A burial stays a burial, unless `redelivered` says that the task is to be run again."""


class Dead(msgspec.Struct, frozen=True):
    """The dead letter that a settlement leaves: `error` is an exception's class name."""

    reason: str
    error: str = ""


class Settlement(msgspec.Struct, frozen=True, omit_defaults=True):
    """The end of one delivery and what follows from it, applied in one step or not at all.

    `result` is stored in the same step, and so are `others`, of tasks that end with this one (what
    is behind it in a chain); they are given only to a broker whose database is the result store's
    too. `note` goes into the message's history (REQUEUE). `unknown` (RELEASE)
    starts the first-seen time of an unknown task name, or leaves the one that runs. `redelivered`
    (RELEASE) says that the task had begun, so that the next delivery knows.
    """

    lease: int
    how: How
    follow_ups: tuple[Posting, ...] = ()
    dead: Dead | None = None
    result: Result | None = None
    note: str = ""
    delay: float = 0.0
    unknown: bool = False
    redelivered: bool = False
    others: tuple[Result, ...] = ()

    @property
    def results(self) -> tuple[Result, ...]:
        """All that is to be stored."""
        return self.others if self.result is None else (self.result, *self.others)
