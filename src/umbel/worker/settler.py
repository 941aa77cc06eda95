"""From the end of an execution to its settlement: asks the outcome table, builds the values.

Applying them is the broker's turn; see `consumer`.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from umbel import states
from umbel.app import Umbel
from umbel.canvas import Signature
from umbel.codec import pack
from umbel.exceptions import (
    BackendStoreError,
    EncodeError,
    Reject,
    Retry,
    SoftTimeLimitExceeded,
    TimeLimitExceeded,
)
from umbel.instants import due
from umbel.message import Dead, Delivery, How, Message, Posting, Result, Settlement
from umbel.outcome import End, Settle, Verdict, decide
from umbel.protocol import next_headers, priority_of, rebuild_message
from umbel.request import Context
from umbel.saferepr import encodable, safe_repr
from umbel.settings import result_life
from umbel.stored import decode_meta, encode_meta
from umbel.worker.execution import Ended, ExceptionInfo, Execution
from umbel.worker.followups import Errback, FollowUps

UNKNOWN_PAUSE: Final = (1.0, 30.0)
"""Seconds until a message with an unknown task name is offered again: a tenth of the time that
it has waited, within these."""
SHORTEST_DELAY: Final = 0.01

_HOW: Final = {
    Settle.ACK: How.ACK,
    Settle.REJECT: How.REJECT,
    Settle.REQUEUE: How.REQUEUE,
    Settle.RELEASE: How.RELEASE,
    Settle.RELEASE_LATER: How.RELEASE,
}


class Decided(msgspec.Struct, frozen=True, eq=False):
    """One execution's outcome: what is to be announced and what is to be settled."""

    execution: Execution
    ended: Ended
    verdict: Verdict
    settlement: Settlement
    errbacks: tuple[Errback, ...] = ()
    """Those that are called in this process."""


