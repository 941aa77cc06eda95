"""The outcome table: every cell by name, then what must hold in all of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from umbel.outcome import End, Options, Settle, Verdict, decide

EARLY = Options()
LATE = Options(acks_late=True)
REJECT = Options(acks_late=True, reject_on_worker_lost=True)
COLUMNS = {"early": EARLY, "late": LATE, "late+reject": REJECT}

SUCCESS, RETRY, FAILURE, REVOKED = "SUCCESS", "RETRY", "FAILURE", "REVOKED"
ACK, REFUSE, REQUEUE, RELEASE = Settle.ACK, Settle.REJECT, Settle.REQUEUE, Settle.RELEASE
NOBODY: tuple[str, ...] = ()
AFTER_SUCCESS = ("on_success", "task_success", "after_return", "task_postrun")
AFTER_RETRY = ("on_retry", "task_retry", "task_postrun")
AFTER_FAILURE = ("on_failure", "task_failure", "after_return", "task_postrun")
AFTER_A_KILL = ("on_failure", "task_failure", "after_return")
AFTER_A_LOSS = ("task_failure",)
LOST_RETRY = ("on_retry", "task_retry")


class Cell(NamedTuple):
    """One cell: what is stored, how it is settled, who hears of it in which order, and whether a
    dead letter is kept. `error` is the class that the end itself names."""

    state: str | None
    settle: Settle
    announce: tuple[str, ...]
    dead: bool
    error: str = ""


def cell_of(verdict: Verdict) -> Cell:
    return Cell(verdict.state, verdict.settle, verdict.announce, verdict.dead, verdict.error)


def same(cell: Cell) -> tuple[Cell, Cell, Cell]:
    return cell, cell, cell


LOST = Cell(FAILURE, ACK, AFTER_A_LOSS, True, "WorkerLostError")
AGAIN = Cell(None, REQUEUE, NOBODY, False)
BACK = Cell(None, RELEASE, NOBODY, False)
FAILED = Cell(FAILURE, ACK, AFTER_FAILURE, True)
REVOKED_CELL = Cell(REVOKED, ACK, ("task_revoked",), False, "TaskRevokedError")

# The rows of docs/architecture.md with the default options, nothing counted yet: (early, late,
# late with reject_on_worker_lost).
TABLE: dict[End, tuple[Cell, Cell, Cell]] = {
    End.RETURNED: same(Cell(SUCCESS, ACK, AFTER_SUCCESS, False)),
    End.RETRY: same(Cell(RETRY, ACK, AFTER_RETRY, False)),
    End.RAISED: same(FAILED),
    End.IGNORED: same(Cell(None, ACK, ("task_postrun",), False)),
    End.REJECTED: (
        Cell(FAILURE, ACK, ("task_postrun", "task_failure"), True, "Reject"),
        Cell(FAILURE, REFUSE, ("task_postrun", "task_failure"), True, "Reject"),
        Cell(FAILURE, REFUSE, ("task_postrun", "task_failure"), True, "Reject"),
    ),
    End.REQUEUED: same(Cell(None, REQUEUE, ("task_postrun",), False)),
    End.SOFT_LIMIT: same(FAILED),
    End.HARD_LIMIT: same(Cell(FAILURE, ACK, AFTER_A_KILL, True, "TimeLimitExceeded")),
    End.EXPIRED: same(REVOKED_CELL),
    End.REVOKED: same(REVOKED_CELL),
    End.TERMINATED: same(REVOKED_CELL),
    End.UNKNOWN_TASK: same(Cell(None, Settle.RELEASE_LATER, NOBODY, False)),
    # Met before its time, as Celery sends it (task_eta_in_broker).
    End.NOT_DUE: same(Cell(None, Settle.RELEASE_LATER, NOBODY, False)),
    End.UNREADABLE: same(Cell(None, REFUSE, ("task_rejected",), True)),
    End.UNROUTABLE: same(Cell(FAILURE, ACK, AFTER_FAILURE, True, "Unroutable")),
    End.PROCESS_LOST: (LOST, LOST, AGAIN),
    End.WORKER_LOST: (LOST, AGAIN, AGAIN),
    End.NEVER_BEGAN: same(BACK),
    End.HELD: same(BACK),
    End.DECIDED: same(Cell(None, Settle.AS_DECIDED, NOBODY, False)),
    End.STORED: same(Cell(None, ACK, NOBODY, False)),
    End.COLD_STOP: (LOST, BACK, BACK),
    End.LEASE_LOST: same(Cell(None, Settle.NONE, NOBODY, False)),
}

CAPPED = {"redeliveries": 3}
NO_TIMEOUT_ACK: dict[str, Any] = {"acks_on_timeout": False}
NO_FAILURE_ACK: dict[str, Any] = {"acks_on_failure": False}
RETRY_LOST: dict[str, Any] = {"retry_on_worker_lost": True}
CAPPED_LOSS = Cell(FAILURE, ACK, AFTER_A_KILL, True, "WorkerLostError")
LOST_AGAIN = Cell(RETRY, ACK, LOST_RETRY, False)
FAILED_REFUSED = Cell(FAILURE, REFUSE, AFTER_FAILURE, True)
TIMED_OUT = Cell(FAILURE, ACK, AFTER_A_KILL, True, "TimeLimitExceeded")
UNKNOWN_ACKED = Cell(FAILURE, ACK, ("task_unknown",), True, "NotRegistered")
UNKNOWN_REFUSED = Cell(FAILURE, REFUSE, ("task_unknown",), True, "NotRegistered")
STORED_DEAD = Cell(None, ACK, NOBODY, True)
GIVEN_UP_ACKED = Cell(FAILURE, ACK, AFTER_FAILURE, True, "Reject")
GIVEN_UP_REFUSED = Cell(FAILURE, REFUSE, AFTER_FAILURE, True, "Reject")

# What options and counts change: (row, what it is, options, facts, early, late, late+reject).
VARIANTS: list[tuple[End, str, dict[str, Any], dict[str, Any], tuple[Cell, Cell, Cell]]] = [
    (End.RAISED, "not acks_on_failure", NO_FAILURE_ACK, {},
     (FAILED, FAILED_REFUSED, FAILED_REFUSED)),
    (End.SOFT_LIMIT, "not acks_on_failure", NO_FAILURE_ACK, {},
     (FAILED, FAILED_REFUSED, FAILED_REFUSED)),
    (End.SOFT_LIMIT, "acks_on_timeout is not asked", NO_TIMEOUT_ACK, {}, same(FAILED)),
    (End.HARD_LIMIT, "not acks_on_timeout", NO_TIMEOUT_ACK, {}, (TIMED_OUT, AGAIN, AGAIN)),
    (End.HARD_LIMIT, "not acks_on_timeout, last of the cap", NO_TIMEOUT_ACK, {"redeliveries": 2},
     (TIMED_OUT, AGAIN, AGAIN)),
    (End.HARD_LIMIT, "not acks_on_timeout, capped", NO_TIMEOUT_ACK, CAPPED, same(TIMED_OUT)),
    (End.HARD_LIMIT, "acks_on_failure is not asked", NO_FAILURE_ACK, {}, same(TIMED_OUT)),
    (End.REQUEUED, "last of the cap", {}, {"redeliveries": 2},
     same(Cell(None, REQUEUE, ("task_postrun",), False))),
    (End.REQUEUED, "capped", {}, CAPPED, (GIVEN_UP_ACKED, GIVEN_UP_REFUSED, GIVEN_UP_REFUSED)),
    (End.UNKNOWN_TASK, "after its wait", {}, {"waited_long": True},
     (UNKNOWN_ACKED, UNKNOWN_REFUSED, UNKNOWN_REFUSED)),
    (End.PROCESS_LOST, "capped", {}, CAPPED, (LOST, LOST, CAPPED_LOSS)),
    (End.WORKER_LOST, "capped", {}, CAPPED, (LOST, CAPPED_LOSS, CAPPED_LOSS)),
    (End.WORKER_LOST, "last of the cap", {}, {"redeliveries": 2}, (LOST, AGAIN, AGAIN)),
    (End.PROCESS_LOST, "retry_on_worker_lost", RETRY_LOST, {}, same(LOST_AGAIN)),
    (End.WORKER_LOST, "retry_on_worker_lost", RETRY_LOST, {}, same(LOST_AGAIN)),
    (End.PROCESS_LOST, "retry_on_worker_lost, last retry", RETRY_LOST, {"retries": 2},
     same(LOST_AGAIN)),
    (End.PROCESS_LOST, "retry_on_worker_lost, none left", RETRY_LOST, {"retries": 3}, same(LOST)),
    (End.WORKER_LOST, "retry_on_worker_lost, none left", RETRY_LOST, {"retries": 3}, same(LOST)),
    (End.WORKER_LOST, "retry_on_worker_lost, no limit", {**RETRY_LOST, "max_retries": None},
     {"retries": 1000}, same(LOST_AGAIN)),
    (End.STORED, "a success", {}, {"stored_state": SUCCESS}, same(Cell(None, ACK, NOBODY, False))),
    (End.STORED, "a failure", {}, {"stored_state": FAILURE}, same(STORED_DEAD)),
    (End.STORED, "a revocation", {}, {"stored_state": REVOKED},
     same(Cell(None, ACK, NOBODY, False))),
    (End.STORED, "a failure, no dead letters", {"dead_letters": False}, {"stored_state": FAILURE},
     same(Cell(None, ACK, NOBODY, False))),
    (End.COLD_STOP, "capped is not asked", {}, CAPPED, (LOST, BACK, BACK)),
    (End.NEVER_BEGAN, "capped is not asked", {}, CAPPED, same(BACK)),
    (End.HELD, "capped is not asked", {}, CAPPED, same(BACK)),
    (End.UNREADABLE, "kept although dead letters are off: nothing else is left of it",
     {"dead_letters": False}, {}, same(Cell(None, REFUSE, ("task_rejected",), True))),
]  # fmt: skip

POSTRUN_STATES = {
    End.RETURNED: "SUCCESS",
    End.RETRY: "RETRY",
    End.RAISED: "FAILURE",
    End.SOFT_LIMIT: "FAILURE",
    End.IGNORED: "IGNORED",
    End.UNROUTABLE: "FAILURE",
    End.REJECTED: "REJECTED",
    End.REQUEUED: "REJECTED",
}
"""The `state` that ``task_postrun`` gets; ends that aren't here send no such signal."""


