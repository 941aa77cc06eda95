"""From a delivery to the end of its execution: reads the message, runs the task.

Nothing is decided here about what follows, and nothing is settled; see `outcome` and `settler`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from types import CoroutineType
from typing import Any, Final

import msgspec

from umbel import signals, states
from umbel.app import Umbel
from umbel.exceptions import (
    DecodeError,
    Ignore,
    InvalidTaskError,
    NotRegistered,
    Reject,
    Retry,
    SecurityError,
    SoftTimeLimitExceeded,
    TaskRevokedError,
    TimeLimitExceeded,
    WorkerLostError,
    WorkerTerminate,
)
from umbel.message import Delivery, Loss, Lost, Message, Unreadable
from umbel.options import TaskOptions
from umbel.outcome import End, Options
from umbel.protocol import NO_EMBED, read_request, take_call
from umbel.request import Context, Running, current_request, running
from umbel.task import Task, no_handler
from umbel.typed import Unfit, typed_return
from umbel.worker import followups
from umbel.worker.execution import Ended, ExceptionInfo, Execution, Taker
from umbel.worker.lanes import Lane, Stopped
from umbel.worker.patience import patiently

logger = logging.getLogger("umbel.worker")

EARLY: Final = 0.001
"""Seconds before its time that a task may start: the time in its header may have been rounded up to
whole microseconds. No more, since a retry that is early may overtake what is still being stored."""
IsRevoked = Callable[[str], bool]

_END_OF_LOSS = {
    Loss.PROCESS: End.PROCESS_LOST,
    Loss.WORKER: End.WORKER_LOST,
    Loss.HARD_LIMIT: End.HARD_LIMIT,
    Loss.TERMINATED: End.TERMINATED,
    Loss.COLD_STOP: End.COLD_STOP,
}


class Executor:
    """Runs tasks of one app, each in its lane. Threads may share it."""

    def __init__(
        self,
        app: Umbel,
        *,
        hostname: str,
        is_revoked: IsRevoked,
        time_limit: float | None = None,
        soft_time_limit: float | None = None,
        store_started: Callable[[Execution], None],
    ) -> None:
        self._app = app
        self._tasks = app.tasks
        self._hostname = hostname
        self._taker = Taker(app, hostname)
        self._is_revoked = is_revoked
        self._limits = (time_limit, soft_time_limit)
        self._store_started = store_started
        self._reader = app.call_reader()
        self._typed = {
            name: task.typed for name, task in app.tasks.items() if task.typed and task.typing
        }
        returned = {name: typed_return(task.run) for name, task in app.tasks.items() if task.typing}
        self._returned = {name: each for name, each in returned.items() if each is not None}
        self._keeps = app.result_format.serializer.keeps
        self._now = app.clock.wall
        self._options = {name: options_of(task) for name, task in app.tasks.items()}
        self._default_options = _options(app.task_options({}))

    def prepare(self, delivery: Delivery) -> Execution:
        """Read the message. Never raises: what can't be run has its `end` set."""
        try:
            request = read_request(delivery, hostname=self._hostname)
        except InvalidTaskError as error:
            execution = Execution(delivery, self._default_options, self._taker, Context())
            execution.end, execution.error = End.UNREADABLE, error
            return execution
        execution = Execution(delivery, self._default_options, self._taker, request)
        execution.task = task = self._task(request.task or "")
        if task is not None:
            execution.task_options = task.options
        if delivery.lost is not None:
            self._prepare_burial(execution, delivery.lost)
            return execution
        if task is not None:
            execution.options = self._options.get(task.name) or options_of(task)
            self._read_body(execution, delivery.message)
        if execution.end is None:
            self._look_before_start(execution, task)
        return execution

    def _task(self, name: str) -> Task[Any, Any] | None:
        task = self._tasks.get(name)
        # A shared task may have come since: the app looks for those when it is asked.
        return self._app.tasks.get(name) if task is None else task

    def _read_body(self, execution: Execution, message: Message | Unreadable) -> None:
        assert isinstance(message, Message)
        try:
            args, kwargs, embed = self._reader.call(message)
            take_call(execution.request, args, kwargs, embed)
            if embed != NO_EMBED:
                followups.check(execution.request)
        except (DecodeError, InvalidTaskError, SecurityError) as error:
            execution.end = End.UNREADABLE
            execution.error = error

    def _look_before_start(self, execution: Execution, task: Task[Any, Any] | None) -> None:
        """Expired, revoked, not due, unknown, or done by an earlier delivery; else the limits.

        What is revoked comes before its time, so that it ends at once.
        """
        request, delivery = execution.request, execution.delivery
        if request.expires_at is not None and self._now() >= request.expires_at:
            execution.end, execution.error = End.EXPIRED, TaskRevokedError("expired")
        elif self._is_revoked(request.id or ""):
            execution.end, execution.error = End.REVOKED, TaskRevokedError("revoked")
        elif request.due_at is not None and request.due_at > self._now() + EARLY:
            execution.end = End.NOT_DUE
        elif task is None:
            execution.end = End.UNKNOWN_TASK
            self._read_what_can_be(execution)
            execution.error = NotRegistered(
                f"no task named {request.task!r} is registered in this worker"
            )
        elif (delivery.redelivered or delivery.redeliveries) and self._is_done(execution):
            execution.end = End.STORED
        else:
            hard, soft = self._limits
            options = execution.task_options or task.options
            execution.time_limit = request.time_limit or options.time_limit or hard
            execution.soft_time_limit = request.soft_time_limit or options.soft_time_limit or soft

    def _is_done(self, execution: Execution) -> bool:
        """Whether deduplication is on and a redelivered task's result is SUCCESS already."""
        if not (self._app.conf.worker_deduplicate_successful_tasks and execution.options.acks_late):
            return False
        self._look_at_result(execution)
        return execution.stored_state == states.SUCCESS

    def _look_at_result(self, execution: Execution) -> None:
        """Take what is stored. Waits for a store that is away."""
        store = self._app.store
        if store is None:
            return
        (result,) = patiently(lambda: store.get([execution.request.id or ""]))
        if result is not None:
            execution.stored_state, execution.stored_meta = result.state, result.meta

    def _prepare_burial(self, execution: Execution, lost: Lost) -> None:
        """What a dead process or run was running: nothing of it is run here."""
        request = execution.request
        self._look_at_result(execution)
        execution.options = options_in(lost.info, request.task or "", self._options)
        execution.end = _END_OF_LOSS[lost.loss]
        if execution.stored_state in states.READY_STATES:
            execution.end = End.STORED
        self._read_what_can_be(execution)
        execution.error = _loss_error(lost)

    def _read_what_can_be(self, execution: Execution) -> None:
        """The body, of what isn't run: for handlers, and for what follows from its end."""
        request, message = execution.request, execution.delivery.message
        try:
            if isinstance(message, Message):
                take_call(request, *self._reader.call(message))
        except (DecodeError, InvalidTaskError, SecurityError):
            request.args, request.kwargs = [], {}

    def run(self, execution: Execution, lane: Lane) -> Ended:
        """Execute what `prepare` has let through. Never raises."""
        if execution.end is not None:
            return _not_run(execution)
        lane.reset()
        task, request = self._begin(execution)
        started = time.perf_counter()
        # What `running` does, without its calls.
        token = current_request.set(Running(task, request, current_request.get()))
        try:
            given = self._given(task, request)
            try:
                lane.enter()
                if task.before_start is not no_handler:
                    task.before_start(request.id, request.args or [], request.kwargs or {})
                value = task.entry(*given[0], **given[1])
                if isinstance(value, CoroutineType):
                    value = lane.run_coroutine(value)
            finally:
                lane.leave()
            if task.name in self._returned:
                value = self._returned[task.name].lower(value, self._keeps)
        except BaseException as error:
            if lane.in_task:
                lane.leave()  # what ended it came at its very end, and so in place of that call
            return _ended_by(error, task, request, time.perf_counter() - started, lane)
        finally:
            current_request.reset(token)
        return Ended(End.RETURNED, value=value, runtime=time.perf_counter() - started)

    def is_tracked(self, execution: Execution) -> bool:
        """Whether it is to be stored that this one has started."""
        options = execution.task_options
        return execution.end is None and options is not None and options.track_started

    def store_started(self, execution: Execution) -> None:
        """Waits for a store that is away."""
        self._store_started(execution)

    async def run_on_loop(self, execution: Execution, lane: Lane) -> Ended:
        """The same for an ``async def`` task, in the running loop; `store_started` comes first."""
        if execution.end is not None:
            return _not_run(execution)
        lane.reset()
        task, request = self._begin(execution, is_stored=True)
        started = time.perf_counter()
        with running(task, request):
            try:
                given = self._given(task, request)
                with lane.on_loop(execution.soft_time_limit, execution.time_limit):
                    if task.before_start is not no_handler:
                        task.before_start(request.id, request.args or [], request.kwargs or {})
                    value = await task.entry(*given[0], **given[1])
                if task.name in self._returned:
                    value = self._returned[task.name].lower(value, self._keeps)
            except BaseException as error:
                return _ended_by(error, task, request, time.perf_counter() - started, lane)
        runtime = time.perf_counter() - started
        if lane.hard_limit is not None:
            return _out_of_time(lane.hard_limit, runtime)
        return Ended(End.RETURNED, value=value, runtime=runtime)

    def _begin(
        self, execution: Execution, *, is_stored: bool = False
    ) -> tuple[Task[Any, Any], Context]:
        """What is to be run, now that it starts."""
        task, request, options = execution.task, execution.request, execution.task_options
        assert task is not None
        assert options is not None
        if signals.task_received.receivers:
            _tell(signals.task_received, self._taker, request=request)
        if options.track_started and not is_stored:
            self._store_started(execution)
        request.started_at = self._now()
        return task, request

    def _given(
        self, task: Task[Any, Any], request: Context
    ) -> tuple[list[Any] | tuple[Any, ...], Mapping[str, Any]]:
        """The arguments that the function gets. Handlers and signals see what the message holds,
        the function what it is annotated with."""
        args, kwargs = request.args or [], request.kwargs or {}
        if signals.task_prerun.receivers:
            signals.task_prerun.send(task, task_id=request.id, task=task, args=args, kwargs=kwargs)
        typed = self._typed.get(task.name)
        return (args, kwargs) if typed is None else typed.rebuild(args, kwargs)


