"""Retry policies as values: their numbers, their bounds, and what a task's options make of them."""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umbel.exceptions import Ignore
from umbel.retry import (
    AutoRetry,
    Bounds,
    Exponential,
    Fixed,
    Linear,
    Policy,
    retry_after,
)
from umbel.retry.auto import check_together, max_retries_of
from umbel.retry.plan import make_plan
from umbel.retry.policies import CeleryBackoff

NOW = 1_800_000_000.0
RNG = random.Random(1)

seconds = st.floats(0, 1e6)
jitters = st.sampled_from(["full", "equal", "none"])
policies = st.one_of(
    st.builds(Exponential, seconds, st.floats(1, 100), seconds, jitters),
    st.builds(Linear, seconds, seconds, jitters),
    st.builds(Fixed, seconds, st.none(), jitters),
    st.builds(CeleryBackoff, st.integers(1, 1000), st.integers(0, 10**6), st.booleans()),
)
retry_counts = st.integers(-5, 2000) | st.integers(2000, 2**53)
randomness = st.randoms(use_true_random=False)


class Asks(Exception):
    """An error that carries what a server asked for."""

    def __init__(self, retry_after: object = None) -> None:
        self.retry_after = retry_after


def latest(policy: Policy, count: int) -> list[float]:
    return [policy.bounds(retries).latest for retries in range(count)]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (Exponential(), [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600]),
        (Exponential(5, factor=3), [5, 15, 45, 135, 405, 600, 600]),
        (Exponential(0.5, factor=1), [0.5, 0.5, 0.5]),
        (Exponential(0), [0, 0, 0]),
        (Linear(10, maximum=35), [10, 20, 30, 35, 35]),
        (Fixed(30), [30, 30, 30]),
        (CeleryBackoff(5, 30, True), [5, 10, 20, 30]),
    ],
)
def test_the_delays_of_the_docstring(policy: Policy, expected: list[float]) -> None:
    assert latest(policy, len(expected)) == expected


@pytest.mark.parametrize(
    ("jitter", "bounds"), [("full", (0, 4, 8)), ("equal", (4, 6, 8)), ("none", (8, 8, 8))]
)
def test_jitter_spreads(jitter: Any, bounds: tuple[float, ...]) -> None:
    for policy in (Exponential(jitter=jitter), Linear(2, jitter=jitter), Fixed(8, jitter=jitter)):
        assert policy.bounds(3) == bounds
        drawn = [policy.draw(3, RNG) for _ in range(2000)]
        assert bounds[0] <= min(drawn) <= max(drawn) <= bounds[2]
        assert sum(drawn) / len(drawn) == pytest.approx(bounds[1], rel=0.1)
        assert max(drawn) - min(drawn) >= 0.9 * (bounds[2] - bounds[0])


def test_who_has_jitter_unless_told_otherwise() -> None:
    assert [each.jitter for each in (Exponential(), Linear(1), Fixed(1))] == [
        "full",
        "none",
        "none",
    ]


@given(policies, retry_counts, randomness)
def test_a_draw_lies_between_the_bounds(policy: Policy, retries: int, rng: random.Random) -> None:
    low, middle, high = policy.bounds(retries)
    assert 0 <= low <= middle <= high < math.inf
    assert low <= policy.draw(retries, rng) <= high


