"""Run a task here and now, as a worker would: `Task.apply`, and `task_always_eager`.

Handlers, signals and their order are those of the outcome table that workers follow. A retry runs
at once, without its wait; nothing is sent, and a time limit doesn't hold.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Callable, Generator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from umbel import signals, states
from umbel.asyncresult import AsyncResult
from umbel.canvas import from_dict
from umbel.eagerresult import EagerResult
from umbel.einfo import ExceptionInfo
from umbel.endsignals import handler_arguments, signal_arguments
from umbel.exceptions import Ignore, Reject, Replaced, Retry
from umbel.message import Result
from umbel.outcome import End, Options, Verdict, decide
from umbel.publish import machine_name, stamps_in
from umbel.request import Context, executing, running
from umbel.serialization import JSON, dumps_call, loads_call
from umbel.settings import result_life
from umbel.stored import encode_meta
from umbel.task import Task, no_handler
from umbel.typed import Args, Unfit, signature_of, typed_return

if TYPE_CHECKING:
    from umbel.app import Umbel
    from umbel.options import Plan

logger = logging.getLogger("umbel.eager")

_Steps = Generator[Any, Any, "EagerResult"]


class _Ended:
    """How one run ended."""

    def __init__(self, end: End, value: Any, error: BaseException | None, reason: object) -> None:
        self.end = end
        self.value = value
        self.error = error
        self.reason = reason
        self.einfo = None if error is None else ExceptionInfo.of(error)
        self.runtime = 0.0

    @property
    def retval(self) -> Any:
        return self.value if self.error is None else self.error


def apply(
    task: Task[..., Any],
    args: Args,
    kwargs: Mapping[str, Any],
    task_id: str,
    options: Mapping[str, Any],
    *,
    sent: bool = False,
) -> EagerResult:
    """Run `task` and its retries here. `sent`: the arguments are as a message holds them."""
    steps = _steps(task, args, kwargs, task_id, options, sent, False)
    coroutine, result = _go_on(steps)
    while result is None:
        value, raised = None, None
        try:
            value = _awaited(coroutine)
        except BaseException as error:
            raised = error
        coroutine, result = _go_on(steps, value, raised)
    return result


async def aapply(
    task: Task[..., Any],
    args: Args,
    kwargs: Mapping[str, Any],
    task_id: str,
    options: Mapping[str, Any],
    *,
    sent: bool = False,
) -> EagerResult:
    """`apply`, with coroutines on the caller's loop."""
    steps = _steps(task, args, kwargs, task_id, options, sent, True)
    coroutine, result = _go_on(steps)
    while result is None:
        value, raised = None, None
        try:
            value = await coroutine
        except BaseException as error:
            raised = error
        coroutine, result = _go_on(steps, value, raised)
    return result


def apply_unsent(
    task: Task[..., Any],
    plan: Plan,
    args: Args,
    kwargs: Mapping[str, Any],
    task_id: str,
    options: Mapping[str, Any],
) -> EagerResult:
    """Run a call instead of sending it, with what a worker would have got."""
    args, kwargs = _as_sent(task, plan, args, kwargs)
    return apply(task, args, kwargs, task_id, options, sent=True)


async def aapply_unsent(
    task: Task[..., Any],
    plan: Plan,
    args: Args,
    kwargs: Mapping[str, Any],
    task_id: str,
    options: Mapping[str, Any],
) -> EagerResult:
    """`apply_unsent`, on the caller's loop."""
    args, kwargs = _as_sent(task, plan, args, kwargs)
    return await aapply(task, args, kwargs, task_id, options, sent=True)


def _as_sent(
    task: Task[..., Any], plan: Plan, args: Args, kwargs: Mapping[str, Any]
) -> tuple[Args, Mapping[str, Any]]:
    """The arguments as they would arrive: lowered, encoded and decoded.

    Raises `TypeError` where they don't fit the task, and `EncodeError`.
    """
    if plan.typing:
        task.check_call(*args, **kwargs)
    form = task.app.publisher.call_format(plan.serializer, None)
    serializer = JSON if form is None else form.serializer
    if plan.typed is not None:
        args, kwargs = plan.typed.lower(args, kwargs, serializer.keeps)
    if form is None:
        args, kwargs, _ = loads_call(dumps_call(args, kwargs, {}))
    else:
        args, kwargs, _ = serializer.loads(serializer.dumps((args, dict(kwargs), {})))
    return args, kwargs