def options_of(task: Task[Any, Any]) -> Options:
    """What of a task's options the outcome table needs."""
    return _options(task.options)


def _options(options: TaskOptions) -> Options:
    return Options(**{name: getattr(options, name) for name in Options.__slots__})


def pack_options(app: Umbel) -> dict[str, dict[str, Any]]:
    """The options of all tasks, for the `info` of a run: whoever buries reads them."""
    return {name: msgspec.to_builtins(options_of(task)) for name, task in app.tasks.items()}


def options_in(info: bytes, task: str, own: dict[str, Options]) -> Options:
    """The options that the dead run had for a task; ours where it didn't know the task."""
    try:
        known = msgspec.json.decode(info).get("options", {})
        return msgspec.convert(known[task], Options)
    except (msgspec.MsgspecError, KeyError, AttributeError, TypeError):
        return own.get(task, Options())


def _not_run(execution: Execution) -> Ended:
    error = execution.error
    einfo = None if error is None else _told(error)
    assert execution.end is not None
    return Ended(execution.end, error=error, einfo=einfo)


def _told(error: BaseException) -> ExceptionInfo:
    """Of an error that was raised nowhere."""
    return ExceptionInfo(error, f"{type(error).__name__}: {error}")


def _out_of_time(limit: float, runtime: float) -> Ended:
    error = TimeLimitExceeded(limit)
    return Ended(End.HARD_LIMIT, error=error, einfo=_told(error), runtime=runtime)