def test_the_table_has_every_row() -> None:
    assert set(TABLE) == set(End)


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("end", End, ids=lambda end: end.name)
def test_a_cell_of_the_table(end: End, column: str) -> None:
    expected = TABLE[end][list(COLUMNS).index(column)]
    assert cell_of(decide(end, COLUMNS[column])) == expected


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda row: f"{row[0].name}: {row[1]}")
def test_what_options_and_counts_change(
    variant: tuple[End, str, dict[str, Any], dict[str, Any], tuple[Cell, Cell, Cell]], column: str
) -> None:
    end, _, options, facts, cells = variant
    verdict = decide(end, replace(COLUMNS[column], **options), **facts)
    assert cell_of(verdict) == cells[list(COLUMNS).index(column)]


def test_reject_on_worker_lost_says_nothing_without_acks_late() -> None:
    options = Options(reject_on_worker_lost=True)
    for end in End:
        assert decide(end, options) == decide(end, EARLY)


@pytest.mark.parametrize("end", End, ids=lambda end: end.name)
def test_the_state_of_postrun(end: End) -> None:
    verdict = decide(end, LATE)
    sent = verdict.postrun_state if "task_postrun" in verdict.announce else None
    assert sent == POSTRUN_STATES.get(end)


def test_handlers_and_signals_are_told_apart_in_order() -> None:
    verdict = decide(End.RAISED, EARLY)
    assert verdict.handlers == ("on_failure", "after_return")
    assert verdict.signals == ("task_failure", "task_postrun")


