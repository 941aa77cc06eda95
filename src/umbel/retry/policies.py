"""Retry policies: values that say how long to wait before the next try.

The longest delays, in seconds, after 0, 1, 2, … retries made so far:

==============================  ==================================================
``Exponential()``               1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600, …
``Exponential(5, factor=3)``    5, 15, 45, 135, 405, 600, 600, …
``Linear(10, maximum=35)``      10, 20, 30, 35, 35, …
``Fixed(30)``                   30, 30, 30, …
==============================  ==================================================

Jitter makes of each a random delay, so that what failed together doesn't come back together:

==========  ======================  ====
jitter      drawn evenly from       mean
==========  ======================  ====
``full``    0 to the delay          1/2
``equal``   half to the delay       3/4
``none``    the delay               1
==========  ======================  ====

Source: https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, Protocol

from umbel.retry.checks import number_from

Jitter = Literal["full", "equal", "none"]
Randrange = Callable[[int], int]
"""Draws a whole number from 0 … n - 1, as `random.Random.randrange` does."""

MAXIMUM: Final = 600


class Random(Protocol):
    """What is drawn from: a `random.Random`, or the module `random`."""

    def random(self) -> float:
        """A number from 0 up to 1, without 1."""
        ...

    def randrange(self, stop: int, /) -> int:
        """A whole number from 0 to ``stop - 1``."""
        ...


class Bounds(NamedTuple):
    """Seconds: at the earliest, on average, at the latest."""

    earliest: float
    expected: float
    latest: float


class Policy(ABC):
    """How long to wait before the next try. `retries` counts those made so far, from 0."""

    __slots__ = ()

    @property
    @abstractmethod
    def ceiling(self) -> float:
        """Seconds to which a server's ``Retry-After`` can lift a delay."""

    @abstractmethod
    def bounds(self, retries: int) -> Bounds:
        """Between which seconds `draw` lies."""

    @abstractmethod
    def draw(self, retries: int, random: Random) -> float:
        """Seconds until the next run."""


@dataclass(frozen=True, slots=True)
class Exponential(Policy):
    """`base` seconds, then each time `factor` times as long, at most `maximum`.

    ``min(maximum, base * factor ** retries)``. Raises `ValueError` for values that can't be.
    """

    base: float = 1
    factor: float = 2
    maximum: float = MAXIMUM
    jitter: Jitter = "full"

    def __post_init__(self) -> None:
        number_from("base", self.base, 0)
        number_from("factor", self.factor, 1, "times")
        number_from("maximum", self.maximum, 0)
        _check_jitter(self.jitter)

    @property
    def ceiling(self) -> float:
        return self.maximum

    def longest(self, retries: int) -> float:
        """The delay without jitter."""
        try:
            return min(self.maximum, self.base * float(self.factor) ** max(0, retries))
        except OverflowError:
            return self.maximum if self.base else 0.0

    def bounds(self, retries: int) -> Bounds:
        return _spread(self.longest(retries), self.jitter)

    def draw(self, retries: int, random: Random) -> float:
        return _drawn(self.bounds(retries), random)


@dataclass(frozen=True, slots=True)
class Linear(Policy):
    """`step` seconds, then each time `step` longer, at most `maximum`.

    ``min(maximum, step * (retries + 1))``. Raises `ValueError` for values that can't be.
    """

    step: float
    maximum: float = MAXIMUM
    jitter: Jitter = "none"

    def __post_init__(self) -> None:
        number_from("step", self.step, 0)
        number_from("maximum", self.maximum, 0)
        _check_jitter(self.jitter)

    @property
    def ceiling(self) -> float:
        return self.maximum

    def longest(self, retries: int) -> float:
        """The delay without jitter."""
        try:
            return min(self.maximum, self.step * (max(0, retries) + 1))
        except OverflowError:
            return self.maximum if self.step else 0.0

    def bounds(self, retries: int) -> Bounds:
        return _spread(self.longest(retries), self.jitter)

    def draw(self, retries: int, random: Random) -> float:
        return _drawn(self.bounds(retries), random)


@dataclass(frozen=True, slots=True)
class Fixed(Policy):
    """Always `delay` seconds. `maximum` limits a ``Retry-After``; None: 600, or a longer `delay`.

    Raises `ValueError` for values that can't be.
    """

    delay: float
    maximum: float | None = None
    jitter: Jitter = "none"

    def __post_init__(self) -> None:
        number_from("delay", self.delay, 0)
        if self.maximum is not None:
            number_from("maximum", self.maximum, self.delay)
        _check_jitter(self.jitter)

    @property
    def ceiling(self) -> float:
        return max(MAXIMUM, self.delay) if self.maximum is None else self.maximum

    def bounds(self, retries: int) -> Bounds:
        return _spread(self.delay, self.jitter)

    def draw(self, retries: int, random: Random) -> float:
        return _drawn(self.bounds(retries), random)


@dataclass(frozen=True, slots=True)
class CeleryBackoff(Policy):
    """Celery's ``retry_backoff=True`` (a factor of 1) or number, with its jitter.

    ``min(maximum, factor * 2 ** retries)``; with jitter a whole number drawn evenly from 0 to that,
    both included.
    """

    factor: int
    maximum: int
    jitter: bool

    @property
    def ceiling(self) -> float:
        return max(0, self.maximum)

    def bounds(self, retries: int) -> Bounds:
        longest = self._whole(retries, False, int)
        return Bounds(0, longest / 2, longest) if self.jitter else Bounds(*[longest] * 3)

    def draw(self, retries: int, random: Random) -> int:
        return self._whole(retries, self.jitter, random.randrange)

    def _whole(self, retries: int, jitter: bool, randrange: Randrange) -> int:
        return backoff_delay(
            retries, factor=self.factor, maximum=self.maximum, jitter=jitter, randrange=randrange
        )


def retries_left(retries: int, max_retries: int | None) -> bool:
    """Whether one more retry is allowed after `retries` made so far; None allows any number.

    3 allow 3 retries, so 4 runs.
    """
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


def _check_jitter(jitter: object) -> None:
    if jitter not in ("full", "equal", "none"):
        raise ValueError(f"jitter is {jitter!r}; expected 'full', 'equal' or 'none'")


def _spread(longest: float, jitter: Jitter) -> Bounds:
    match jitter:
        case "full":
            return Bounds(0.0, longest / 2, longest)
        case "equal":
            return Bounds(longest / 2, longest * 0.75, longest)
        case _:
            return Bounds(longest, longest, longest)


def _drawn(bounds: Bounds, random: Random) -> float:
    earliest, _, latest = bounds
    if earliest == latest:
        return latest
    # Rounding may lift the sum above the latest.
    return min(latest, earliest + (latest - earliest) * random.random())
