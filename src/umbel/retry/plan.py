"""What a task's retries add up to: the delays before each, and their sums."""

from __future__ import annotations

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

    `total` are the seconds from the first run to the last retry; no draw of the jitter comes
    below its first or above its last. `endless`: there are more retries than were asked for, and
    `total` is that of the ones shown.
    """

    steps: tuple[Step, ...]
    total: Bounds
    endless: bool


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
    budget = float("inf") if max_elapsed is None else max_elapsed
    sums, alive, steps = [0.0, 0.0, 0.0], [True, True, True], list[Step]()
    longest, drawn = 0.0, False
    wanted = limit if max_retries is None else min(limit, max_retries)
    for number in range(wanted):
        delay = bounds(number)
        for path, seconds in enumerate(delay):
            alive[path] = alive[path] and sums[path] + seconds <= budget
            sums[path] += seconds if alive[path] else 0.0
        if not alive[0]:
            break
        drawn |= delay.earliest != delay.latest
        longest += delay.latest
        since = [total if lives else None for total, lives in zip(sums, alive, strict=True)]
        steps.append(Step(number + 1, delay, (since[0], since[1], since[2])))
    # Where a path of longest delays ends early, other draws come closer to the limit.
    latest = min(longest, budget) if drawn else sums[2]
    more = max_retries is None or max_retries > limit
    return Plan(tuple(steps), Bounds(sums[0], sums[1], latest), more and len(steps) == limit)