def _go_on(
    steps: _Steps, value: object = None, error: BaseException | None = None
) -> tuple[Any, EagerResult | None]:
    """(the next coroutine to be awaited, None), or (None, the result)."""
    try:
        return (steps.send(value) if error is None else steps.throw(error)), None
    except StopIteration as end:
        return None, end.value


def _steps(
    task: Task[..., Any],
    args: Args,
    kwargs: Mapping[str, Any],
    task_id: str,
    options: Mapping[str, Any],
    sent: bool,
    on_loop: bool,
) -> _Steps:
    """All of a run, but for awaiting the coroutines that it yields."""
    app = task.app
    throw = options.get("throw")
    if throw is None:
        throw = app.conf.task_eager_propagates
    retries = options.get("retries") or 0
    while True:
        request = _request(task, args, kwargs, task_id, options, retries)
        ended = yield from _run(task, request, sent)
        verdict = decide(
            ended.end, Options(**{n: getattr(task.options, n) for n in Options.__slots__})
        )
        state = verdict.postrun_state
        assert state is not None  # every end of a run has one
        _store(task, request, ended, state)
        with running(task, request):
            if state == states.FAILURE:
                _call_errbacks(task, request, ended, options)
            _announce(task, request, ended, verdict)
        if not isinstance(ended.reason, Retry):
            break
        args, kwargs = ended.reason.sig or (args, kwargs)
        retries += 1
    if throw and state == states.FAILURE and ended.error is not None:
        raise ended.error
    traceback = ended.einfo.traceback if ended.einfo else None
    result = EagerResult(task_id, ended.retval, state, traceback, task.name, app)
    if state == states.SUCCESS:
        result.following = yield from _follow(app, request, ended.value, options, on_loop)
    return result


def _follow(
    app: Umbel, request: Context, value: object, options: Mapping[str, Any], on_loop: bool
) -> Generator[Any, Any, AsyncResult[Any] | None]:
    """Send the callbacks and the next step of the chain: run here too with `task_always_eager`."""
    family: dict[str, Any] = {"root_id": request.root_id, "parent_id": request.id}
    calls = [(from_dict(form, app), family) for form in options.get("link") or ()]
    if options.get("chain"):
        *behind, following = options["chain"]
        calls.append((from_dict(following, app), {**family, "chain": behind or None}))
    result: AsyncResult[Any] | None = None
    for step, given in calls:
        if on_loop:
            result = yield step.aapply_async((value,), **given)
        else:
            result = step.apply_async((value,), **given)
    return result if options.get("chain") else None


def _call_errbacks(
    task: Task[..., Any], request: Context, ended: _Ended, options: Mapping[str, Any]
) -> None:
    """As a worker does: with (request, exc, traceback) if it takes that many, else with the id."""
    for form in options.get("link_error") or ():
        errback = from_dict(form, task.app)
        known = task.app.tasks.get(errback.task)
        call = (request, ended.error, ended.einfo and ended.einfo.traceback, *errback.args)
        try:
            if known is not None and not known.bound and _takes(known.run, len(call)):
                known(*call, **errback.kwargs)
            else:
                errback.apply_async((request.id,), parent_id=request.id)
        except Exception:
            logger.exception("The errback %s of %s raised.", errback.task, task.name)


def _takes(function: Callable[..., object], count: int) -> bool:
    try:
        signature_of(function).bind(*range(count))
    except (TypeError, ValueError):
        return False
    return True


def _request(
    task: Task[..., Any],
    args: Args,
    kwargs: Mapping[str, Any],
    task_id: str,
    options: Mapping[str, Any],
    retries: int,
) -> Context:
    around = executing()
    request = Context()
    request.id = request.correlation_id = task_id
    request.task = task.name
    request.args, request.kwargs = args, dict(kwargs)
    request.called_directly = False
    request.is_eager = True
    request.retries = retries
    request.hostname = machine_name()
    request.root_id = options.get("root_id") or (around and around.request.root_id) or task_id
    request.parent_id = options.get("parent_id") or (around and around.request.id) or None
    request.group = request.taskset = options.get("group_id")
    request.group_index = options.get("group_index")
    request.shadow = options.get("shadow")
    request.loglevel, request.logfile = options.get("loglevel"), options.get("logfile")
    request.replaced_task_nesting = options.get("replaced_task_nesting") or 0
    if options.get("stamped_headers"):
        request.stamped_headers, request.stamps = stamps_in(options)
    request.headers = dict(options["headers"]) if options.get("headers") else None
    given = options.get("ignore_result")
    request.ignore_result = task.options.ignore_result if given is None else given
    request.delivery_info = {
        "is_eager": True,
        "exchange": options.get("exchange"),
        "routing_key": options.get("routing_key"),
        "priority": options.get("priority"),
    }
    return request


