"""How often, and after which waits, a publish is repeated that a broker did not take."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Final

from umbel.exceptions import BrokerUnavailable
from umbel.retry.checks import ExceptionTypes, exception_types, finite, mapping

BOUND: Final = 2.0
"""Seconds within which a publish by the default policy has said yes or no."""


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
    """Of the errors that may be repeated only these; None or none named: all of them."""

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
            if finite(name, getattr(self, name)) < 0:
                raise ValueError(
                    f"{name} is {getattr(self, name)!r}; expected a number of seconds from 0"
                )
        if self.retry_errors is not None:
            types = exception_types("retry_errors", self.retry_errors)
            object.__setattr__(self, "retry_errors", types)

    @classmethod
    def of(cls, options: Mapping[str, object], base: RetryPolicy | None = None) -> RetryPolicy:
        """A policy from ``{"max_retries": …, …}``; what is missing is taken from `base`.

        Raises `ValueError` for an unknown key, naming the nearest one.
        """
        options = mapping("retry_policy", options, "{'max_retries': 3, 'interval_start': 0}")
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

    def repeats(self, error: BaseException) -> bool:
        """Whether it is tried again after `error`: only where nothing can have been stored."""
        return isinstance(error, BrokerUnavailable) and (
            not self.retry_errors or isinstance(error, self.retry_errors)
        )

    def waits(self) -> Iterator[float]:
        """The wait before each repetition; ends when there are no more."""
        ceiling = max(self.interval_max, self.interval_start)
        numbers = itertools.count() if self.max_retries is None else range(self.max_retries)
        for number in numbers:
            yield min(ceiling, self.interval_start + number * self.interval_step)


class Tries:
    """The tries of one publish, which began at `began` (monotonic seconds, as all times here).

    With the default policy all is over within `BOUND`: no try begins that would end later if it
    took as long as the longest before it. Another policy may say more.
    """

    __slots__ = ("_began", "_longest", "_policy", "_waits")

    def __init__(self, policy: RetryPolicy | None, began: float) -> None:
        self._policy = policy
        self._began = began
        self._longest = 0.0
        self._waits: Iterator[float] | None = None

    def pause_after(self, error: BaseException, tried: float, now: float) -> float | None:
        """Seconds until the next try, after one from `tried` to `now`; None: there is none."""
        policy = self._policy
        if policy is None or not policy.repeats(error):
            return None
        self._waits = self._waits or policy.waits()
        wait = next(self._waits, None)
        self._longest = max(self._longest, now - tried)
        if wait is None or (
            policy == _DEFAULT and now + wait + self._longest > self._began + BOUND
        ):
            return None
        return wait


_DEFAULT: Final = RetryPolicy()
