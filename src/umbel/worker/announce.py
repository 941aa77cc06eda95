"""Handlers, signals and log lines of an outcome, in the order that the outcome table gives.

All of them are user code or serve the user; whatever they raise is logged and changes nothing.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable
from typing import Any, Final

from umbel import signals
from umbel.endsignals import handler_arguments, signal_arguments
from umbel.message import Lost
from umbel.outcome import End
from umbel.request import Running, current_request
from umbel.saferepr import safe_repr
from umbel.signals import Signal
from umbel.task import Task, no_handler
from umbel.worker.execution import printable
from umbel.worker.followups import Errback
from umbel.worker.settler import Decided

logger = logging.getLogger("umbel.worker")

MOST_TRACEBACK: Final = 20_000
"""Characters of one traceback in the log; the stored one is whole."""


def announce(decided: Decided) -> None:
    """Write the log line, then call the handlers and signals of this outcome.

    The task's `request` is the one that has ended, as long as they run.
    """
    execution, end = decided.execution, decided.ended.end
    task, outer = execution.task, current_request.get()
    entry = outer if task is None else Running(task, execution.request, outer)
    token = current_request.set(entry)
    try:
        # Most tasks succeed, and most workers don't say so.
        if end is not End.RETURNED or logger.isEnabledFor(logging.INFO):
            try:
                _log(decided)
            except BaseException:  # a value's or an exception's own text is the user's code too
                logger.exception("The end of task %s can't be told.", execution.name)
        _announce(decided, task)
    finally:
        current_request.reset(token)


def _announce(decided: Decided, task: Task[Any, Any] | None) -> None:
    if decided.settlement.follow_ups:
        # They have been sent by now: what has any is settled before it is announced.
        decided.execution.taker.app.publisher.signals.after(decided.settlement.follow_ups)
    if decided.ended.internal or decided.ended.end is End.UNROUTABLE:
        _send(signals.task_internal_error, decided)
    for errback in decided.errbacks:
        _call_errback(errback, decided)
    for name in decided.verdict.announce:
        if name.startswith("task_"):
            sent: Signal = getattr(signals, name)
            if sent.receivers:
                _send(sent, decided)
        elif task is not None and (handler := getattr(task, name)) is not no_handler:
            _call_handler(handler, name, decided)


def _send(sent: Signal, decided: Decided) -> None:
    sender, arguments = _sent_by(sent.name, decided)
    try:
        sent.send(sender, **arguments)
    except BaseException:
        logger.exception("A receiver of %s for task %s left.", sent.name, decided.execution.name)


def _call_handler(handler: Callable[..., object], name: str, decided: Decided) -> None:
    try:
        handler(*handler_arguments(name, decided.execution.request, decided.ended, decided.verdict))
    except BaseException:
        logger.exception("%s of task %s raised.", name, decided.execution.name)


def _call_errback(errback: Errback, decided: Decided) -> None:
    """An error callback that takes (request, exc, traceback)."""
    execution, ended = decided.execution, decided.ended
    traceback = ended.einfo.traceback if ended.einfo else None
    call = (execution.request, ended.error, traceback, *errback.args)
    try:
        errback.task(*call, **errback.kwargs)
    except BaseException:
        logger.exception("The errback %s of %s raised.", errback.task.name, execution.name)


def _sent_by(name: str, decided: Decided) -> tuple[object, dict[str, Any]]:
    """The sender of a signal and its named arguments."""
    execution, ended = decided.execution, decided.ended
    request, task = execution.request, execution.task
    sender: object = task if task is not None else request.task
    match name:
        case "task_revoked":
            return sender, {
                "request": request,
                "terminated": ended.end is End.TERMINATED,
                "signum": ended.signum or _signum(execution.delivery.lost),
                "expired": ended.end is End.EXPIRED,
            }
        case "task_unknown":
            return execution.taker, {
                "message": execution.delivery.message,
                "exc": ended.error,
                "name": request.task,
                "id": request.id,
            }
        case "task_rejected":
            return execution.taker, {"message": execution.delivery.message, "exc": ended.error}
        case _:
            return sender, signal_arguments(name, task, request, ended, decided.verdict)


def _signum(lost: Lost | None) -> int | None:
    if lost is None:
        return None
    return getattr(signal, lost.detail, None)


def _log(decided: Decided) -> None:
    execution, ended = decided.execution, decided.ended
    name, error = execution.name, ended.error
    match ended.end:
        case End.RETURNED:
            options = execution.task_options
            value = safe_repr(ended.value, options.resultrepr_maxsize if options else 1024)
            logger.info("Task %s succeeded in %.6fs: %s", name, ended.runtime, value)
        case End.RETRY:
            logger.info("Task %s retry: %s", name, ended.reason)
        case End.RAISED | End.SOFT_LIMIT:
            throws = execution.task.options.throws if execution.task else ()
            if isinstance(error, throws):
                logger.info("Task %s raised expected: %r", name, error)
            else:
                text = "\n".join(map(printable, str(ended.einfo).split("\n")))
                if len(text) > MOST_TRACEBACK:
                    text = f"{text[:MOST_TRACEBACK]} … ({len(text)} characters)"
                logger.error(
                    "Task %s raised unexpected: %s\n%s",
                    name,
                    safe_repr(error),
                    text,
                    extra={"exception": text},
                )
        case End.IGNORED:
            logger.info("Task %s ignored", name)
        case End.REJECTED | End.REQUEUED:
            logger.warning("Task %s rejected: %r", name, error)
        case End.EXPIRED | End.REVOKED:
            logger.info("Discarding %s task: %s", ended.end.name.lower(), name)
        case End.TERMINATED:
            logger.warning("Task %s was terminated.", name)
        case End.NOT_DUE:
            logger.info("Task %s isn't due before %s.", name, execution.request.eta)
        case End.UNKNOWN_TASK:
            _log_unknown(decided)
        case End.UNREADABLE:
            queue = execution.delivery.queue
            logger.error("A message in queue %r goes to the dead letters: %s", queue, error)
        case End.STORED:
            state = execution.stored_state
            logger.info("Task %s had ended in %s already; it isn't run again.", name, state)
        case _:
            logger.error("Task %s: %s: %s", name, type(error).__name__, error)


def _log_unknown(decided: Decided) -> None:
    name, task = decided.execution.name, decided.execution.request.task
    if decided.verdict.dead:
        logger.error(
            "Task %s goes to the dead letters: no worker that knows %r took it in time.", name, task
        )
    elif decided.execution.delivery.unknown_since_at is None:
        logger.error(
            "Task %s isn't known here (%r). It waits for a worker that knows it. "
            "Is its module imported? See --include.",
            name,
            task,
        )
