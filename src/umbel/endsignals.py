"""What handlers and signals get once a task has ended, in a worker and by `Task.apply` alike.

Which of them are called, and in which order, is the outcome table's to say (`Verdict.announce`).
The signals that only a worker sends (`task_revoked`, `task_unknown`, `task_rejected`) stand in
`umbel.worker.announce`.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from umbel.einfo import ExceptionInfo
from umbel.exceptions import Retry
from umbel.outcome import Verdict
from umbel.request import Context

if TYPE_CHECKING:
    from umbel.task import Task


class Ending(Protocol):
    """How a run ended: with a value, or with an exception in `error` and `einfo`.

    Of a retry these are its cause, and `reason` is the `Retry`. `runtime` is in seconds.
    """

    @property
    def value(self) -> Any: ...
    @property
    def error(self) -> BaseException | None: ...
    @property
    def einfo(self) -> ExceptionInfo | None: ...
    @property
    def reason(self) -> object: ...
    @property
    def runtime(self) -> float: ...


def handler_arguments(
    name: str, request: Context, ended: Ending, verdict: Verdict
) -> tuple[Any, ...]:
    """The arguments of ``on_success``, ``on_failure``, ``on_retry`` or ``after_return``."""
    call = (request.id, *_call_of(request))
    match name:
        case "on_success":
            return (ended.value, *call)
        case "on_failure" | "on_retry":
            return (ended.error, *call, ended.einfo)
        case _:
            return (verdict.state, _returned(ended), *call, None)


def signal_arguments(
    name: str, task: Task[..., Any] | None, request: Context, ended: Ending, verdict: Verdict
) -> dict[str, Any]:
    """The named arguments of the signal `name`, but for `sender`, which is the task.

    `task` is None where this process doesn't know it.
    """
    args, kwargs = _call_of(request)
    call = {"task_id": request.id, "args": args, "kwargs": kwargs}
    match name:
        case "task_success":
            return {"result": ended.value, "runtime": ended.runtime}
        case "task_retry":
            reason = ended.reason if ended.reason is not None else _unasked_retry(task, ended)
            return {"request": request, "reason": reason, "einfo": ended.einfo}
        case "task_failure":
            return {**call, **_raised(ended)}
        case "task_internal_error":
            return {**call, "request": request, **_raised(ended)}
        case "task_postrun":
            # Of a retry, the `Retry` itself.
            retval = ended.reason if isinstance(ended.reason, Retry) else _returned(ended)
            return {**call, "task": task, "retval": retval, "state": verdict.postrun_state}
        case _:
            raise ValueError(f"{name!r} isn't a signal of what a function ended in")


def _call_of(request: Context) -> tuple[Any, Any]:
    args, kwargs = request.args, request.kwargs
    return [] if args is None else args, {} if kwargs is None else kwargs


def _returned(ended: Ending) -> Any:
    return ended.value if ended.error is None else ended.error


def _raised(ended: Ending) -> dict[str, Any]:
    return {"exception": ended.error, "traceback": _traceback(ended.einfo), "einfo": ended.einfo}


def _traceback(einfo: ExceptionInfo | None) -> TracebackType | str | None:
    """Of what was raised outside of this process there is only the text."""
    return None if einfo is None else einfo.tb or einfo.traceback


def _unasked_retry(task: Task[..., Any] | None, ended: Ending) -> Retry:
    """The reason of a retry that nobody has asked for: the task's process was lost."""
    return Retry(exc=ended.error, when=None if task is None else task.options.default_retry_delay)