@given(policies, retry_counts)
def test_delays_never_shrink_and_end_at_the_maximum(policy: Policy, retries: int) -> None:
    now, then = policy.bounds(retries), policy.bounds(retries + 1)
    assert all(before <= after for before, after in zip(now, then, strict=True))
    assert then.latest <= policy.ceiling


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: Exponential(-1), "base is -1"),
        (lambda: Exponential(factor=0.5), "factor is 0.5; expected a number of times from 1"),
        (lambda: Exponential(maximum=math.inf), "maximum is inf"),
        (lambda: Exponential(jitter="half"), "jitter is 'half'; expected 'full', 'equal' or"),  # type: ignore[arg-type]
        (lambda: Exponential(True), "base is True"),
        (lambda: Linear("5"), "step is '5'"),  # type: ignore[arg-type]
        (lambda: Linear(5, jitter=None), "jitter is None"),  # type: ignore[arg-type]
        (lambda: Fixed(math.nan), "delay is nan"),
        (lambda: Fixed(10, maximum=5), "maximum is 5; expected a number of seconds from 10"),
    ],
)
def test_a_policy_that_cannot_be(make: Any, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        make()


# Retry-After


def http_date(seconds_from_now: float) -> str:
    return format_datetime(datetime.fromtimestamp(NOW + seconds_from_now, UTC), usegmt=True)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (30, 30),
        (1.5, 1.5),
        ("120", 120),
        (" 7 ", 7),
        (-5, 0),
        (timedelta(minutes=2), 120),
        (datetime.fromtimestamp(NOW + 60, UTC), 60),
        (http_date(90), 90),
        (http_date(-90), 0),
        ("Friday, 15-Jan-27 08:01:00 GMT", 60),
        ("Fri Jan 15 08:01:00 2027", 60),
        (None, None),
        ("", None),
        ("soon", None),
        ("Fri, 99 Jan 2027 08:01:00 GMT", None),
        (math.nan, None),
        (math.inf, None),
        ("inf", None),
        (10**400, None),
        (True, None),
        ([], None),
    ],
)
def test_retry_after(value: object, expected: float | None) -> None:
    assert retry_after(Asks(value), NOW) == expected


@given(st.text() | st.integers() | st.floats() | st.datetimes() | st.timedeltas() | st.binary())
def test_whatever_a_server_says_is_seconds_or_nothing(value: object) -> None:
    found = retry_after(Asks(value), NOW)
    assert found is None or 0 <= found < math.inf


class Headers(dict[str, str]):
    """Finds names in any spelling, as those of requests do."""

    def get(self, name: str, default: Any = None) -> Any:
        return {key.lower(): value for key, value in self.items()}.get(name.lower(), default)


@pytest.mark.parametrize("headers", [Headers({"RETRY-AFTER": "9"}), {"retry-after": "9"}])
def test_headers_of_a_response_or_of_the_error_itself(headers: object) -> None:
    error: Any = Exception()
    error.response = SimpleNamespace(headers=headers)
    assert retry_after(error, NOW) == 9
    direct: Any = Exception()
    direct.headers = headers
    assert retry_after(direct, NOW) == 9
    direct.retry_after = 4
    assert retry_after(direct, NOW) == 4


def test_attributes_that_raise_or_lack_what_is_looked_for() -> None:
    class Awkward(Exception):
        @property
        def response(self) -> None:
            raise RuntimeError("no response was set")

        headers = 5

    assert retry_after(Awkward(), NOW) is None
    empty: Any = Exception()
    empty.response = None
    assert retry_after(empty, NOW) is None


# What options say about one exception


def test_of_a_mapping_the_nearest_class_counts() -> None:
    near, far = Fixed(1), Fixed(2)
    auto = AutoRetry(autoretry_for={OSError: far, ConnectionError: near})
    assert auto.backoff(ConnectionResetError()) is near
    assert auto.backoff(ConnectionError()) is near
    assert auto.backoff(FileNotFoundError()) is far
    assert auto.wants(FileNotFoundError())
    assert not auto.wants(ValueError())
    assert auto.backoff(ValueError()) is None


def test_of_two_bases_the_one_that_python_looks_at_first_counts() -> None:
    class Both(ConnectionError, KeyError): ...

    class Twice(KeyError, ConnectionError): ...

    auto = AutoRetry(autoretry_for={KeyError: Fixed(1), ConnectionError: Fixed(2)})
    assert auto.backoff(Both()) == Fixed(2)
    assert auto.backoff(Twice()) == Fixed(1)


def test_a_class_of_the_mapping_wins_over_the_policy_for_the_rest() -> None:
    auto = AutoRetry(autoretry_for={OSError: Fixed(1)}, retry_backoff=Linear(5))
    assert auto.named_backoff(OSError()) == Fixed(1)
    assert auto.named_backoff(ValueError()) == Linear(5)


def test_celerys_spelling_is_no_value() -> None:
    assert AutoRetry(retry_backoff=True).named_backoff(OSError()) is None
    assert AutoRetry(retry_backoff=3).backoff(OSError()) == CeleryBackoff(3, 600, True)


def test_what_is_never_retried() -> None:
    auto = AutoRetry(autoretry_for=(OSError,), dead_letter_for=(PermissionError, ValueError))
    assert auto.wants(FileNotFoundError())
    assert not auto.wants(PermissionError())
    assert auto.is_final(UnicodeError())
    assert not auto.is_final(FileNotFoundError())
    assert not AutoRetry(
        autoretry_for={PermissionError: Fixed(1)}, dead_letter_for=(OSError,)
    ).wants(PermissionError())
    assert not AutoRetry(autoretry_for={Exception: Fixed(1)}).wants(Ignore())


