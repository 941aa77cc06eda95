"""One delivery on its way through the executor, and how it ended: plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from umbel.app import Umbel
from umbel.einfo import ExceptionInfo as ExceptionInfo
from umbel.message import Delivery
from umbel.options import TaskOptions
from umbel.outcome import End, Options
from umbel.request import Context
from umbel.task import Task


def printable(text: str) -> str:
    """`text` without control characters: a stranger's id could forge log lines."""
    return (
        text
        if text.isprintable()
        else "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
    )


@dataclass(frozen=True, slots=True)
class Taker:
    """The sender of signals about messages: the app and the node name of who took them."""

    app: Umbel
    hostname: str


# Of this and the next, each task makes one: structs are made without Python code.
class Execution(msgspec.Struct, eq=False):
    """A delivery that has been read. `end` is set where it is not to be run at all.

    `task` is None for a name that this worker doesn't know, `request` empty for an unreadable
    message. Limits are in seconds.
    """

    delivery: Delivery
    options: Options
    taker: Taker
    request: Context
    task: Task[Any, Any] | None = None
    task_options: TaskOptions | None = None
    """All of the task's options, as they were when the message was read."""
    end: End | None = None
    error: BaseException | None = None
    stored_state: str = ""
    stored_meta: bytes = b""
    """The record behind `stored_state`."""
    time_limit: float | None = None
    soft_time_limit: float | None = None
    place: int = 0
    """Where on the scoreboard its outcome can be kept."""

    @property
    def name(self) -> str:
        """``task[id]``, for log lines."""
        return printable(f"{self.request.shadow or self.request.task}[{self.request.id}]")

    @property
    def texts(self) -> tuple[str, str, str, str]:
        """What the scoreboard shows: id, task name, argument representations."""
        request = self.request
        return (
            request.id or "",
            request.task or "",
            request.argsrepr[:1000],
            request.kwargsrepr[:1000],
        )


class Ended(msgspec.Struct, frozen=True, eq=False):
    """How an execution ended. `value` is the return value, or None.

    `error` is the exception that ended it, for a retry the one that caused it, with the `Retry`
    as `reason`; `runtime` is in seconds. What is to be sent is in the request's `follow_ups`.
    `internal`: not the task failed, but the making of what was to follow from it.
    """

    end: End
    value: Any = None
    error: BaseException | None = None
    einfo: ExceptionInfo | None = None
    reason: object = None
    runtime: float = 0.0
    signum: int | None = None
    """The signal in whose stead a revoked task was ended."""
    internal: bool = False
