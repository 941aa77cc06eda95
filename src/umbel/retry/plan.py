"""What a task's retries add up to: the delays before each, and their sums."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from umbel.retry.policies import Bounds


@dataclass(frozen=True, slots=True)
class Step:
    """One retry, from 1: the delay before it, and the time since the first run when it starts.

    All in seconds; the runs themselves are taken to need none. A time of `since` is None where
    the retry isn't made any more, since `retry_max_elapsed` is over.
    """

    number: int
    delay: Bounds
    since: tuple[float | None, float | None, float | None]


@dataclass(frozen=True, slots=True)
class Plan:
    """All retries of one policy.

    `total` are the seconds from the first run to the last retry, if all delays are the shortest,
    the mean, or the longest ones; `at_most` is more than any of them where a time budget ends the
    retries, since shorter delays then leave time for one more. `more`: there are more retries
    than were asked for, and the totals are those of the ones shown.
    """

    steps: tuple[Step, ...]
    total: Bounds
    at_most: float
    more: bool

    @property
    def counts(self) -> tuple[int, int, int]:
        """How many retries are made in each of the three cases of `total`."""
        earliest, expected, latest = (
            sum(step.since[case] is not None for step in self.steps) for case in range(3)
        )
        return earliest, expected, latest


def make_plan(
    bounds: Callable[[int], Bounds],
    *,
    max_retries: int | None,
    max_elapsed: float | None,
    limit: int,
) -> Plan:
    """The first `limit` retries, the n-th (from 0) after a delay of ``bounds(n)``.

    ``Exponential(jitter="none")`` and 5 retries: delays 1, 2, 4, 8, 16, total 31; with a
    `max_elapsed` of 10: delays 1, 2, 4, total 7.
    """
    budget = math.inf if max_elapsed is None else max_elapsed
    sums, alive, steps = [0.0, 0.0, 0.0], [True, True, True], list[Step]()
    longest, drawn = 0.0, False
    for number in range(limit if max_retries is None else min(limit, max_retries)):
        delay = bounds(number)
        for case, seconds in enumerate(delay):
            alive[case] = alive[case] and sums[case] + seconds <= budget
            sums[case] += seconds if alive[case] else 0.0
        if not alive[0]:
            break
        longest += delay.latest
        drawn |= delay.earliest != delay.latest
        since = [total if lives else None for total, lives in zip(sums, alive, strict=True)]
        steps.append(Step(number + 1, delay, (since[0], since[1], since[2])))
    return Plan(
        steps=tuple(steps),
        total=Bounds(*sums),
        at_most=min(longest, budget) if drawn else sums[2],
        more=(max_retries is None or max_retries > limit) and len(steps) == limit,
    )
