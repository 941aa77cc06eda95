"""What a workload is, what its figures are, and what a run has measured: plain values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.bed import Ground


class DoesNotAddUp(Exception):
    """A run that lost, repeated or left something, or didn't work at all: it has no figures."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured quantity. Less of it is better, but of a `rate`."""

    name: str
    unit: str
    digits: int = 0
    is_rate: bool = False

    def text(self, value: float) -> str:
        return f"{value:,.{self.digits}f}"


@dataclass(frozen=True, slots=True)
class Workload:
    """One thing to measure. `measure` gives one value per figure that the contender has."""

    name: str
    what: str
    figures: tuple[Figure, ...]
    measure: Callable[[Ground], Mapping[str, float]]
    is_scaled: bool = False
    """Whether ``--tasks`` and a contender's share say how many tasks it has."""


@dataclass(slots=True)
class Measured:
    """What a run has found: values by figure, contender and round; and what has failed, and why."""

    values: dict[tuple[str, str], dict[int, float]] = field(default_factory=dict)
    failures: dict[tuple[str, str], str] = field(default_factory=dict)
    """By workload and contender: the last reason."""

    def add(self, figure: str, contender: str, number: int, value: float) -> None:
        self.values.setdefault((figure, contender), {})[number] = value

    def of(self, figure: str, contender: str) -> list[float]:
        return list(self.values.get((figure, contender), {}).values())

    def ratios(self, figure: str, one: str, other: str, its: str) -> list[float]:
        """One's `figure` by the other's `its`, within each round that has both."""
        above = self.values.get((figure, one), {})
        below = self.values.get((its, other), {})
        return [above[number] / below[number] for number in above if below.get(number)]


def spread(figure: Figure, values: Sequence[float]) -> str:
    """The median and, where there are several, least and greatest."""
    middle = figure.text(median(values))
    if len(values) == 1:
        return middle
    return f"{middle} ({figure.text(min(values))} to {figure.text(max(values))})"