# What must hold whatever the options and counts are.

ends = st.sampled_from(End)
counts = st.integers(0, 20)
options = st.builds(
    Options,
    acks_late=st.booleans(),
    reject_on_worker_lost=st.booleans(),
    acks_on_failure=st.booleans(),
    acks_on_timeout=st.booleans(),
    retry_on_worker_lost=st.booleans(),
    max_retries=st.none() | st.integers(-1, 20),
    max_redeliveries=st.integers(0, 20),
    dead_letters=st.booleans(),
)
facts = st.fixed_dictionaries(
    {
        "retries": counts,
        "redeliveries": counts,
        "waited_long": st.booleans(),
        "stored_state": st.sampled_from(["", SUCCESS, FAILURE, REVOKED, RETRY, "STARTED", "mine"]),
    }
)
Facts = dict[str, Any]
BEGUN = frozenset(End) - {
    End.NOT_DUE,
    End.EXPIRED,
    End.REVOKED,
    End.UNKNOWN_TASK,
    End.UNREADABLE,
    End.NEVER_BEGAN,
    End.HELD,
}
"""Ends of what may have started: running it again would be a second run."""
ASKED_FOR_AGAIN = {End.RETRY, End.REQUEUED}
"""The task itself said that it is to run again."""


def runs_again(verdict: Verdict) -> bool:
    again = verdict.settle in (Settle.REQUEUE, Settle.RELEASE, Settle.RELEASE_LATER)
    return again or verdict.again


@given(ends, options, facts)
@example(End.WORKER_LOST, REJECT, {"redeliveries": 10**9, "retries": 10**9})
def test_every_end_has_a_verdict(end: End, chosen: Options, known: Facts) -> None:
    verdict = decide(end, chosen, **known)
    assert verdict.state in (None, SUCCESS, RETRY, FAILURE, REVOKED)
    assert verdict == decide(end, chosen, **known)


@given(ends, options, facts)
def test_a_counted_redelivery_never_exceeds_the_cap(
    end: End, chosen: Options, known: Facts
) -> None:
    verdict = decide(end, chosen, **known)
    if verdict.settle is Settle.REQUEUE:
        assert known["redeliveries"] < chosen.max_redeliveries