def delay(
    backoff: Any, error: BaseException, retries: int = 0, rng: random.Random = RNG, **options: Any
) -> float:
    return AutoRetry(**options).delay(backoff, error, retries, rng, NOW)


@pytest.mark.parametrize(
    ("backoff", "asked", "expected"),
    [
        (Fixed(10), 30, 30),
        (Fixed(10), 3, 10),
        (Fixed(10), 10_000, 600),
        (Fixed(10, maximum=60), 10_000, 60),
        (Fixed(1000), 10_000, 1000),
        (Linear(10, maximum=50), http_date(45), 45),
        (Exponential(10, maximum=50, jitter="none"), "3600", 50),
        (lambda retries, exc: 10, 30, 30),
        (lambda retries, exc: 10, 10_000, 600),
        (lambda retries, exc: 7200, 10_000, 7200),
        (CeleryBackoff(2, 600, False), 30, 2),
    ],
)
def test_retry_after_is_the_least_up_to_the_maximum(
    backoff: Any, asked: object, expected: float
) -> None:
    assert delay(backoff, Asks(asked)) == expected


def test_of_a_function_the_maximum_is_an_option() -> None:
    assert delay(lambda retries, exc: 10, Asks(10_000), retry_backoff_max=3600) == 3600


@given(policies, st.integers(0, 50), st.floats() | st.text(max_size=5), randomness)
def test_no_retry_after_leads_beyond_the_maximum(
    policy: Policy, retries: int, asked: object, rng: random.Random
) -> None:
    found = delay(policy, Asks(asked), retries, rng)
    assert policy.bounds(retries).earliest <= found <= policy.ceiling


def test_a_function_gets_the_count_and_the_exception() -> None:
    error = Asks()
    seen = []

    def by_hand(retries: int, exc: BaseException) -> float:
        seen.append((retries, exc))
        return -retries

    assert delay(by_hand, error, 4) == 0
    assert seen == [(4, error)]


@pytest.mark.parametrize("value", [None, "soon", math.nan, math.inf])
def test_a_function_that_gives_no_seconds_is_named(value: Any) -> None:
    def wrong(retries: int, exc: BaseException) -> float:
        return value  # type: ignore[no-any-return]

    with pytest.raises(ValueError, match=r"wrong\(3, KeyError\) returned .*expected a number of s"):
        delay(wrong, KeyError(), 3)


@given(
    policies,
    st.floats(0, 1e5),
    st.lists(st.floats(0, 1e4), min_size=30, max_size=30),
    st.lists(st.none() | st.floats(0, 1e4), min_size=30, max_size=30),
    randomness,
)
def test_no_run_begins_after_the_time_budget(
    policy: Policy,
    budget: float,
    run_times: list[float],
    asked: list[float | None],
    rng: random.Random,
) -> None:
    auto = AutoRetry(retry_backoff=policy, retry_max_elapsed=budget)
    start = NOW
    for retries, (run_time, ask) in enumerate(zip(run_times, asked, strict=True)):
        assert start - NOW <= budget
        failed_at = start + run_time
        due_at = failed_at + auto.delay(policy, Asks(ask), retries, rng, failed_at)
        if not auto.in_time(due_at, NOW):
            assert due_at - NOW > budget
            break
        start = due_at


def test_without_a_budget_there_is_always_time() -> None:
    assert AutoRetry().in_time(NOW + 10**9, NOW)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"autoretry_for": {OSError: 5}}, "autoretry_for gives 5 for OSError; expected a policy"),
        ({"autoretry_for": {OSError: Fixed}}, "expected a policy"),
        ({"autoretry_for": {"OSError": Fixed(5)}}, "autoretry_for names 'OSError'"),
        ({"dead_letter_for": ["KeyError"]}, "dead_letter_for names 'KeyError'"),
        ({"retry_backoff": Exponential}, "retry_backoff is .*Exponential.*; expected .* a policy"),
        ({"retry_max_elapsed": -1}, "retry_max_elapsed is -1"),
        ({"retry_max_elapsed": "1h"}, "retry_max_elapsed is '1h'"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        AutoRetry(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"attempts": 4, "max_retries": 3},
        {"attempts": 4, "max_retries": None},
        {"attempts": 4, "retry_kwargs": {"max_retries": 3}},
        {"retry_backoff": Fixed(1), "retry_jitter": True},
        {"retry_backoff": Fixed(1), "retry_backoff_max": 60},
        {"retry_backoff": lambda retries, exc: 1, "retry_jitter": False},
    ],
)
def test_options_of_which_one_would_have_no_effect(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"leave .*out"):
        check_together(options, "task 't'")


