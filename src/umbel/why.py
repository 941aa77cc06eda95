"""Where a task is, and why: one plain sentence for every case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, tzinfo
from enum import StrEnum
from typing import Any, Final, assert_never

from umbel.arguments import text_id
from umbel.drivers import BrokerDriver
from umbel.exceptions import BackendGetMetaError
from umbel.formats import JSON_RESULTS, ResultFormat
from umbel.ports import (
    DeadLetter,
    Delayed,
    Leased,
    Location,
    Ready,
    ResultStore,
    Revocation,
    SetAside,
)
from umbel.silence import node_name, silent_for
from umbel.states import FAILURE, READY_STATES, RETRY, REVOKED, SUCCESS
from umbel.stored import Meta, decode_exception, decode_meta

_CANNOT_FIND: Final = "can't find messages by their id"


class Case(StrEnum):
    """What kind of answer it is."""

    WAITING = "waiting"
    DELAYED = "delayed"
    RETRYING = "retrying"
    UNKNOWN_TASK = "unknown task"
    HELD = "held"
    RUNNING = "running"
    SET_ASIDE = "set aside"
    REVOKED = "revoked"
    EXPIRED = "expired"
    DEAD = "dead"
    FINISHED = "finished"
    STORED = "stored"
    """There is a state that isn't final, but no message any more."""
    NEVER_SEEN = "never seen"
    HIDDEN = "hidden"
    """Nothing is stored, and the broker can't look for a message (`Features.find`)."""


@dataclass(frozen=True, slots=True)
class Why:
    """The answer: `str()` is the sentence, `details` are its parts, as JSON can hold them.

    `details` always has ``id`` and ``case``, and what of these there is: ``queue``, ``position``,
    ``due_at``, ``worker``, ``state``, ``error``, ``reason``, ``since_at`` (unix seconds),
    ``date_done``, ``redeliveries``. Where an exchange has put copies into several queues,
    ``places`` has such details of each, and the rest is of the most telling one.
    """

    case: Case
    sentence: str
    details: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.sentence


@dataclass(frozen=True, slots=True)
class _Facts:
    """What broker and store know of the id."""

    task_id: str
    location: Location | None
    meta: Meta | None
    revocation: Revocation | None
    can_find: bool
    now: float
    zone: tzinfo

    def answer(self, case: Case, sentence: str, **details: Any) -> Why:
        state = {} if self.meta is None else {"state": self.meta.status}
        found = {"id": self.task_id, "case": case.value, **state, **details}
        return Why(case, sentence, {key: value for key, value in found.items() if value != ""})

    def time(self, at: float) -> str:
        try:
            moment = datetime.fromtimestamp(at, self.zone)
        except (OverflowError, ValueError, OSError):
            return f"second {at:.0f} of unix time"
        return moment.isoformat(sep=" ", timespec="seconds")


def why(
    broker: BrokerDriver,
    store: ResultStore | None,
    task_id: str,
    *,
    now: float,
    zone: tzinfo,
    results: ResultFormat = JSON_RESULTS,
) -> Why:
    """Where the task of this id is; several questions to the broker, while it may move on."""
    task_id = text_id(task_id)
    locations = _locations(broker, task_id)
    revocations = {entry.task_id: entry for entry in broker.revoked(0)[1]}
    facts = _Facts(
        task_id=task_id,
        location=locations[0] if locations else None,
        meta=_stored(store, task_id, results),
        revocation=revocations.get(task_id),
        can_find=broker.features.find,
        now=now,
        zone=zone,
    )
    if len({location.queue for location in locations}) > 1:
        return _in_several(facts, locations, broker)
    return _in_one(facts, broker)


def _in_one(facts: _Facts, broker: BrokerDriver) -> Why:
    if facts.location is None or _is_over(facts):
        return _from_store(facts)
    if facts.revocation is not None and isinstance(facts.location, Ready | Delayed):
        return facts.answer(
            Case.REVOKED,
            f"revoked; its message is still in queue {facts.location.queue!r} and is ended when a "
            "worker takes it",
            queue=facts.location.queue,
        )
    return _from_broker(facts, facts.location, broker)


def _in_several(facts: _Facts, locations: Sequence[Location], broker: BrokerDriver) -> Why:
    """Copies that an exchange made, and what is stored by the first that has ended."""
    unstored = replace(facts, meta=None)
    places = [_in_one(replace(unstored, location=each), broker) for each in locations]
    parts = [each.sentence for each in places]
    first = places[0]
    if facts.meta is not None and facts.meta.status in READY_STATES:
        first = _from_store(facts)
        parts.insert(0, f"of one, {first.sentence}")
    details = {**first.details, "places": [dict(each.details) for each in places]}
    return Why(first.case, f"copies in several queues: {'. Also '.join(parts)}", details)


def _locations(broker: BrokerDriver, task_id: str) -> Sequence[Location]:
    """The most telling first."""
    if broker.features.find:
        return sorted(broker.find(task_id), key=_importance)
    letter = broker.dead_find(task_id)
    return [] if letter is None else [letter]


def _importance(location: Location) -> int:
    return (Leased, SetAside, Ready, Delayed, DeadLetter).index(type(location))


def _stored(store: ResultStore | None, task_id: str, results: ResultFormat) -> Meta | None:
    record = None if store is None else store.get([task_id])[0]
    if record is None:
        return None
    try:
        return decode_meta(record.meta, results)
    except BackendGetMetaError:
        return Meta(task_id=task_id, status=record.state)


