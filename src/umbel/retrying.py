"""Whether and when a task is tried again, and the retry that its function is ended by."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from typing import TYPE_CHECKING, Any, NoReturn

from umbel.arguments import named_arguments, positional_arguments, positional_names
from umbel.exceptions import MaxRetriesExceededError, Retry
from umbel.handles import check_handles
from umbel.instants import due
from umbel.keywords import RETRY_NAMES
from umbel.message import Posting
from umbel.options import check_call_names
from umbel.protocol import first_run_at
from umbel.request import Context
from umbel.retry import Backoff, retries_left
from umbel.retrymessage import next_posting
from umbel.routing import Call
from umbel.saferepr import safe_repr
from umbel.serialization import JSON
from umbel.typed import Args

if TYPE_CHECKING:
    from umbel.task import Task


def make_retry(
    task: Task[..., Any],
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
    exc: BaseException | None,
    throw: bool,
    max_retries: int | None,
    call: Mapping[str, Any],
) -> Retry:
    """What `Task.retry` does; `call` are its options, with `countdown` and `eta`."""
    request = task.request
    current = sys.exc_info()[1]
    if request.called_directly:
        _raise(exc or current or Retry("The task was called directly, not by a worker"), current)
    check_call_names(call, f"retry of task {task.name!r}", RETRY_NAMES)
    check_handles(task.app, call)
    countdown, eta = call.get("countdown"), call.get("eta")
    cause = exc or current or Retry()
    backoff = None
    if countdown is None and eta is None:
        backoff = task.options.auto.named_backoff(cause)
    allowed = task.max_retries if max_retries is None else max_retries
    timed = _timed(task, request, cause, call, allowed, backoff)
    if timed is None:
        final = task.options.auto.is_final(cause)
        _raise(exc or (cause if final else _exhausted(task, request, allowed)), current)
    retry = Retry(exc=exc, when=_when(timed["countdown"], eta))
    if request.is_eager:
        retry.is_eager = True
        if args is not None or kwargs is not None:
            retry.sig = _next_arguments(task, request, args, kwargs)
        if throw:
            raise retry
        return retry
    posting = _next_posting(task, request, args, kwargs, timed)
    retry.posting = task.app.publisher.signals.before_next(posting)
    request.follow_ups.append(retry.posting)
    if throw:
        raise retry
    return retry


def next_try(task: Task[..., Any], exc: BaseException) -> Retry | None:
    """The retry that the options of `task` ask for after `exc`, or None; see `Task.next_try`."""
    auto = task.options.auto
    if not auto.wants(exc):
        return None
    allowed = auto.max_retries(task.max_retries)
    timed = _timed(task, task.request, exc, auto.retry_kwargs, allowed, auto.backoff(exc))
    if timed is None:
        return None
    retry: Callable[..., Retry] = task.retry
    return retry(**{**timed, "exc": exc, "throw": False})


def _timed(
    task: Task[..., Any],
    request: Context,
    cause: BaseException,
    call: Mapping[str, Any],
    max_retries: int | None,
    backoff: Backoff | None,
) -> dict[str, Any] | None:
    """`call` with the time of the next try; None where there must be no next try.

    A `backoff` replaces the time in `call`; else the task's `default_retry_delay` fills it in.
    """
    auto = task.options.auto
    if auto.is_final(cause) or not retries_left(request.retries, max_retries):
        return None
    now = task.app.clock.wall()
    timed = dict(call)
    if backoff is not None:
        import random  # takes 5 ms, which not every caller needs to pay

        timed["countdown"] = auto.delay(backoff, cause, request.retries, random, now)
    elif timed.get("countdown") is None and timed.get("eta") is None:
        timed["countdown"] = task.default_retry_delay
    at = due(timed.get("countdown"), timed.get("eta"), now, task.app.call_zone)
    when = now if at is None else at.at
    return timed if auto.in_time(when, first_run_at(request, now)) else None


def _exhausted(
    task: Task[..., Any], request: Context, max_retries: int | None
) -> MaxRetriesExceededError:
    used_up = f"{request.retries} retries"
    if retries_left(request.retries, max_retries):
        used_up = f"time (retry_max_elapsed={task.options.auto.retry_max_elapsed})"
    return MaxRetriesExceededError(
        f"{task.name}[{request.id}] has used up its {used_up}; "
        f"args: {safe_repr(request.args)} kwargs: {safe_repr(request.kwargs)}",
        task_args=request.args or (),
        task_kwargs=request.kwargs or {},
    )


def _next_posting(
    task: Task[..., Any],
    request: Context,
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
    call: Mapping[str, Any],
) -> Posting:
    new_call: tuple[Args, Mapping[str, Any]] | None = None
    if args is not None or kwargs is not None:
        new_call = _next_arguments(task, request, args, kwargs)
    app = task.app
    form = None
    if new_call is not None:
        plan = task.plan(call, *new_call)
        form = app.publisher.call_format(plan.serializer, plan.compression)
        if plan.typed is not None:
            keeps = (form.serializer if form else JSON).keeps
            new_call = plan.typed.lower(*new_call, keeps)
    now = app.clock.wall()
    limited = task.options.auto.retry_max_elapsed is not None
    return next_posting(
        request,
        call,
        new_call,
        app.address(task.name, call, Call(*(new_call or _present_call(request)), task)),
        now=now,
        zone=app.call_zone,
        max_size=app.conf.task_max_message_size,
        repr_levels=app.conf.task_repr_maxlevels,
        eta_in_broker=app.conf.task_eta_in_broker,
        form=form,
        first_run_at=first_run_at(request, now) if limited else None,
    )


def _present_call(request: Context) -> tuple[Args, Mapping[str, Any]]:
    return tuple(request.args or ()), request.kwargs or {}


def _next_arguments(
    task: Task[..., Any],
    request: Context,
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The given arguments, with those of the present run that they don't replace.

    For ``f(a, b)`` that runs as ``f(1, b=2)``, ``retry(args=(3, 4))`` is ``f(3, 4)`` and
    for one that runs as ``f(1, 2)``, ``retry(kwargs={"a": 3})`` is ``f(a=3, b=2)``.
    """
    old_args, old_kwargs = tuple(request.args or ()), dict(request.kwargs or {})
    names = positional_names(task.run)
    if kwargs is None:
        given = positional_arguments(args, task.name)
        taken = names[: len(given)]
        kept = {name: value for name, value in old_kwargs.items() if name not in taken}
        new_args, new_kwargs = tuple(given), kept
    elif args is None:
        named = dict(named_arguments(kwargs, task.name))
        first = next((i for i, name in enumerate(names) if name in named), len(old_args))
        rest = zip(names[first:], old_args[first:], strict=False)
        new_args, new_kwargs = old_args[:first], {**dict(rest), **named}
    else:
        new_args, new_kwargs = tuple(args), dict(kwargs)
    if task.options.typing:
        task.check_call(*new_args, **new_kwargs)
    return new_args, new_kwargs


def _when(countdown: float | timedelta | None, eta: date | str | None) -> datetime | float | None:
    """What `Retry.when` says."""
    if countdown is not None:
        return countdown.total_seconds() if isinstance(countdown, timedelta) else countdown
    if isinstance(eta, str):
        return datetime.fromisoformat(eta)
    if eta is None or isinstance(eta, datetime):
        return eta
    return datetime.combine(eta, time())


def _raise(error: BaseException, cause: BaseException | None) -> NoReturn:
    if cause is None or cause is error:
        raise error
    raise error from cause