def _run(task: Task[..., Any], request: Context, sent: bool) -> Generator[Any, Any, _Ended]:
    started = time.perf_counter()
    with running(task, request):
        try:
            value = _call(task, request, sent)
            if inspect.iscoroutine(value):
                value = yield value
            if sent and task.options.typing and (returned := typed_return(task.run)) is not None:
                value = returned.lower(value, task.app.result_format.serializer.keeps)
            ended = _Ended(End.RETURNED, value, None, None)
        except Unfit as error:  # another try would not fit either
            final = TypeError(str(error)).with_traceback(error.__traceback__)
            ended = _Ended(End.RAISED, None, final, None)
        except Exception as error:
            ended = _ended_by(task, error)
    ended.runtime = time.perf_counter() - started
    return ended


def _call(task: Task[..., Any], request: Context, sent: bool) -> Any:
    args, kwargs = request.args or (), request.kwargs or {}
    signals.task_prerun.send(task, task_id=request.id, task=task, args=args, kwargs=kwargs)
    given: Any = (args, kwargs)
    if sent and task.options.typing and task.typed is not None:
        given = task.typed.rebuild(args, kwargs)
    task.before_start(request.id, args, kwargs)
    return task.entry(*given[0], **given[1])


def _awaited(coroutine: Any) -> Any:
    """What it returns. On a loop of its own, in a thread where this one has a loop already."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    import contextvars
    from concurrent.futures import ThreadPoolExecutor

    context = contextvars.copy_context()
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(context.run, asyncio.run, coroutine).result()


def _ended_by(task: Task[..., Any], error: Exception) -> _Ended:
    match error:
        case Replaced():
            return _as_replaced(error.result)
        case Ignore():
            return _Ended(End.IGNORED, None, error, None)
        case Reject():
            return _Ended(End.REQUEUED if error.requeue else End.REJECTED, None, error, None)
        case Retry():
            return _retried(error)
    try:
        retry = task.next_try(error)
    except Exception as final:
        return _Ended(End.RAISED, None, final, None)
    return _Ended(End.RAISED, None, error, None) if retry is None else _retried(retry)


def _as_replaced(result: EagerResult) -> _Ended:
    """The end of what has run in a task's place, as the task's own."""
    if isinstance(result.result, BaseException) and result.state in states.PROPAGATE_STATES:
        return _Ended(End.RAISED, None, result.result, None)
    return _Ended(End.RETURNED, result.result, None, None)


def _retried(retry: Retry) -> _Ended:
    cause = retry.exc if isinstance(retry.exc, BaseException) else retry
    return _Ended(End.RETRY, None, cause, retry)


def _store(task: Task[..., Any], request: Context, ended: _Ended, state: str) -> None:
    """Keep the state where `task_store_eager_result` asks for it and the state is one to keep."""
    app = task.app
    store = app.store if task.options.store_eager_result else None
    ignored = request.ignore_result and not (
        task.options.store_errors_even_if_ignored and ended.error is not None
    )
    kept = state in states.READY_STATES or state == states.RETRY
    if store is None or ignored or not kept or request.id is None:
        return
    now = app.clock.wall()
    meta = encode_meta(
        request.id,
        state,
        ended.retval,
        ended.einfo.traceback if ended.einfo else None,
        [],
        datetime.fromtimestamp(now, app.zone).isoformat(),
        form=app.result_format,
    )
    life = result_life(app.conf, state)
    store.put([Result(request.id, state, meta, now + life if life else None)])


def _announce(task: Task[..., Any], request: Context, ended: _Ended, verdict: Verdict) -> None:
    for name in verdict.announce:
        if name.startswith("task_"):
            sent: signals.Signal = getattr(signals, name)
            sent.send(task, **signal_arguments(name, task, request, ended, verdict))
            continue
        handler = getattr(task, name)
        if handler is no_handler:
            continue
        try:
            handler(*handler_arguments(name, request, ended, verdict))
        except Exception:
            logger.exception("%s of task %s[%s] raised.", name, task.name, request.id)
