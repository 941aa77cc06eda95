"""Retry policies of tasks: which delay the next message has, and when there is none."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.api.looking import lease

from umbel import Task, Umbel
from umbel.clock import ManualClock
from umbel.exceptions import MaxRetriesExceededError, Retry
from umbel.message import Message
from umbel.protocol import FIRST_RUN
from umbel.request import Context, running
from umbel.retry import Exponential, Fixed, Linear

NOW = 1_800_000_000.0


class Busy(Exception):
    def __init__(self, retry_after: object = None) -> None:
        self.retry_after = retry_after


def make(app: Umbel, **options: Any) -> Task[..., Any]:
    def fail(self: Any) -> None: ...

    decorate: Any = app.task(name="proj.t", bind=True, **options)
    task: Task[..., Any] = decorate(fail)
    return task


def begin(app: Umbel, task: Task[..., Any], retries: int = 0) -> Context:
    task.delay()
    request = lease(app)
    request.retries = retries
    request.started_at = app.clock.wall()
    return request


def after(task: Task[..., Any], request: Context, error: BaseException) -> Any:
    """When the retry is due that `error` leads to, in seconds from now; None for no retry."""
    request.follow_ups.clear()
    with running(task, request):
        found = task.next_try(error)
    if found is None:
        assert request.follow_ups == []
        return None
    assert found.posting is not None
    assert isinstance(found.when, (int, float))
    now = task.app.clock.wall()
    assert found.posting.due_at == (pytest.approx(now + found.when) if found.when else None)
    return found.when


def header(request: Context) -> Any:
    (posting,) = request.follow_ups
    return posting.message.headers.get(FIRST_RUN)


@pytest.mark.option("retry_backoff")
@pytest.mark.parametrize(
    ("backoff", "expected"),
    [
        (Exponential(2, jitter="none"), [2, 4, 8]),
        (Linear(5), [5, 10, 15]),
        (Fixed(0.5), [0.5, 0.5, 0.5]),
        (lambda retries, exc: 10 * retries + len(exc.args), [1, 11, 21]),
    ],
)
def test_a_policy_decides_on_the_delays(app: Umbel, backoff: Any, expected: list[float]) -> None:
    task = make(app, autoretry_for=ValueError, retry_backoff=backoff)
    request = begin(app, task)
    for retries, delay in enumerate(expected):
        request.retries = retries
        assert after(task, request, ValueError("x")) == delay
    request.retries = 3
    assert after(task, request, ValueError("x")) is None
    request.retries = 0
    assert after(task, request, KeyError()) is None


def test_jitter_is_drawn(app: Umbel) -> None:
    task = make(app, autoretry_for=ValueError, retry_backoff=Fixed(8, jitter="equal"))
    request = begin(app, task)
    drawn = {after(task, request, ValueError()) for _ in range(50)}
    assert len(drawn) > 40
    assert 4 <= min(drawn) <= max(drawn) <= 8


def test_a_policy_for_each_class(app: Umbel) -> None:
    task = make(app, autoretry_for={OSError: Fixed(1), ConnectionError: Linear(7)})
    request = begin(app, task)
    assert after(task, request, ConnectionResetError()) == 7
    assert after(task, request, FileNotFoundError()) == 1
    assert after(task, request, ValueError()) is None


def test_retry_after_lifts_the_delay_of_a_policy_alone(app: Umbel) -> None:
    task = make(app, autoretry_for=Busy, retry_backoff=Fixed(2, maximum=90))
    request = begin(app, task)
    assert after(task, request, Busy(30)) == 30
    assert after(task, request, Busy("Fri, 15 Jan 2027 08:01:00 GMT")) == 60
    assert after(task, request, Busy(3600)) == 90
    assert after(task, request, Busy(1)) == 2
    task.retry_backoff = True
    task.retry_jitter = False
    assert after(task, request, Busy(30)) == 1
    task.retry_backoff = False
    assert after(task, request, Busy(30)) == 180


def while_handling(error: Exception, call: Callable[[], object]) -> None:
    try:
        raise error
    except type(error):
        call()


def asked(task: Task[..., Any], request: Context, **options: Any) -> Any:
    request.follow_ups.clear()
    with running(task, request), pytest.raises(Retry) as caught:
        task.retry(**options)
    return caught.value.when


def test_self_retry_takes_the_policy_unless_it_says_when(app: Umbel) -> None:
    task = make(app, retry_backoff=Linear(7), autoretry_for={OSError: Fixed(1)})
    request = begin(app, task)
    assert asked(task, request) == 7
    assert asked(task, request, exc=ValueError()) == 7
    assert asked(task, request, exc=OSError()) == 1
    assert asked(task, request, exc=OSError(), countdown=5) == 5
    with running(task, request), pytest.raises(Retry) as caught:
        while_handling(OSError(), task.retry)
    assert caught.value.when == 1


def test_self_retry_knows_celerys_backoff_as_celery_does(app: Umbel) -> None:
    task = make(app, retry_backoff=True, retry_jitter=False, autoretry_for=OSError)
    assert asked(task, begin(app, task), exc=OSError()) == 180


# attempts


@pytest.mark.option("attempts")
def test_attempts_are_one_more_than_retries(app: Umbel) -> None:
    task = make(app, autoretry_for=ValueError, attempts=2)
    assert (task.attempts, task.max_retries) == (2, 1)
    request = begin(app, task)
    assert after(task, request, ValueError()) == 180
    request.retries = 1
    assert after(task, request, ValueError()) is None
    with running(task, request), pytest.raises(MaxRetriesExceededError, match="its 1 retries"):
        task.retry()
    assert make(Umbel(set_as_current=False), max_retries=None).attempts is None
    assert make(Umbel(set_as_current=False)).attempts == 4


def test_attempts_and_max_retries_together_are_an_error(app: Umbel) -> None:
    with pytest.raises(ValueError, match=r"task .* got attempts=3 and max_retries; .*leave one"):
        make(app, attempts=3, max_retries=2)
    with pytest.raises(ValueError, match="attempts is 0"):
        make(app, attempts=0)


def test_assigning_one_replaces_the_other(app: Umbel) -> None:
    task = make(app, attempts=3)
    task.max_retries = 7
    assert (task.attempts, task.max_retries) == (8, 7)
    task.attempts = 2
    assert (task.attempts, task.max_retries) == (2, 1)


# dead_letter_for


@pytest.mark.option("dead_letter_for")
def test_what_is_never_retried(app: Umbel) -> None:
    task = make(app, autoretry_for=OSError, dead_letter_for=PermissionError)
    request = begin(app, task)
    assert after(task, request, FileNotFoundError()) == 180
    assert after(task, request, PermissionError()) is None


def test_not_even_where_the_task_asks_for_it(app: Umbel) -> None:
    task = make(app, dead_letter_for=(PermissionError,))
    request = begin(app, task)
    final = PermissionError("no")
    with running(task, request):
        with pytest.raises(PermissionError) as caught:
            task.retry(exc=final, countdown=1)
        assert caught.value is final
        with pytest.raises(PermissionError) as caught:
            while_handling(final, task.retry)
        assert caught.value is final
    assert request.follow_ups == []
    assert asked(task, request, exc=OSError()) == 180


# retry_max_elapsed


def test_the_first_run_travels_in_a_header(app: Umbel, clock: ManualClock) -> None:
    task = make(app, autoretry_for=ValueError, retry_backoff=Fixed(10), retry_max_elapsed=60)
    request = begin(app, task)
    clock.advance(5)
    assert after(task, request, ValueError()) == 10
    assert header(request) == NOW
    app.publisher.send(request.follow_ups, None)
    clock.advance(10)
    again = lease(app)
    again.started_at = clock.wall()
    assert (again.retries, again.headers) == (1, {FIRST_RUN: NOW})
    clock.advance(35)
    assert after(task, again, ValueError()) == 10
    assert header(again) == NOW
    clock.advance(0.1)
    assert after(task, again, ValueError()) is None


def test_the_header_is_what_json_carries(app: Umbel) -> None:
    task = make(app, autoretry_for=ValueError, retry_max_elapsed=600)
    request = begin(app, task)
    after(task, request, ValueError())
    assert json.loads(json.dumps(header(request))) == NOW


def test_without_a_budget_there_is_no_header(app: Umbel) -> None:
    task = make(app, autoretry_for=ValueError)
    request = begin(app, task)
    after(task, request, ValueError())
    assert header(request) is None


@pytest.mark.parametrize("told", [None, "soon", -5, float("nan"), [], NOW + 10**6, 10**400])
def test_a_header_that_cannot_be_counts_as_none(app: Umbel, told: object) -> None:
    task = make(app, autoretry_for=ValueError, retry_backoff=Fixed(50), retry_max_elapsed=60)
    request = begin(app, task, retries=1)
    request.headers = {FIRST_RUN: told}
    assert after(task, request, ValueError()) == 50
    assert header(request) == NOW


def test_a_requeued_dead_letter_has_its_time_again(app: Umbel, clock: ManualClock) -> None:
    task = make(app, autoretry_for=ValueError, retry_backoff=Fixed(50), retry_max_elapsed=60)
    request = begin(app, task, retries=0)
    request.headers = {FIRST_RUN: NOW - 1000}
    assert after(task, request, ValueError()) == 50
    assert header(request) == NOW


def test_self_retry_keeps_to_the_budget(app: Umbel, clock: ManualClock) -> None:
    task = make(app, retry_max_elapsed=60)
    request = begin(app, task)
    assert asked(task, request, countdown=60) == 60
    error = ValueError()
    with running(task, request):
        with pytest.raises(ValueError) as caught:
            task.retry(exc=error, countdown=61)
        assert caught.value is error
        with pytest.raises(MaxRetriesExceededError, match=r"its time \(retry_max_elapsed=60\)"):
            task.retry(eta="2027-01-15T08:01:01+00:00")


@pytest.mark.option("retry_max_elapsed")
@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.floats(1, 500),
    st.lists(st.floats(0, 200), min_size=20, max_size=20),
    st.floats(0, 100),
    st.sampled_from(["full", "equal", "none"]),
)
def test_no_run_starts_after_the_budget(
    app: Umbel, budget: float, run_times: list[float], base: float, jitter: Any
) -> None:
    app.tasks.pop("proj.t", None)
    task = make(
        app,
        autoretry_for=Busy,
        max_retries=None,
        retry_backoff=Exponential(base, jitter=jitter),
        retry_max_elapsed=budget,
    )
    clock = app.clock
    assert isinstance(clock, ManualClock)
    began, request = clock.wall(), begin(app, task)
    for run_time in run_times:
        assert clock.wall() - began <= budget + 1e-3
        clock.advance(run_time)
        delay = after(task, request, Busy(base))
        if delay is None:
            return
        (posting,) = request.follow_ups
        assert isinstance(posting.message, Message)
        app.publisher.send([posting], None)
        clock.advance(delay)
        request = lease(app)
        request.started_at = clock.wall()


def test_a_function_that_fails_ends_the_task_with_its_error(app: Umbel) -> None:
    def wrong(retries: int, exc: BaseException) -> float:
        return "soon"  # type: ignore[return-value]

    task = make(app, autoretry_for=ValueError, retry_backoff=wrong)
    request = begin(app, task)
    with running(task, request), pytest.raises(ValueError, match=r"wrong\(0, ValueError\)"):
        task.next_try(ValueError())
    assert request.follow_ups == []


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"retry_backoff": Fixed(1), "retry_jitter": False}, "jitter of its own"),
        ({"retry_backoff": Fixed(1), "retry_backoff_max": 9}, "maximum of its own"),
        ({"autoretry_for": {OSError: "often"}}, "autoretry_for gives 'often' for OSError"),
        ({"retry_max_elapsed": -1}, "retry_max_elapsed is -1"),
    ],
)
def test_wrong_options_are_refused_at_decoration(
    app: Umbel, options: dict[str, Any], word: str
) -> None:
    with pytest.raises(ValueError, match=word):
        make(app, **options)
