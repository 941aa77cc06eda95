"""What a workload is and what its figures are: plain values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured quantity. `at_least` or `at_most` is the target, where there is one."""

    name: str
    unit: str
    at_least: float | None = None
    at_most: float | None = None
    digits: int = 0

    def text(self, value: float) -> str:
        return f"{value:,.{self.digits}f}"

    @property
    def target(self) -> str:
        if self.at_least is not None:
            return f"{self.text(self.at_least)} or more"
        if self.at_most is not None:
            return f"{self.text(self.at_most)} or less"
        return ""

    def verdict(self, value: float) -> str:
        """``reached`` or ``missed``, with the ratio of value to target; empty without a target."""
        if self.at_least is not None:
            return _verdict(value >= self.at_least, value / self.at_least)
        if self.at_most is not None:
            return _verdict(value <= self.at_most, value / self.at_most)
        return ""


def _verdict(reached: bool, ratio: float) -> str:
    return f"{'reached' if reached else 'missed'} ({ratio:.2f}x)"


@dataclass(frozen=True, slots=True)
class Workload:
    """One thing to measure. `measure` gets an empty folder and gives one value per figure."""

    name: str
    what: str
    figures: tuple[Figure, ...]
    measure: Callable[[Path], Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class Row:
    """One figure with the values of all rounds."""

    figure: Figure
    values: tuple[float, ...]

    @property
    def cells(self) -> tuple[str, ...]:
        """Figure, median, least, greatest, target, verdict."""
        figure, middle = self.figure, median(self.values)
        return (
            f"{figure.name}, {figure.unit}",
            figure.text(middle),
            figure.text(min(self.values)),
            figure.text(max(self.values)),
            figure.target,
            figure.verdict(middle),
        )


class DoesNotAddUp(Exception):
    """A run that lost, repeated or left something: it has no figures."""