def _is_over(facts: _Facts) -> bool:
    """Whether the stored state says more than where a message is."""
    if facts.meta is None or isinstance(facts.location, DeadLetter):
        return False
    if facts.meta.status == FAILURE:
        return isinstance(facts.location, Leased)
    return facts.meta.status in (SUCCESS, REVOKED)


def _from_broker(facts: _Facts, location: Location, broker: BrokerDriver) -> Why:
    match location:
        case Ready(queue, position):
            idle = "; no worker is running" if _nobody_works(broker, facts.now) else ""
            return facts.answer(
                Case.WAITING,
                f"waiting at place {position + 1} of queue {queue!r}{idle}",
                queue=queue,
                position=position,
            )
        case Delayed():
            return _delayed(facts, location)
        case Leased(queue, owner, _, begun):
            worker, silence = _worker_of(owner, broker, facts.now)
            sentence = f"running in worker {worker}" if begun else f"held by worker {worker}"
            return facts.answer(
                Case.RUNNING if begun else Case.HELD,
                f"{sentence}, from queue {queue!r}"
                + ("; it is asked to end" if facts.revocation and begun else "")
                + silence,
                queue=queue,
                worker=worker,
                owner=owner,
            )
        case SetAside(queue, loss, detail):
            return facts.answer(
                Case.SET_ASIDE,
                f"was running when it was lost ({loss}: {detail}); the next free process of queue "
                f"{queue!r} decides what follows",
                queue=queue,
                reason=detail,
            )
        case DeadLetter():
            return facts.answer(
                Case.DEAD,
                f"dead since {facts.time(location.died_at)}, from queue {location.queue!r}: "
                f"{location.reason}",
                queue=location.queue,
                reason=location.reason,
                error=location.error,
                since_at=location.died_at,
                redeliveries=location.redeliveries,
            )
        case _:
            assert_never(location)


def _delayed(facts: _Facts, location: Delayed) -> Why:
    when = facts.time(location.due_at)
    if location.unknown_since_at is not None:
        return facts.answer(
            Case.UNKNOWN_TASK,
            f"waits in queue {location.queue!r} for a worker that knows its task's name; none has "
            f"since {facts.time(location.unknown_since_at)}, the next try is at {when}",
            queue=location.queue,
            since_at=location.unknown_since_at,
            due_at=location.due_at,
        )
    if facts.meta is not None and facts.meta.status == RETRY:
        error = _error(facts.meta)
        return facts.answer(
            Case.RETRYING,
            f"delayed until {when} in queue {location.queue!r}, to be tried again after {error}",
            queue=location.queue,
            due_at=location.due_at,
            error=error,
        )
    return facts.answer(
        Case.DELAYED,
        f"delayed until {when} in queue {location.queue!r}",
        queue=location.queue,
        due_at=location.due_at,
    )


def _from_store(facts: _Facts) -> Why:
    """The answer where no message is left, or where it says less than the stored state."""
    meta = facts.meta
    if meta is None:
        return _without_trace(facts)
    done = f" at {meta.date_done}" if meta.date_done else ""
    if meta.status not in READY_STATES:
        return facts.answer(
            Case.STORED,
            f"its last stored state is {meta.status}, and the broker "
            + ("has no message of it" if facts.can_find else _CANNOT_FIND),
        )
    if meta.status == SUCCESS:
        return facts.answer(
            Case.FINISHED, f"finished: SUCCESS{done}", date_done=meta.date_done or ""
        )
    error = _error(meta)
    if meta.status == FAILURE:
        return facts.answer(
            Case.FINISHED,
            f"finished: FAILURE{done}: {error}",
            date_done=meta.date_done or "",
            error=error,
        )
    reason = _revocation_reason(meta)
    return facts.answer(
        Case.EXPIRED if reason == "expired" else Case.REVOKED,
        f"{reason}{done}" + ("; it was not started" if reason == "expired" else ""),
        date_done=meta.date_done or "",
        reason=reason,
    )


def _without_trace(facts: _Facts) -> Why:
    if facts.revocation is not None:
        missing = "the broker has no message of it, and " if facts.can_find else ""
        return facts.answer(Case.REVOKED, f"revoked; {missing}one that comes is ended")
    if not facts.can_find:
        return facts.answer(
            Case.HIDDEN,
            f"no result is stored, and this broker {_CANNOT_FIND}: it may wait, be due later, run, "
            "or never have been sent",
        )
    return facts.answer(
        Case.NEVER_SEEN,
        "never seen: the broker has no message of this id and no result is stored (it may be "
        "wrong, ignored, forgotten, or older than result_expires)",
    )


def _revocation_reason(meta: Meta) -> str:
    match meta.result:
        case {"exc_message": [str() as reason, *_]}:
            return reason
    return "revoked"


def _error(meta: Meta) -> str:
    """The stored exception in one line."""
    if not isinstance(meta.result, dict):
        return "an error"
    try:
        return _one_line(repr(decode_exception(meta.result)))
    except Exception:  # classes and their repr are the user's
        return _one_line(str(meta.result.get("exc_type", "an error")))


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 200 else line[:199] + "…"


def _worker_of(owner: str, broker: BrokerDriver, now: float) -> tuple[str, str]:
    """The worker's name, as its run says it, else the run; and what to add of a silent one."""
    run = owner.rpartition("#")[0]
    for record in broker.runs():
        if record.run == run:
            silence = silent_for(record, now)
            if silence is None:
                return node_name(record), ""
            return node_name(record), (
                f"; that worker has given no sign of life for {silence:.0f} s, and what it held is "
                "taken over by the next one that starts"
            )
    return run, ""


def _nobody_works(broker: BrokerDriver, now: float) -> bool:
    return all(silent_for(record, now) is not None for record in broker.runs())
