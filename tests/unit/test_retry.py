"""The arithmetic of retries: Celery's numbers, and its bounds under any input."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umbel.exceptions import BrokerUnavailable, Ignore, PublishUnknown, Reject, Retry
from umbel.retry import AutoRetry, RetryPolicy, backoff_delay, retries_left
from umbel.retry.policies import CeleryBackoff

factors = st.integers(1, 10_000)
maxima = st.integers(0, 100_000)
randomness = st.randoms(use_true_random=False)


def plain(retries: int, factor: int, maximum: int) -> int:
    return backoff_delay(
        retries, factor=factor, maximum=maximum, jitter=False, randrange=random.randrange
    )


def refuse(stop: int) -> int:
    raise AssertionError("drew a random number without jitter")


@pytest.mark.parametrize(
    ("factor", "maximum", "expected"),
    [
        (1, 600, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600]),
        (5, 600, [5, 10, 20, 40, 80, 160, 320, 600, 600]),
        (30, 100, [30, 60, 100, 100]),
        (7, 0, [0, 0]),
        (700, 600, [600, 600]),
    ],
)
def test_the_delays_of_the_docstring(factor: int, maximum: int, expected: list[int]) -> None:
    assert [plain(n, factor, maximum) for n in range(len(expected))] == expected


@given(st.integers(0, 60), factors, maxima)
def test_without_jitter_it_is_the_formula(retries: int, factor: int, maximum: int) -> None:
    assert plain(retries, factor, maximum) == min(maximum, factor * 2**retries)


@given(st.integers(0, 200), factors, maxima)
def test_delays_never_shrink(retries: int, factor: int, maximum: int) -> None:
    assert plain(retries, factor, maximum) <= plain(retries + 1, factor, maximum) <= maximum


@given(st.integers(0, 60), factors, maxima, randomness)
def test_jitter_stays_between_zero_and_the_plain_delay(
    retries: int, factor: int, maximum: int, rng: random.Random
) -> None:
    delay = backoff_delay(
        retries, factor=factor, maximum=maximum, jitter=True, randrange=rng.randrange
    )
    assert 0 <= delay <= plain(retries, factor, maximum)


def test_jitter_reaches_both_ends() -> None:
    rng = random.Random(1)
    drawn = {
        backoff_delay(1, factor=2, maximum=600, jitter=True, randrange=rng.randrange)
        for _ in range(200)
    }
    assert drawn == {0, 1, 2, 3, 4}


def test_no_jitter_draws_nothing() -> None:
    assert backoff_delay(3, factor=1, maximum=600, jitter=False, randrange=refuse) == 8


@given(st.integers(), factors, st.integers())
def test_numbers_from_a_broken_message_are_harmless(
    retries: int, factor: int, maximum: int
) -> None:
    assert 0 <= plain(retries, factor, maximum) <= max(0, maximum)
    assert plain(10**12, factor, 600) == 600


def test_three_retries_are_four_runs() -> None:
    runs = 1
    while retries_left(runs - 1, 3):
        runs += 1
    assert runs == 4
    assert not retries_left(0, 0)
    assert retries_left(10**9, None)


def test_wants() -> None:
    auto = AutoRetry(autoretry_for=(OSError,), dont_autoretry_for=(FileNotFoundError,))
    assert auto.wants(ConnectionError())
    assert not auto.wants(FileNotFoundError())
    assert not auto.wants(ValueError())
    assert not AutoRetry().wants(OSError())


@pytest.mark.parametrize("exc", [Ignore(), Retry("later"), Reject("no"), Reject("no", True)])
def test_what_the_task_decides_itself_is_never_retried(exc: Exception) -> None:
    assert not AutoRetry(autoretry_for=(Exception,)).wants(exc)


def test_system_exit_is_retried_only_when_named() -> None:
    assert not AutoRetry(autoretry_for=(Exception,)).wants(SystemExit())
    assert AutoRetry(autoretry_for=(SystemExit,)).wants(SystemExit())


def backoff(**options: Any) -> object:
    return AutoRetry(**options).backoff(OSError())


@pytest.mark.parametrize(
    ("given", "factor"), [(True, 1), (1, 1), (0.5, 1), (2.9, 2), (7, 7), (-3, 1)]
)
def test_factor(given: float, factor: int) -> None:
    assert backoff(retry_backoff=given) == CeleryBackoff(factor, 600, True)


@pytest.mark.parametrize("given", [False, 0, 0.0])
def test_no_backoff_leaves_it_to_the_retry_arguments(given: float) -> None:
    assert backoff(retry_backoff=given, retry_kwargs={"countdown": 9}) is None
    assert AutoRetry(retry_kwargs={"max_retries": 5}).max_retries(3) == 5
    assert AutoRetry(retry_kwargs={"max_retries": None}).max_retries(3) == 3


def test_backoff_max_is_cut_to_whole_seconds() -> None:
    policy = CeleryBackoff(1, 5, False)
    assert backoff(retry_backoff=True, retry_backoff_max=5.9, retry_jitter=False) == policy
    assert [policy.draw(n, random.Random(1)) for n in range(5)] == [1, 2, 4, 5, 5]


def test_options_are_taken_over_and_cannot_change_later() -> None:
    given_kwargs: dict[str, object] = {"max_retries": 1}
    classes: Any = [KeyError, OSError]
    auto = AutoRetry(autoretry_for=classes, retry_kwargs=given_kwargs)
    given_kwargs["max_retries"] = 2
    assert auto.autoretry_for == (KeyError, OSError)
    assert auto.retry_kwargs == {"max_retries": 1}
    single: Any = OSError
    assert AutoRetry(autoretry_for=single).autoretry_for == (OSError,)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"autoretry_for": ("OSError",)}, "'OSError'"),
        ({"autoretry_for": None}, "autoretry_for names None"),
        ({"dont_autoretry_for": (int,)}, "exception classes"),
        ({"retry_backoff": float("inf")}, "retry_backoff is inf"),
        ({"retry_backoff": "soon"}, "retry_backoff is 'soon'"),
        ({"retry_backoff_max": None}, "retry_backoff_max is None"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        AutoRetry(**options)


@pytest.mark.parametrize(
    ("policy", "waits"),
    [
        (RetryPolicy(), [0.0, 0.2, 0.4]),
        (RetryPolicy(max_retries=0), []),
        (RetryPolicy(max_retries=8), [0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.0, 1.0]),
        (RetryPolicy(max_retries=3, interval_start=5), [5, 5, 5]),
        (RetryPolicy(max_retries=3, interval_start=1, interval_step=2, interval_max=4), [1, 3, 4]),
    ],
)
def test_waits(policy: RetryPolicy, waits: list[float]) -> None:
    assert list(policy.waits()) == pytest.approx(waits)


seconds = st.floats(0, 1000)


@given(st.none() | st.integers(0, 20), seconds, seconds, seconds)
def test_waits_grow_to_their_ceiling(
    retries: int | None, start: float, step: float, top: float
) -> None:
    policy = RetryPolicy(retries, start, step, top)
    waits = list(itertools.islice(policy.waits(), 30))
    assert len(waits) == (30 if retries is None else retries)
    assert waits == sorted(waits)
    assert all(start <= wait <= max(start, top) for wait in waits)


def test_a_partial_policy_keeps_the_rest_of_its_base() -> None:
    base = RetryPolicy(max_retries=9, interval_step=3)
    assert RetryPolicy.of({"interval_start": 2}, base) == RetryPolicy(9, 2, 3)
    assert RetryPolicy.of({}) == RetryPolicy()
    assert RetryPolicy.of({"retry_errors": [OSError]}).retry_errors == (OSError,)


@pytest.mark.parametrize(
    ("named", "error", "repeated"),
    [
        (None, BrokerUnavailable(), True),
        ((), BrokerUnavailable(), True),
        (BrokerUnavailable, BrokerUnavailable(), True),
        (ValueError, BrokerUnavailable(), False),
        (None, PublishUnknown(), False),
        (PublishUnknown, PublishUnknown(), False),
    ],
)
def test_what_may_have_been_stored_is_never_sent_again(
    named: Any, error: Exception, repeated: bool
) -> None:
    assert RetryPolicy(retry_errors=named).repeats(error) is repeated


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"max_retry": 3}, "did you mean 'max_retries'"),
        ({"max_retries": -1}, "max_retries is -1"),
        ({"max_retries": 2.5}, "max_retries is 2.5"),
        ({"max_retries": True}, "max_retries is True"),
        ({"interval_step": -0.1}, "interval_step is -0.1"),
        ({"interval_max": float("nan")}, "interval_max is nan"),
        ({"retry_errors": ["OSError"]}, "retry_errors names 'OSError'"),
    ],
)
def test_a_wrong_policy_is_refused(options: dict[str, object], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        RetryPolicy.of(options)