class Settler:
    """Turns ends into settlements for one worker process."""

    def __init__(self, app: Umbel, *, hostname: str) -> None:
        conf = app.conf
        self._follow_ups = FollowUps(app)
        self._before_next = app.publisher.signals.before_next
        self._now = app.clock.wall
        self._zone = app.zone
        self._call_zone = app.call_zone
        self._hostname = hostname
        self._stores = app.store is not None
        self._expires = result_life(conf, states.SUCCESS)
        self._failure_expires = result_life(conf, states.FAILURE)
        self._extended = conf.result_extended
        self._result_format = app.result_format
        self._unknown_wait = conf.task_unknown_wait
        self._eta_in_broker = conf.task_eta_in_broker

    def decide(self, execution: Execution, ended: Ended) -> Decided:
        """The outcome. What can't be stored or sent (a return value, a retry's options) makes it
        a failure, whatever the task or a stranger has put together."""
        try:
            decided = self._decide(execution, ended)
            for posting in decided.settlement.follow_ups:
                pack(posting.message)
        except BaseException as error:
            execution.request.follow_ups.clear()
            einfo = ExceptionInfo.of(error)
            # What can't be encoded was made by the task, or is what it was told to send.
            internal = not isinstance(error, EncodeError)
            failed = Ended(
                End.RAISED, error=error, einfo=einfo, runtime=ended.runtime, internal=internal
            )
            return self._decide(execution, failed)
        return decided

    def _decide(self, execution: Execution, ended: Ended) -> Decided:
        delivery = execution.delivery
        verdict = decide(
            ended.end,
            execution.options,
            retries=execution.request.retries,
            redeliveries=delivery.redeliveries,
            waited_long=ended.end is End.UNKNOWN_TASK and self._waited_long(delivery),
            stored_state=execution.stored_state,
        )
        request = execution.request
        linked = request.callbacks or request.errbacks or request.chain
        following = self._following(execution, ended, verdict) if linked else []
        goes_on = verdict.again or request.follow_ups
        sent = self._sent(execution, ended, verdict) if goes_on else ()
        result = self._result(execution, ended, verdict, following)
        settlement = Settlement(
            delivery.lease,
            _HOW[verdict.settle],
            follow_ups=(*sent, *following),
            dead=_dead(ended, verdict) if verdict.dead else None,
            result=result,
            note=_sentence(ended) if verdict.settle is Settle.REQUEUE else "",
            delay=self._delay(execution) if verdict.settle is Settle.RELEASE_LATER else 0.0,
            unknown=verdict.settle is Settle.RELEASE_LATER and ended.end is End.UNKNOWN_TASK,
            redelivered=verdict.settle is Settle.RELEASE,
            others=self._behind(execution, ended, verdict) if request.chain else (),
        )
        failed = verdict.state == states.FAILURE and ended.end is not End.REJECTED
        called = failed and request.errbacks
        errbacks = self._follow_ups.called_here(request) if called else ()
        return Decided(execution, ended, verdict, settlement, errbacks)

    def _following(self, execution: Execution, ended: Ended, verdict: Verdict) -> list[Posting]:
        """The callbacks and the next step of what succeeded, the errbacks of what failed."""
        request = execution.request
        state = self._final_state(execution, ended, verdict)
        if state == states.SUCCESS:
            value = ended.value
            if ended.end is End.STORED:
                value = decode_meta(execution.stored_meta, self._result_format).result
            return self._follow_ups.of_success(request, value)
        if state == states.FAILURE and ended.end is not End.REJECTED:
            return self._follow_ups.of_failure(request, surely=ended.end is End.UNROUTABLE)
        return []

    def _behind(self, execution: Execution, ended: Ended, verdict: Verdict) -> tuple[Result, ...]:
        """The results of the steps that are never run, since this one has failed."""
        state = self._final_state(execution, ended, verdict)
        if state not in (states.FAILURE, states.REVOKED) or not self._stores:
            return ()
        error: object = ended.error
        traceback = ended.einfo.traceback if ended.einfo and state == states.FAILURE else None
        if ended.end is End.STORED:
            meta = decode_meta(execution.stored_meta, self._result_format)
            error, traceback = meta.result, meta.traceback
        return tuple(
            self._record_of(step, state, error, traceback)
            for step in self._follow_ups.behind(execution.request)
            if not step.options.get("ignore_result")
        )

    def _final_state(self, execution: Execution, ended: Ended, verdict: Verdict) -> str | None:
        """The state that decides what follows: where it had ended before, the stored one."""
        return execution.stored_state if ended.end is End.STORED else verdict.state

    def _record_of(
        self, step: Signature, state: str, error: object, traceback: str | None
    ) -> Result:
        now, extension = self._now(), None
        if self._extended:
            extension = {
                "name": step.task,
                "args": self._stored(list(step.args), repr(step)),
                "kwargs": self._stored(step.kwargs, repr(step)),
                "worker": None,
                "retries": 0,
                "queue": None,
            }
        meta = encode_meta(
            str(step.id),
            state,
            error,
            traceback,
            [],
            datetime.fromtimestamp(now, self._zone or UTC).isoformat(),
            extended=extension,
            form=self._result_format,
        )
        expires = self._failure_expires if state == states.FAILURE else self._expires
        return Result(str(step.id), state, meta, None if expires is None else now + expires)

    def started(self, execution: Execution, pid: int) -> Result:
        """The STARTED record of a task that wants to be tracked."""
        meta = {"pid": pid, "hostname": self._hostname}
        return self._record(execution, states.STARTED, meta, None)

    def unstorable(
        self, execution: Execution, settlement: Settlement, error: BackendStoreError
    ) -> Settlement:
        """What becomes of an outcome that the result store refuses for good. An end becomes a
        FAILURE that says so, and a dead letter; of a retry, its record is left out."""
        result = settlement.result
        if result is None or result.state not in states.READY_STATES:
            return replace(settlement, result=None)
        kept = execution.options.dead_letters
        if result.state == states.SUCCESS:
            failed = Ended(End.RAISED, error=error)
            verdict = Verdict(states.FAILURE, Settle.ACK)
            settlement = replace(
                settlement,
                follow_ups=tuple(self._follow_ups.of_failure(execution.request, surely=True)),
                others=self._behind(execution, failed, verdict),
            )
        return replace(
            settlement,
            result=self._record(execution, states.FAILURE, error, None, extended=False),
            dead=Dead(str(error), type(error).__name__) if kept else settlement.dead,
        )

    def _delay(self, execution: Execution) -> float:
        """Seconds until a released delivery is offered again: at its time, or after a pause."""
        due_at = execution.request.due_at
        if execution.end is End.NOT_DUE and due_at is not None:
            return max(SHORTEST_DELAY, due_at - self._now())
        least, most = UNKNOWN_PAUSE
        return min(most, max(least, self._waited(execution.delivery) / 10))

    def _waited_long(self, delivery: Delivery) -> bool:
        return self._waited(delivery) >= self._unknown_wait

    def _waited(self, delivery: Delivery) -> float:
        """Seconds since a worker first didn't know the task's name."""
        since = delivery.unknown_since_at
        return 0.0 if since is None else self._now() - since

    def _result(
        self, execution: Execution, ended: Ended, verdict: Verdict, following: list[Posting]
    ) -> Result | None:
        state = verdict.state
        if state is None or not self._stores or not self._wanted(execution, state):
            return None
        if state == states.SUCCESS:
            options = execution.task_options
            if not following or (options is not None and not options.trail):
                return self._record(execution, state, ended.value, None)
            children = [posting.message.id for posting in following]
            return self._record(execution, state, ended.value, None, children=children)
        traceback = ended.einfo.traceback if ended.einfo is not None else None
        if state == states.REVOKED or ended.end is End.REJECTED:
            traceback = None
        return self._record(execution, state, ended.error, traceback)

    def _wanted(self, execution: Execution, state: str) -> bool:
        """Whether this state is stored, results ignored or not."""
        ignore = execution.request.ignore_result
        options = execution.task_options
        if ignore is None:
            ignore = options.ignore_result if options is not None else False
        keeps_errors = options is not None and options.store_errors_even_if_ignored
        return not ignore or (keeps_errors and state in (states.FAILURE, states.RETRY))

    def _record(
        self,
        execution: Execution,
        state: str,
        value: Any,
        traceback: str | None,
        *,
        extended: bool = True,
        children: Sequence[str] = (),
    ) -> Result:
        request = execution.request
        now = self._now()
        done = state in states.READY_STATES
        task_id = request.id or ""
        if request.children:
            children = [*(each.id for each in request.children), *children]
        meta = encode_meta(
            task_id,
            state,
            value,
            traceback,
            [[[child, None], None] for child in children] if children else [],
            datetime.fromtimestamp(now, self._zone or UTC).isoformat() if done else None,
            request.group,
            request.parent_id,
            self._extension(request) if extended and self._extended else None,
            form=self._result_format,
        )
        expires = self._failure_expires if state == states.FAILURE else self._expires
        return Result(task_id, state, meta, None if expires is None else now + expires)

    def _extension(self, request: Context) -> dict[str, Any]:
        """What `result_extended` adds. Arguments that the task has made unstorable become text."""
        info, stamped = request.delivery_info or {}, request.stamped_headers or []
        stamps = request.stamps or {}
        extension = {
            "name": request.task,
            "args": self._stored(list(request.args or ()), request.argsrepr),
            "kwargs": self._stored(request.kwargs or {}, request.kwargsrepr),
            "worker": self._hostname,
            "retries": request.retries,
            "queue": info.get("routing_key"),
        }
        if stamped:
            extension |= {
                "stamped_headers": stamped,
                **{name: stamps.get(name) for name in stamped},
            }
        return extension

    def _stored(self, value: object, otherwise: str) -> object:
        try:
            self._result_format.serializer.dumps(value)
        except EncodeError:
            return otherwise
        return value

    def _sent(self, execution: Execution, ended: Ended, verdict: Verdict) -> tuple[Posting, ...]:
        """What the task asked to be sent with its end, and the next message of a retry."""
        if verdict.settle not in (Settle.ACK, Settle.REJECT) or ended.end is End.UNROUTABLE:
            return ()
        asked = tuple(execution.request.follow_ups)
        if verdict.again and not asked:
            return (self._next_message(execution, ended.reason),)
        return asked

    def _next_message(self, execution: Execution, reason: object) -> Posting:
        """The retry that no `Task.retry` has built: a lost process's, or a bare ``Retry``'s."""
        message = execution.delivery.message
        assert isinstance(message, Message)
        options, when = execution.task_options, reason.when if isinstance(reason, Retry) else None
        if when is None:
            when = 180.0 if options is None else options.default_retry_delay
        countdown, instant = (None, when) if isinstance(when, datetime) else (when, None)
        eta = due(countdown, instant, self._now(), self._call_zone)
        queue = execution.delivery.queue
        headers = next_headers(execution.request)
        headers["eta"] = None if eta is None else eta.text
        again = rebuild_message(
            message, queue=queue, delivery_tag=str(uuid.uuid4()), headers=headers
        )
        posting = Posting(
            again,
            queue,
            priority=priority_of(again),
            due_at=eta.at if eta is not None and self._eta_in_broker else None,
        )
        return self._before_next(posting)


def _dead(ended: Ended, verdict: Verdict) -> Dead:
    if ended.end is End.STORED:
        return Dead("the task had ended in a stored FAILURE when its worker died", "")
    error = verdict.error or type(ended.error).__name__
    return Dead(_sentence(ended), error)


def _repr_of(error: BaseException) -> str:
    try:
        return safe_repr(error)
    except BaseException as unreadable:
        return f"<unreadable: {type(unreadable).__name__}>"


def _sentence(ended: Ended) -> str:
    """How it ended, for dead letters and histories."""
    error = ended.error
    if error is None:
        return ended.end.value
    if isinstance(error, TimeLimitExceeded | SoftTimeLimitExceeded):
        kind = "hard" if isinstance(error, TimeLimitExceeded) else "soft"
        return f"{type(error).__name__}: its {kind} time limit of {error.args[0]} s had passed"
    try:
        text = str(error.reason if isinstance(error, Reject) else error) or safe_repr(error)
    except BaseException:  # the class is the user's
        text = _repr_of(error)
    sentence = f"{type(error).__name__}: {text}"[:500]
    # A file name that isn't UTF-8, for one, is text with half surrogate pairs, which none can keep.
    return encodable(sentence)
