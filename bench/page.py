"""What a run has found, as text for a terminal and as RESULTS.md."""

from __future__ import annotations

import os
import platform
import sqlite3
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.contenders import Contender
from bench.environments import NoEnvironment, versions_of
from bench.figures import Measured, Workload, spread
from bench.targets import TARGETS, Target, Verdict

from umbel import __version__

_METHOD = """\
In each, every library has its turn at every workload, one after the other, on the same server.
Shown are medians, with the least and the greatest. Wall-clock rates are only good for comparison
within one run; CPU (user + system, of all of a worker's processes) is steadier.

Each library has two worker processes, the versions and the promise that stand below, and its
default log level or, where that writes lines for each task, warnings only. Each is installed as its
documentation says for Redis; Umbel's installation brings hiredis, the others' don't, and
`--hiredis` gives it to all.

After each drain every id is accounted for: run once; of Umbel's also: nothing waits, is held or
dead, no key is left, each result is stored. A run that doesn't add up has no figures.
[Performance](../docs/performance.md) says how to read this."""
_WORDS = {True: "reached", False: "NOT REACHED", None: "not measured"}


@dataclass(frozen=True, slots=True)
class Run:
    """What was run, and what came of it."""

    workloads: Sequence[Workload]
    contenders: Sequence[Contender]
    rounds: int
    tasks: int
    redis: str
    """The server's version."""
    measured: Measured

    def rows(self, workload: Workload) -> Iterator[tuple[Contender, list[str]]]:
        """Of each contender that takes part: its cells, or the one reason why it has none."""
        for contender in self.contenders:
            if workload.name not in contender.workloads:
                continue
            if failure := self.measured.failures.get((workload.name, contender.name)):
                yield contender, [f"failed: {failure}"]
                continue
            values = [self.measured.of(figure.name, contender.name) for figure in workload.figures]
            pairs = zip(workload.figures, values, strict=True)
            yield contender, [spread(figure, found) if found else "" for figure, found in pairs]

    def targets(self) -> Iterator[tuple[Target, Verdict, Verdict]]:
        """Those of which anything was measured, with the verdicts on both columns."""
        for target in TARGETS:
            figures = {bound.figure for bound in (*target.first, *target.goal)}
            if any(self.measured.of(f, who) for f in figures for who in target.subjects):
                yield (
                    target,
                    target.judge(target.first, self.measured),
                    target.judge(target.goal, self.measured),
                )


def text(run: Run) -> str:
    """For a terminal."""
    lines = []
    for workload in run.workloads:
        lines += ["", f"{workload.name}: {workload.what}"]
        for contender, cells in run.rows(workload):
            lines += [f"  {contender.name}: {contender.guarantee}"]
            if len(cells) != len(workload.figures):
                lines += [f"    {cells[0]}"]
                continue
            lines += [
                f"    {figure.name}: {cell} {figure.unit}"
                for figure, cell in zip(workload.figures, cells, strict=True)
                if cell
            ]
    lines += ["", "Targets"]
    for target, first, goal in run.targets():
        lines += [f"  {target.title}"]
        lines += [f"    first  {_WORDS[first.is_reached]:12}  {first.text}"]
        if target.goal:
            lines += [f"    goal   {_WORDS[goal.is_reached]:12}  {goal.text}"]
    return "\n".join(lines)


def page(run: Run) -> str:
    """RESULTS.md."""
    options = "" if run.rounds == 3 else f" --rounds {run.rounds}"
    if any(contender.has_hiredis for contender in run.contenders):
        options += " --hiredis"
    lines = [
        "# Figures",
        "",
        f"Written by `./dev bench --write{options}` on {time.strftime('%Y-%m-%d', time.gmtime())}: "
        f"Umbel {__version__}, {platform.python_implementation()} {platform.python_version()}, "
        f"Redis {run.redis} on loopback without persistence, SQLite {sqlite3.sqlite_version}, "
        f"{platform.system()} {platform.machine()}, {len(os.sched_getaffinity(0))} processors.",
        "",
        f"Rounds: {run.rounds}. {_METHOD}",
        "",
        "## Targets",
        "",
        "| figure | first | goal |",
        "|---|---|---|",
    ]
    for target, first, goal in run.targets():
        cells = [_verdict(first), _verdict(goal) if target.goal else ""]
        lines += [f"| {target.title} | " + " | ".join(cells) + " |"]
    for workload in run.workloads:
        lines += ["", f"## {workload.name.capitalize()}", "", f"{_sentence(workload.what)}", ""]
        heads = [f"{figure.name}, {figure.unit}" for figure in workload.figures]
        lines += ["| | delivery | " + " | ".join(heads) + " |", "|---|---|" + "---|" * len(heads)]
        for contender, cells in run.rows(workload):
            cells += [""] * (len(heads) - len(cells))
            who = [_title(contender, run.tasks, workload), contender.delivery]
            lines += ["| " + " | ".join([*who, *cells]) + " |"]
    lines += ["", "## Who", "", "| | command | what it promises |", "|---|---|---|"]
    for contender in run.contenders:
        command = contender.worker.replace(f" {contender.module}", " app")
        lines += [f"| {contender.name} | `{command}` | {contender.guarantee} |"]
    lines += ["", "Versions:", ""]
    lines += [f"- {library}: {_versions(library)}" for library in _libraries(run.contenders)]
    return "\n".join([*lines, ""])


def _verdict(verdict: Verdict) -> str:
    return f"**{_WORDS[verdict.is_reached]}**; " + verdict.text.replace(" | ", "<br>")


def _sentence(words: str) -> str:
    return words[0].upper() + words[1:] + "."


def _title(contender: Contender, tasks: int, workload: Workload) -> str:
    if not workload.is_scaled:
        return contender.name
    return f"{contender.name} ({round(tasks * contender.share):,} tasks)"


def _libraries(contenders: Sequence[Contender]) -> list[str]:
    return list(dict.fromkeys(contender.environment for contender in contenders))


def _versions(library: str) -> str:
    try:
        return versions_of(library)
    except NoEnvironment as error:
        print(f"{library}: {error}", file=sys.stderr)
        return f"not installed: {error}"
