"""What Umbel is to reach, and whether a run has: ``TARGETS``, one row for each figure.

Each row has two columns: what the first release has to reach, and the goal. All ratios are those of
one run: within each round, of what was measured one after the other; then their median.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, Protocol

from bench.figures import Measured

PEERS: Final = ("dramatiq", "taskiq", "taskiq-list", "huey", "huey-threads", "huey-notify")
"""Those on Redis but Celery, each row's best of which is meant by "the best peer"."""
BEST: Final = "the best peer"


@dataclass(frozen=True, slots=True)
class Verdict:
    """`is_reached` is None where something that it needs was not measured."""

    text: str
    is_reached: bool | None


class Bound(Protocol):
    """One condition, on the figure of this name."""

    @property
    def figure(self) -> str: ...

    def judge(self, measured: Measured, subject: str) -> Verdict: ...


@dataclass(frozen=True, slots=True)
class Less:
    """`factor` times less than another's. `its`: the other's figure, where it is another one."""

    figure: str
    other: str
    factor: float
    its: str = ""

    def judge(self, measured: Measured, subject: str) -> Verdict:
        found, name = _beside(
            measured, self.figure, subject, self.other, self.its or self.figure, less=True
        )
        wanted = f"{name} / {self.factor:g}" if self.factor != 1 else f"{name} or less"
        if found is None:
            return Verdict(f"{wanted}: not measured", None)
        return Verdict(f"{wanted}: is / {_number(1 / found)}", 1 / found >= self.factor)


@dataclass(frozen=True, slots=True)
class More:
    """`factor` times more than another's."""

    figure: str
    other: str
    factor: float

    def judge(self, measured: Measured, subject: str) -> Verdict:
        found, name = _beside(measured, self.figure, subject, self.other, self.figure, less=False)
        wanted = f"{self.factor:g} x {name}"
        if found is None:
            return Verdict(f"{wanted}: not measured", None)
        return Verdict(f"{wanted}: is {_number(found)} x", found >= self.factor)


@dataclass(frozen=True, slots=True)
class Within:
    """At most `factor` times as much as another's."""

    figure: str
    other: str
    factor: float

    def judge(self, measured: Measured, subject: str) -> Verdict:
        wanted = f"{self.factor:g} x {self.other}"
        ratios = measured.ratios(self.figure, subject, self.other, self.figure)
        if not ratios:
            return Verdict(f"{wanted}: not measured", None)
        return Verdict(f"{wanted}: is {_number(median(ratios))} x", median(ratios) <= self.factor)


@dataclass(frozen=True, slots=True)
class Limit:
    """`at_most`, or `at_least`, in the figure's unit."""

    figure: str
    unit: str
    at_most: float | None = None
    at_least: float | None = None

    def judge(self, measured: Measured, subject: str) -> Verdict:
        values = measured.of(self.figure, subject)
        if self.at_most is not None:
            wanted = f"{self.at_most:,g} {self.unit} or less"
        else:
            wanted = f"{self.at_least:,g} {self.unit} or more"
        if not values:
            return Verdict(f"{wanted}: not measured", None)
        found = median(values)
        is_reached = (self.at_most is None or found <= self.at_most) and (
            self.at_least is None or found >= self.at_least
        )
        return Verdict(f"{wanted}: is {_number(found)}", is_reached)


def _beside(
    measured: Measured, figure: str, subject: str, other: str, its: str, *, less: bool
) -> tuple[float | None, str]:
    """The subject's value by the other's, and who the other is: of the peers the one that the
    subject does worst beside."""
    found = {
        name: median(ratios)
        for name in (PEERS if other == BEST else (other,))
        if (ratios := measured.ratios(figure, subject, name, its))
    }
    if not found:
        return None, other
    worst = (max if less else min)(found, key=lambda name: found[name])
    return found[worst], worst


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


@dataclass(frozen=True, slots=True)
class Target:
    """One row. It has to hold for each of the `subjects`."""

    title: str
    first: tuple[Bound, ...]
    goal: tuple[Bound, ...] = ()
    subjects: tuple[str, ...] = ("umbel",)

    def judge(self, bounds: Sequence[Bound], measured: Measured) -> Verdict:
        """A column's, of all subjects together."""
        verdicts = [bound.judge(measured, who) for who in self.subjects for bound in bounds]
        reached = {verdict.is_reached for verdict in verdicts}
        whole = False if False in reached else None if None in reached else True
        texts = [
            (f"{who}: " if len(self.subjects) > 1 else "")
            + "; ".join(bound.judge(measured, who).text for bound in bounds)
            for who in self.subjects
        ]
        return Verdict(" | ".join(texts), whole)


_BOTH: Final = ("umbel", "umbel-late")