@given(ends, options, facts)
def test_an_early_task_that_began_runs_once(end: End, chosen: Options, known: Facts) -> None:
    if end in BEGUN - ASKED_FOR_AGAIN and not chosen.retry_on_worker_lost:
        assert not runs_again(decide(end, replace(chosen, acks_late=False), **known))


@given(ends, options, facts)
def test_what_fails_is_kept_unless_dead_letters_are_off(
    end: End, chosen: Options, known: Facts
) -> None:
    verdict = decide(end, chosen, **known)
    if verdict.state == FAILURE:
        assert verdict.dead == chosen.dead_letters
    elif verdict.dead:
        kept_before = end is End.STORED and known["stored_state"] == FAILURE
        assert end is End.UNREADABLE or kept_before


@given(ends, options, facts)
def test_nothing_vanishes(end: End, chosen: Options, known: Facts) -> None:
    """Every verdict leaves a message, a state or a dead letter, unless the task was ignored, had
    ended before, or isn't ours."""
    verdict = decide(end, chosen, **known)
    if not (runs_again(verdict) or verdict.state or verdict.dead):
        assert end in {End.IGNORED, End.STORED, End.DECIDED, End.LEASE_LOST}


@given(ends, options, facts)
def test_what_runs_again_stores_no_end(end: End, chosen: Options, known: Facts) -> None:
    verdict = decide(end, chosen, **known)
    if runs_again(verdict):
        assert verdict.state in (None, RETRY)
        assert not verdict.dead
        assert not {"after_return", "task_failure", "task_success"} & set(verdict.announce)
    assert verdict.again == (verdict.state == RETRY)


@given(ends, options, facts)
def test_only_late_deliveries_are_refused(end: End, chosen: Options, known: Facts) -> None:
    verdict = decide(end, chosen, **known)
    if verdict.settle is Settle.REJECT and end is not End.UNREADABLE:
        assert chosen.acks_late


@given(ends, options, facts)
def test_acks_on_failure_changes_how_a_late_failure_is_settled_and_nothing_else(
    end: End, chosen: Options, known: Facts
) -> None:
    acked = decide(end, replace(chosen, acks_on_failure=True), **known)
    other = decide(end, replace(chosen, acks_on_failure=False), **known)
    if end in {End.RAISED, End.SOFT_LIMIT} and chosen.acks_late:
        assert (acked.settle, other.settle) == (Settle.ACK, Settle.REJECT)
        assert replace(other, settle=Settle.ACK) == acked
    else:
        assert other == acked


@given(ends, options, facts)
def test_acks_on_timeout_changes_the_hard_limit_of_late_tasks_and_nothing_else(
    end: End, chosen: Options, known: Facts
) -> None:
    acked = decide(end, replace(chosen, acks_on_timeout=True), **known)
    other = decide(end, replace(chosen, acks_on_timeout=False), **known)
    capped = known["redeliveries"] >= chosen.max_redeliveries
    if end is End.HARD_LIMIT and chosen.acks_late and not capped:
        assert acked.state == FAILURE
        assert (other.state, other.settle) == (None, Settle.REQUEUE)
    else:
        assert other == acked


@given(ends, options, facts)
def test_dead_letters_off_changes_only_that(end: End, chosen: Options, known: Facts) -> None:
    kept = decide(end, replace(chosen, dead_letters=True), **known)
    dropped = decide(end, replace(chosen, dead_letters=False), **known)
    assert replace(kept, dead=False) == replace(dropped, dead=False)


@given(ends, options, facts)
def test_a_handler_of_failure_comes_with_its_signal(
    end: End, chosen: Options, known: Facts
) -> None:
    announced = decide(end, chosen, **known).announce
    for handler, signal in (
        ("on_success", "task_success"),
        ("on_failure", "task_failure"),
        ("on_retry", "task_retry"),
    ):
        if handler in announced:
            assert announced.index(signal) == announced.index(handler) + 1
    assert len(set(announced)) == len(announced)


@given(options)
def test_a_poison_task_ends(chosen: Options) -> None:
    """However it dies, deliveries and retries are used up at some time."""
    limited = replace(chosen, max_retries=chosen.max_retries or 3)
    for end in (End.PROCESS_LOST, End.WORKER_LOST, End.HARD_LIMIT, End.REQUEUED):
        retries, redeliveries = 0, 0
        verdict = decide(end, limited)
        for _ in range(50):
            if not runs_again(verdict):
                break
            retries += verdict.again
            redeliveries += verdict.settle is Settle.REQUEUE
            verdict = decide(end, limited, retries=retries, redeliveries=redeliveries)
        assert verdict.state == FAILURE


@given(options, facts)
def test_deaths_that_the_task_had_no_part_in_are_not_counted(chosen: Options, known: Facts) -> None:
    for end in (End.NEVER_BEGAN, End.HELD):
        assert decide(end, chosen, **known) == Verdict(None, Settle.RELEASE)