def _ended_by(
    error: BaseException, task: Task[Any, Any], request: Context, runtime: float, lane: Lane
) -> Ended:
    if lane.hard_limit is not None:
        return _out_of_time(lane.hard_limit, runtime)
    if isinstance(error, SoftTimeLimitExceeded) and not error.args:
        error.args = (lane.soft_limit,)  # a thread can only be given the class
    match error:
        case Unfit():
            # Another try would not fit either, whatever the task's options say of TypeErrors.
            final = TypeError(str(error)).with_traceback(error.__traceback__)
            einfo = ExceptionInfo.of(final)
            return Ended(End.RAISED, error=final, einfo=einfo, runtime=runtime)
        case Stopped():
            revoked = TaskRevokedError("terminated")
            return Ended(
                End.TERMINATED,
                error=revoked,
                einfo=_told(revoked),
                runtime=runtime,
                signum=lane.terminated,
            )
        case Ignore():
            return Ended(End.IGNORED, error=error, runtime=runtime)
        case Reject():
            end = End.REQUEUED if error.requeue else End.REJECTED
            return Ended(end, error=error, einfo=ExceptionInfo.of(error), runtime=runtime)
        case Retry():
            return _retried(error, runtime)
        case WorkerTerminate():
            _leave(task, request)
            lost = WorkerLostError("The worker was stopped cold while the task ran.")
            return Ended(End.COLD_STOP, error=lost, einfo=ExceptionInfo.of(lost), runtime=runtime)
        case SystemExit() | KeyboardInterrupt():
            _leave(task, request)
            code = getattr(error, "code", 1) or 0
            lost = WorkerLostError(f"Worker exited prematurely: exitcode {code}.")
            return Ended(
                End.PROCESS_LOST, error=lost, einfo=ExceptionInfo.of(lost), runtime=runtime
            )
        case _:
            return _failed(error, task, runtime)


