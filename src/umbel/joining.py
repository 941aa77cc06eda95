"""Whether code may wait for a task's result: inside a worker it may not, unless it says so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from umbel.request import Running, current_request

_allowed: Final[ContextVar[bool | None]] = ContextVar("umbel_allow_join", default=None)


@contextmanager
def allow_join_result() -> Iterator[None]:
    """Waiting for results is fine inside the block, also in a task."""
    with _set(True):
        yield


@contextmanager
def denied_join_result() -> Iterator[None]:
    """Waiting for results raises `RuntimeError` inside the block, also outside of tasks."""
    with _set(False):
        yield


def refuse_to_wait(task_id: str) -> None:
    """Raises `RuntimeError` where waiting for the task `task_id` is not allowed."""
    allowed = _allowed.get()
    entry = _in_worker()
    if allowed or (allowed is None and entry is None):
        return
    instead = (
        "Let the other task go on with the result: chain it, as in other.s() | more.s(), or give "
        "it a callback with link=. Where the wait is sure to end, say allow_join_result(), or "
        "get(disable_sync_subtasks=False)"
    )
    if entry is None:
        raise RuntimeError(f"waiting for the result of task {task_id} is denied here. {instead}")
    raise RuntimeError(
        f"{entry.request.task} waits for the result of task {task_id} inside a worker: with all "
        f"processes waiting like this, none would be left to run it. {instead}"
    )


def _in_worker() -> Running | None:
    """The task that a worker runs here; one that is run in its caller doesn't count."""
    entry = current_request.get()
    while entry is not None and (entry.request.called_directly or entry.request.is_eager):
        entry = entry.outer
    return entry


@contextmanager
def _set(allowed: bool) -> Iterator[None]:
    token = _allowed.set(allowed)
    try:
        yield
    finally:
        _allowed.reset(token)
