"""When a failed execution is tried again, and how long a refused publish waits.

All of it is arithmetic: randomness is passed in, and nothing here waits.

A task's retries, with Celery's formula (``retry_backoff=True`` means a factor of 1)::

    delay = min(retry_backoff_max, factor * 2 ** retries)
    with jitter: a whole number drawn evenly from 0 … delay, both included

First delays in seconds, retries 0, 1, 2, … (600 is the default maximum):

=========================  ==================================================
factor 1, maximum 600      1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600, …
factor 5, maximum 600      5, 10, 20, 40, 80, 160, 320, 600, 600, …
factor 30, maximum 100     30, 60, 100, 100, …
=========================  ==================================================

With jitter these are the largest values, and the mean is half of each. ``max_retries=3`` allows
3 retries, so 4 runs.
"""

from __future__ import annotations

import difflib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import cast

from umbel.exceptions import TaskPredicate

Randrange = Callable[[int], int]
"""Draws a whole number from 0 … n - 1, as `random.Random.randrange` does."""

ExceptionTypes = tuple[type[BaseException], ...]


def retries_left(retries: int, max_retries: int | None) -> bool:
    """Whether one more retry is allowed after `retries` made so far; None allows any number."""
    return max_retries is None or retries < max_retries


def backoff_delay(
    retries: int, *, factor: int, maximum: int, jitter: bool, randrange: Randrange
) -> int:
    """Seconds until the next run, after `retries` retries made so far (0 at the first failure).

    Factor 2, maximum 600: 2, 4, 8, … 512, 600. A negative maximum counts as 0; a negative
    `retries`, which only a broken message carries, as 0.
    """
    ceiling = max(0, maximum)
    # A message from a stranger may say "retries": 10**9; 2**that would eat all memory.
    doublings = min(max(0, retries), ceiling.bit_length())
    delay = max(0, min(ceiling, factor * 2**doublings))
    return randrange(delay + 1) if jitter else delay


@dataclass(frozen=True, slots=True)
class AutoRetry:
    """A task's options for retrying without being asked to.

    Lists and single classes are taken for `autoretry_for` and `dont_autoretry_for`, and kept as
    tuples. Raises `ValueError` for what isn't an exception class and for a number that can't be
    one of seconds.
    """

    autoretry_for: ExceptionTypes = ()
    dont_autoretry_for: ExceptionTypes = ()
    retry_kwargs: Mapping[str, object] = field(default_factory=dict)
    retry_backoff: bool | float = False
    """False: no backoff; True: factor 1; a number: the factor in seconds, cut to whole ones."""
    retry_backoff_max: float = 600
    retry_jitter: bool = True

    def __post_init__(self) -> None:
        for name in ("autoretry_for", "dont_autoretry_for"):
            object.__setattr__(self, name, _exception_types(name, getattr(self, name)))
        object.__setattr__(self, "retry_kwargs", dict(self.retry_kwargs))
        _finite("retry_backoff", self.retry_backoff)
        _finite("retry_backoff_max", self.retry_backoff_max)

    def wants(self, exc: BaseException) -> bool:
        """Whether `exc` leads to a retry that the task didn't ask for.

        `Ignore`, `Reject` and `Retry` never do, even with ``autoretry_for=(Exception,)``: by
        raising one, the task has said itself how the execution ends.
        """
        if isinstance(exc, (TaskPredicate, *self.dont_autoretry_for)):
            return False
        return isinstance(exc, self.autoretry_for)

    @property
    def factor(self) -> int:
        """Seconds before the first retry, when there is backoff: whole, at least 1."""
        return int(max(1.0, float(self.retry_backoff)))

    def countdown(self, retries: int, randrange: Randrange) -> int | None:
        """Seconds until the next run by backoff; None: there is none, other options decide."""
        if not self.retry_backoff:
            return None
        return backoff_delay(
            retries,
            factor=self.factor,
            maximum=int(self.retry_backoff_max),
            jitter=self.retry_jitter,
            randrange=randrange,
        )

    def arguments(self, retries: int, randrange: Randrange) -> dict[str, object]:
        """The keyword arguments for ``task.retry(exc=exc, …)``: backoff replaces a countdown."""
        countdown = self.countdown(retries, randrange)
        if countdown is None:
            return dict(self.retry_kwargs)
        return {**self.retry_kwargs, "countdown": countdown}


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a refused publish is repeated, and after which waits, in seconds.

    The n-th wait (from 0) is ``interval_start + n * interval_step``, at most `interval_max` (or
    `interval_start`, where that is larger). The default, which is that of
    ``task_publish_retry_policy``, tries 4 times in all and waits 0, 0.2 and 0.4 s in between.
    ``max_retries=None`` repeats for ever, ``0`` never.
    """

    max_retries: int | None = 3
    interval_start: float = 0.0
    interval_step: float = 0.2
    interval_max: float = 1.0
    retry_errors: ExceptionTypes | None = None
    """Repeat only after these errors; None leaves the choice to the publisher."""

    def __post_init__(self) -> None:
        if self.max_retries is not None and (
            isinstance(self.max_retries, bool)
            or not isinstance(self.max_retries, int)
            or self.max_retries < 0
        ):
            raise ValueError(
                f"max_retries is {self.max_retries!r}; expected a whole number from 0, "
                "or None to repeat for ever"
            )
        for name in ("interval_start", "interval_step", "interval_max"):
            if _finite(name, getattr(self, name)) < 0:
                raise ValueError(
                    f"{name} is {getattr(self, name)!r}; expected a number of seconds from 0"
                )
        if self.retry_errors is not None:
            types = _exception_types("retry_errors", self.retry_errors)
            object.__setattr__(self, "retry_errors", types)

    @classmethod
    def of(cls, options: Mapping[str, object], base: RetryPolicy | None = None) -> RetryPolicy:
        """A policy from ``{"max_retries": …, …}``; what is missing is taken from `base`.

        Raises `ValueError` for an unknown key, naming the nearest one.
        """
        known = [each.name for each in fields(cls)]
        values = {name: getattr(base or cls(), name) for name in known}
        for key in options:
            if key not in values:
                nearest = difflib.get_close_matches(str(key), known, n=1, cutoff=0.0)
                raise ValueError(
                    f"a retry policy has no option {key!r}; did you mean {nearest[0]!r}? "
                    f"Known: {', '.join(known)}"
                )
        return cls(**{**values, **options})

    def waits(self) -> Iterator[float]:
        """The wait before each repetition; ends when there are no more."""
        ceiling = max(self.interval_max, self.interval_start)
        numbers = itertools.count() if self.max_retries is None else range(self.max_retries)
        for number in numbers:
            yield min(ceiling, self.interval_start + number * self.interval_step)


def _exception_types(name: str, value: object) -> ExceptionTypes:
    items = tuple(value) if isinstance(value, Iterable) else (value,)
    for item in items:
        if not (isinstance(item, type) and issubclass(item, BaseException)):
            raise ValueError(f"{name} names {item!r}; expected exception classes")
    return cast(ExceptionTypes, items)


def _finite(name: str, value: object) -> float:
    try:
        number = float(cast(float, value))
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{name} is {value!r}; expected a number of seconds")
    return number
