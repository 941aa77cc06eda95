"""What happens when an execution ends: the one table that decides.

`decide` is a pure function from how it ended, the task's acknowledgement options and its counts
to a `Verdict`: the state to store, how the delivery is settled, which handlers and signals run
in which order, and whether a dead letter is kept. Nothing else in Umbel decides any of these;
the executor asks, the settler applies.

The columns are the three acknowledgement modes (early, late, late with reject_on_worker_lost),
the rows are `End`. docs/architecture.md prints the whole table.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from umbel import states


class End(StrEnum):
    """How an execution, or a delivery that never became one, ended."""

    RETURNED = "returned"
    RETRY = "asked for a retry, and may"
    RAISED = "raised"
    IGNORED = "raised Ignore"
    REJECTED = "raised Reject(requeue=False)"
    REQUEUED = "raised Reject(requeue=True)"
    SOFT_LIMIT = "soft limit, not caught"
    HARD_LIMIT = "hard limit"
    NOT_DUE = "met before its time"
    EXPIRED = "expired before start"
    REVOKED = "revoked before start"
    TERMINATED = "terminated"
    UNKNOWN_TASK = "unknown task name"
    UNREADABLE = "unreadable message"
    UNROUTABLE = "unroutable follow-up"
    PROCESS_LOST = "pool process died, task begun"
    WORKER_LOST = "whole worker died, task begun"
    NEVER_BEGAN = "process or worker died, marked but never started"
    HELD = "process or worker died, held"
    DECIDED = "process or worker died, outcome decided"
    STORED = "died, result already final"
    COLD_STOP = "cold stop, task running"
    LEASE_LOST = "lease lost, then finished"


class Settle(StrEnum):
    """What becomes of the delivery."""

    ACK = "done"
    REJECT = "refused without requeue"
    REQUEUE = "delivered again, counted"
    RELEASE = "delivered again, uncounted"
    RELEASE_LATER = "delivered again after a wait, uncounted"
    AS_DECIDED = "as the outcome says that was decided before the death"
    NONE = "nothing: the delivery is another's"


@dataclass(frozen=True, slots=True)
class Options:
    """What of a task's options decides how its executions end."""

    acks_late: bool = False
    reject_on_worker_lost: bool = False
    acks_on_failure: bool = True
    acks_on_timeout: bool = True
    retry_on_worker_lost: bool = False
    max_retries: int | None = 3
    max_redeliveries: int = 3
    dead_letters: bool = True


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is to be done about one end.

    `state` None stores nothing. `announce` names handlers (``on_…``, ``after_return``) and
    signals (``task_…``) in the order in which they run. `postrun_state` is the `state` argument
    of ``task_postrun``. `error` is the class of the error to store where the end itself brings
    no exception. `again` says that the next message (same id, one retry more) follows.
    """

    state: str | None
    settle: Settle
    announce: tuple[str, ...] = ()
    dead: bool = False
    postrun_state: str | None = None
    error: str = ""
    again: bool = False

    @property
    def handlers(self) -> tuple[str, ...]:
        return tuple(name for name in self.announce if not name.startswith("task_"))

    @property
    def signals(self) -> tuple[str, ...]:
        return tuple(name for name in self.announce if name.startswith("task_"))


_SUCCESS = Verdict(
    states.SUCCESS,
    Settle.ACK,
    ("on_success", "task_success", "after_return", "task_postrun"),
    postrun_state=states.SUCCESS,
)
_RETRY = Verdict(
    states.RETRY,
    Settle.ACK,
    ("on_retry", "task_retry", "task_postrun"),
    postrun_state=states.RETRY,
    again=True,
)
_LOST_RETRY = Verdict(states.RETRY, Settle.ACK, ("on_retry", "task_retry"), again=True)
_IGNORED = Verdict(None, Settle.ACK, ("task_postrun",), postrun_state=states.IGNORED)
_REQUEUED = Verdict(None, Settle.REQUEUE, ("task_postrun",), postrun_state=states.REJECTED)
_REQUEUE = Verdict(None, Settle.REQUEUE)
_RELEASE = Verdict(None, Settle.RELEASE)
_LATER = Verdict(None, Settle.RELEASE_LATER)
_REVOKED = Verdict(states.REVOKED, Settle.ACK, ("task_revoked",), error="TaskRevokedError")
_AFTER_A_RUN = ("on_failure", "task_failure", "after_return", "task_postrun")
_AFTER_A_KILL = ("on_failure", "task_failure", "after_return")


def decide(
    end: End,
    options: Options,
    *,
    retries: int = 0,
    redeliveries: int = 0,
    waited_long: bool = False,
    stored_state: str = "",
) -> Verdict:
    """The verdict on one end.

    `retries` and `redeliveries` are those that the message has behind it. `waited_long`: an
    unknown task name has waited for `task_unknown_wait`. `stored_state`: the final state found
    in the result store (`End.STORED`).
    """
    capped = redeliveries >= options.max_redeliveries
    match end:
        case End.RETURNED:
            return _SUCCESS
        case End.RETRY:
            return _RETRY
        case End.RAISED | End.SOFT_LIMIT:
            return _failure(options, _AFTER_A_RUN, ack=options.acks_on_failure)
        case End.IGNORED:
            return _IGNORED
        case End.REJECTED:
            return _failure(options, ("task_postrun", "task_failure"), ack=False, error="Reject")
        case End.REQUEUED:
            if capped:
                return _failure(options, _AFTER_A_RUN, ack=False, error="Reject")
            return _REQUEUED
        case End.HARD_LIMIT:
            if options.acks_late and not options.acks_on_timeout and not capped:
                return _REQUEUE
            return _failure(options, _AFTER_A_KILL, error="TimeLimitExceeded")
        case End.EXPIRED | End.REVOKED | End.TERMINATED:
            return _REVOKED
        case End.NOT_DUE:
            return _LATER
        case End.UNKNOWN_TASK:
            if not waited_long:
                return _LATER
            return _failure(options, ("task_unknown",), ack=False, error="NotRegistered")
        case End.UNREADABLE:
            return Verdict(None, Settle.REJECT, ("task_rejected",), dead=True)
        case End.UNROUTABLE:
            return _failure(options, _AFTER_A_RUN, error="Unroutable")
        case End.PROCESS_LOST | End.WORKER_LOST:
            return _lost(end, options, retries, capped)
        case End.NEVER_BEGAN | End.HELD:
            return _RELEASE
        case End.DECIDED:
            return Verdict(None, Settle.AS_DECIDED)
        case End.STORED:
            failed = stored_state == states.FAILURE
            return Verdict(None, Settle.ACK, dead=failed and options.dead_letters)
        case End.COLD_STOP:
            if options.acks_late:
                return _RELEASE
            return _failure(options, ("task_failure",), error="WorkerLostError")
        case End.LEASE_LOST:
            return Verdict(None, Settle.NONE)
        case _:
            assert_never(end)


def _lost(end: End, options: Options, retries: int, capped: bool) -> Verdict:
    """The verdict on a task that had begun when its process or its whole worker died."""
    if options.retry_on_worker_lost:
        if options.max_retries is None or retries < options.max_retries:
            return _LOST_RETRY
        return _failure(options, ("task_failure",), error="WorkerLostError")
    again = options.acks_late and (end is End.WORKER_LOST or options.reject_on_worker_lost)
    if again and not capped:
        return _REQUEUE
    announce = _AFTER_A_KILL if again else ("task_failure",)
    return _failure(options, announce, error="WorkerLostError")


def _failure(
    options: Options, announce: tuple[str, ...], *, ack: bool = True, error: str = ""
) -> Verdict:
    """FAILURE. Early deliveries count as acknowledged, so only a late one can be refused."""
    return Verdict(
        states.FAILURE,
        Settle.ACK if ack or not options.acks_late else Settle.REJECT,
        announce,
        dead=options.dead_letters,
        postrun_state=states.REJECTED if announce[0] == "task_postrun" else states.FAILURE,
        error=error,
    )