@pytest.mark.parametrize(
    "options",
    [
        {"attempts": None, "max_retries": 3},
        {"attempts": 4, "retry_kwargs": {"countdown": 3}},
        {"retry_backoff": True, "retry_jitter": True, "retry_backoff_max": 60},
        {"retry_backoff": lambda retries, exc: 1, "retry_backoff_max": 60},
    ],
)
def test_options_that_go_together(options: dict[str, Any]) -> None:
    check_together(options, "task 't'")


def test_attempts_count_all_runs() -> None:
    assert [max_retries_of(attempts) for attempts in (1, 4)] == [0, 3]


@pytest.mark.parametrize("attempts", [0, -1, 2.0, True, "3"])
def test_attempts_are_whole_and_at_least_one(attempts: object) -> None:
    with pytest.raises(ValueError, match=r"attempts is .* from 1"):
        max_retries_of(attempts)


# Plans


def test_a_plan_without_jitter_is_the_sum_of_its_delays() -> None:
    plan = make_plan(Exponential(jitter="none").bounds, max_retries=5, max_elapsed=None, limit=20)
    assert [step.delay.latest for step in plan.steps] == [1, 2, 4, 8, 16]
    assert [step.since for step in plan.steps] == [(s, s, s) for s in (1, 3, 7, 15, 31)]
    assert (plan.total, plan.more) == (Bounds(31, 31, 31), False)


def test_a_plan_ends_with_the_time() -> None:
    plan = make_plan(Exponential(jitter="none").bounds, max_retries=5, max_elapsed=10, limit=20)
    assert [step.number for step in plan.steps] == [1, 2, 3]
    assert (plan.total, plan.counts, plan.at_most) == (Bounds(7, 7, 7), (3, 3, 3), 7)
    plan = make_plan(Fixed(11).bounds, max_retries=5, max_elapsed=10, limit=20)
    assert (plan.steps, plan.total, plan.at_most) == ((), Bounds(0, 0, 0), 0)


def test_with_jitter_each_case_ends_by_itself() -> None:
    plan = make_plan(Linear(10, jitter="equal").bounds, max_retries=4, max_elapsed=40, limit=20)
    assert [step.since for step in plan.steps] == [
        (5, 7.5, 10),
        (15, 22.5, 30),
        (30, None, None),
    ]
    assert (plan.total, plan.counts, plan.at_most) == (Bounds(30, 22.5, 30), (3, 2, 2), 40)


def test_what_has_no_end_is_cut() -> None:
    plan = make_plan(Fixed(2).bounds, max_retries=None, max_elapsed=None, limit=3)
    assert (len(plan.steps), plan.total.latest, plan.more) == (3, 6, True)
    assert not make_plan(Fixed(2).bounds, max_retries=3, max_elapsed=None, limit=3).more
    assert make_plan(Fixed(2).bounds, max_retries=4, max_elapsed=None, limit=3).more
    assert not make_plan(Fixed(2).bounds, max_retries=None, max_elapsed=5, limit=3).more


@given(policies, st.integers(0, 20), st.none() | st.floats(0, 1e5), randomness)
def test_no_draw_takes_longer_than_planned(
    policy: Policy, max_retries: int, budget: float | None, rng: random.Random
) -> None:
    plan = make_plan(policy.bounds, max_retries=max_retries, max_elapsed=budget, limit=20)
    total, made = 0.0, 0
    for retries in range(max_retries):
        drawn = policy.draw(retries, rng)
        if budget is not None and total + drawn > budget:
            break
        total, made = total + drawn, made + 1
    assert made <= len(plan.steps)
    assert total <= plan.at_most * (1 + 1e-9)
    if budget is None:
        assert plan.total.latest == plan.at_most
        assert plan.total.earliest * (1 - 1e-9) <= total