def _tell(signal: signals.Signal, sender: object, **named: object) -> None:
    try:
        signal.send(sender, **named)
    except BaseException:
        logger.exception("A receiver of %s left.", signal.name)


def _leave(task: Task[Any, Any], request: Context) -> None:
    """Tell that the task was left and has no state of its own: its process or worker ends."""
    _tell(
        signals.task_postrun,
        task,
        task_id=request.id,
        task=task,
        args=request.args or [],
        kwargs=request.kwargs or {},
        retval=None,
        state=None,
    )


def _failed(error: BaseException, task: Task[Any, Any], runtime: float) -> Ended:
    """An exception: a retry where the task's options ask for one, else a failure."""
    try:
        retry = task.next_try(error)
    except BaseException as final:
        error = final
    else:
        if retry is not None:
            return _retried(retry, runtime)
    end = End.SOFT_LIMIT if isinstance(error, SoftTimeLimitExceeded) else End.RAISED
    return Ended(end, error=error, einfo=ExceptionInfo.of(error), runtime=runtime)


def _retried(retry: Retry, runtime: float) -> Ended:
    cause = retry.exc if isinstance(retry.exc, BaseException) else retry
    return Ended(
        End.RETRY, error=cause, einfo=ExceptionInfo.of(cause), reason=retry, runtime=runtime
    )


def _loss_error(lost: Lost) -> BaseException:
    match lost.loss:
        case Loss.HARD_LIMIT:
            return TimeLimitExceeded(float(lost.detail))
        case Loss.TERMINATED:
            return TaskRevokedError("terminated")
        case _:
            return WorkerLostError(lost.detail)