TARGETS: Final[Sequence[Target]] = (
    Target(
        "drain, worker CPU per task, results ignored",
        (Less("drain, ignored, CPU", "celery", 25), Less("drain, ignored, CPU", BEST, 4)),
        (
            Less("drain, ignored, CPU", "celery", 50),
            Less("drain, ignored, CPU", BEST, 8),
            Within("drain, ignored, CPU", "floor-fuller", 3),
        ),
        _BOTH,
    ),
    Target(
        "drain, worker CPU per task, results stored",
        (Less("drain, stored, CPU", "celery", 25), Less("drain, stored, CPU", BEST, 5)),
        (
            Less("drain, stored, CPU", "celery", 40),
            Within("drain, stored, CPU", "floor-fuller", 2),
        ),
        _BOTH,
    ),
    Target(
        "the same with -l INFO, as the documentation of both starts a worker, results ignored",
        (Less("drain, ignored, CPU", "celery-info", 25),),
        (Less("drain, ignored, CPU", "celery-info", 50),),
        ("umbel-info",),
    ),
    Target(
        "the same with -l INFO, results stored",
        (Less("drain, stored, CPU", "celery-info", 25),),
        (Less("drain, stored, CPU", "celery-info", 40),),
        ("umbel-info",),
    ),
    Target(
        "drain rate, results ignored",
        (More("drain, ignored, rate", "celery", 15), More("drain, ignored, rate", BEST, 3)),
        (More("drain, ignored, rate", "celery", 30),),
        _BOTH,
    ),
    Target(
        "drain rate, results stored",
        (More("drain, stored, rate", "celery", 15), More("drain, stored, rate", BEST, 3)),
        (More("drain, stored, rate", "celery", 30),),
        _BOTH,
    ),
    Target(
        "producer CPU, one delay()",
        (
            Less("enqueue, one by one, CPU", "celery", 7),
            Less("enqueue, one by one, CPU", "huey", 1),
        ),
        (Within("enqueue, one by one, CPU", "floor", 1.1),),
    ),
    Target(
        "producer CPU in bulk, per task, beside Celery's plain call",
        (Less("enqueue, in bulk, CPU", "celery", 30, "enqueue, one by one, CPU"),),
        (Less("enqueue, in bulk, CPU", "celery", 50, "enqueue, one by one, CPU"),),
    ),
    Target(
        "round trip, p50",
        (Less("round trip, p50", "celery", 3), Less("round trip, p50", BEST, 1)),
        (Less("round trip, p50", "celery", 6), Less("round trip, p50", BEST, 2)),
        _BOTH,
    ),
    Target(
        "round trip, p99",
        (Less("round trip, p99", "celery", 3), Less("round trip, p99", BEST, 1)),
        (Less("round trip, p99", "celery", 6), Less("round trip, p99", BEST, 2)),
        _BOTH,
    ),
    Target(
        "2,000 async tasks of 100 ms, two processes",
        (Limit("waiting tasks", "s", at_most=0.5),),
        (Limit("waiting tasks", "s", at_most=0.25),),
    ),
    Target(
        "1,000,000 tasks due later",
        (Limit("a million due later, memory", "MB more", at_most=10),),
        (
            Limit("a million due later, memory", "MB more", at_most=10),
            Limit("a million due later, lateness max", "ms late", at_most=50),
        ),
    ),
    Target(
        "memory idle, 2 pool processes",
        (Less("memory, idle", "celery", 2),),
        (Less("memory, idle", BEST, 1),),
    ),
    Target(
        "import of an app module",
        (Limit("start, import", "ms", at_most=150),),
        (Limit("start, import", "ms", at_most=80),),
    ),
    Target(
        "calls per message, publish and consume, memory broker",
        (
            Limit("calls, publish", "calls", at_most=40),
            Limit("calls, consume", "calls", at_most=90),
        ),
        (
            Limit("calls, publish", "calls", at_most=25),
            Limit("calls, consume", "calls", at_most=60),
        ),
    ),
    Target(
        "idle worker, CPU",
        (Limit("idle worker, CPU", "% of a core", at_most=1),),
        subjects=("umbel", "umbel-sqlite"),
    ),
    Target(
        "SQLite: drain rate",
        (
            More("drain, ignored, rate", "huey-sqlite", 1),
            More("drain, stored, rate", "huey-sqlite", 1),
            Limit("drain, stored, rate", "per second", at_least=2000),
        ),
        subjects=("umbel-sqlite",),
    ),
    Target(
        "SQLite: sent while the worker runs",
        (Limit("sent while it runs, rate", "per second", at_least=2000),),
        subjects=("umbel-sqlite",),
    ),
    Target(
        "SQLite: round trip, p50",
        (Limit("round trip, p50", "ms", at_most=10),),
        subjects=("umbel-sqlite",),
    ),
)
