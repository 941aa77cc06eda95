"""Measures Umbel: ``python bench/run.py [--rounds N] [--write] [WORKLOAD]…``

Each round runs every workload once, so that what disturbs the machine meets all of them alike;
the figures are medians over the rounds. A run whose messages don't all add up prints no figure.
"""

from __future__ import annotations

import argparse
import os
import platform
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

# As a script, only this file's own folder can be imported from.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import calls, delayed, drain, enqueue, idle, importing, roundtrip, together, waiting
from bench.figures import DoesNotAddUp, Figure, Row, Workload

from umbel import __version__

WORKLOADS: Mapping[str, Workload] = {
    module.WORKLOAD.name: module.WORKLOAD
    for module in (drain, together, enqueue, roundtrip, waiting, delayed, idle, importing, calls)
}
RESULTS = Path(__file__).with_name("RESULTS.md")
HEADINGS = ("figure", "median", "least", "greatest", "target", "")

Values = dict[str, list[float]]


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    chosen = [WORKLOADS[name] for name in options.workloads or WORKLOADS]
    try:
        values = measure(chosen, options.rounds)
    except DoesNotAddUp as error:
        print(f"No figures: {error}", file=sys.stderr)
        return 1
    rows = [Row(f, tuple(values[f.name])) for workload in chosen for f in workload.figures]
    print()
    print(as_text([HEADINGS, *(row.cells for row in rows)]))
    if options.write:
        RESULTS.write_text(page(chosen, rows, options.rounds), encoding="utf-8")
        print(f"\nWritten to {RESULTS.name}.")
    return 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench/run.py",
        description="Measure Umbel on the SQLite broker: defaults, 2 pool processes.",
        epilog="Workloads: " + "; ".join(f"{w.name}: {w.what}" for w in WORKLOADS.values()) + ".",
    )
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help="default: all")
    parser.add_argument("--rounds", type=int, default=3, help="default: 3")
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}; needs all")
    options = parser.parse_args(arguments)
    for name in options.workloads:
        if name not in WORKLOADS:
            parser.error(f"there is no workload {name!r}; there are: {', '.join(WORKLOADS)}")
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: expected 1 or more")
    if options.write and options.workloads:
        parser.error("--write needs all workloads, so that the page holds one run; name none")
    return options


def measure(chosen: Iterable[Workload], rounds: int) -> Values:
    """The values of each figure, one for each round."""
    values: Values = {}
    for number in range(1, rounds + 1):
        for workload in chosen:
            print(f"round {number}: {workload.name}", file=sys.stderr, flush=True)
            with tempfile.TemporaryDirectory(prefix="umbel-bench-") as folder:
                measured = workload.measure(Path(folder))
            for figure in workload.figures:
                values.setdefault(figure.name, []).append(measured[figure.name])
                _say(figure, measured[figure.name])
    return values


def _say(figure: Figure, value: float) -> None:
    print(f"  {figure.name}: {figure.text(value)} {figure.unit}", file=sys.stderr, flush=True)


def as_text(rows: Sequence[Sequence[str]]) -> str:
    """A table for a terminal: the first column to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if 0 < index < 4 else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def page(chosen: Iterable[Workload], rows: Iterable[Row], rounds: int) -> str:
    """RESULTS.md."""
    lines = [
        "# Figures",
        "",
        f"Written by `./dev bench --write{'' if rounds == 3 else f' --rounds {rounds}'}` on "
        f"{time.strftime('%Y-%m-%d', time.gmtime())}: Umbel {__version__}, "
        f"{platform.python_implementation()} {platform.python_version()}, "
        f"SQLite {sqlite3.sqlite_version}, {platform.system()} {platform.machine()}, "
        f"{len(os.sched_getaffinity(0))} processors.",
        "",
        f"The broker is one SQLite file (`sqlite:///`, synchronous NORMAL: survives the death of "
        f"any process), the worker is `umbel worker -c 2` (of *waiting*, as it says) with every "
        f"setting at its default. Medians of {rounds} alternating rounds, with the least and the "
        f"greatest. After each drain every id is accounted for: run once, nothing left "
        f"waiting, held or dead; a run that doesn't add up has no figures. CPU is "
        f"user + system time of the whole process tree; memory is PSS.",
        "",
        "| " + " | ".join(HEADINGS) + " |",
        "|---|---:|---:|---:|---|---|",
        *("| " + " | ".join(row.cells) + " |" for row in rows),
        "",
        "What each row measures (`./dev bench NAME` runs one):",
        "",
        *(f"- **{workload.name}**: {workload.what}." for workload in chosen),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
