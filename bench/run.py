"""Measures Umbel and others: ``python -m bench.run [--peers NAMES] [--write] [WORKLOAD]…``

In each round every contender has its turn at every workload, one after the other, so that what
disturbs the machine meets all of them alike. One that fails is said to have failed, and why, and
the rest goes on.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from bench import calls, drain, enqueue, idle, memory, million, roundtrip, start, together, waiting
from bench.bed import Ground
from bench.contenders import CONTENDERS, Contender, chosen
from bench.environments import OWN
from bench.figures import DoesNotAddUp, Measured, Workload
from bench.page import Run, page, text
from bench.server import NoServer, RedisServer

MODULES = (drain, enqueue, roundtrip, waiting, memory, million, start, calls, idle, together)
WORKLOADS: Mapping[str, Workload] = {module.WORKLOAD.name: module.WORKLOAD for module in MODULES}
RESULTS = Path(__file__).with_name("RESULTS.md")


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    # So that what was started is ended, as on Ctrl-C.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        run = measure(options)
    except NoServer as error:
        print(f"No figures: {error}", file=sys.stderr)
        return 1
    print(text(run))
    if options.write:
        RESULTS.write_text(page(run), encoding="utf-8")
        print(f"\nWritten to {RESULTS.name}.")
    failed = {contender for _, contender in run.measured.failures}
    return int(any(each.name in failed for each in options.peers if each.library == "umbel"))


def measure(options: argparse.Namespace) -> Run:
    """Raises `NoServer`."""
    workloads = [WORKLOADS[name] for name in options.workloads or WORKLOADS]
    measured = Measured()
    with (
        tempfile.TemporaryDirectory(prefix="umbel-bench-") as folder,
        RedisServer(Path(folder)) as server,
    ):
        for number in range(1, options.rounds + 1):
            for workload in workloads:
                for contender in options.peers:
                    if workload.name in contender.workloads:
                        place = Path(folder) / str(number) / workload.name / contender.name
                        place.mkdir(parents=True)
                        turn = Ground(contender, server, place, options.tasks, number)
                        take(workload, turn, measured)
        version = server.version
    return Run(workloads, options.peers, options.rounds, options.tasks, version, measured)


def take(workload: Workload, ground: Ground, measured: Measured) -> None:
    """One contender's turn at one workload."""
    who, began = ground.contender.name, time.monotonic()
    try:
        values = workload.measure(ground)
    except Exception as error:  # whatever a peer does, the others are measured
        reason = str(error) if isinstance(error, DoesNotAddUp) else repr(error)
        measured.failures[workload.name, who] = f"{reason} (round {ground.round})"
        values = {}
    for name, value in values.items():
        measured.add(name, who, ground.round, value)
    shown = [
        f"{figure.name} {figure.text(values[figure.name])}"
        for figure in workload.figures
        if figure.name in values
    ]
    failure = measured.failures.get((workload.name, who), "")
    result = "; ".join(shown) or failure
    turn = f"round {ground.round}, {workload.name}, {who} ({time.monotonic() - began:.0f} s)"
    print(f"{turn}: {result}", file=sys.stderr, flush=True)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench",
        description="Measure Umbel beside others, each in an environment of its own, which is made "
        "when it is first needed.",
        epilog="Workloads: " + "; ".join(f"{w.name}: {w.what}" for w in WORKLOADS.values()) + ".",
    )
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help="default: all")
    parser.add_argument(
        "--peers",
        default="",
        metavar="NAMES",
        help="libraries or configurations, with commas between them; default all: "
        + ", ".join(each.name for each in CONTENDERS),
    )
    parser.add_argument("--rounds", type=int, default=3, help="default: 3")
    parser.add_argument("--tasks", type=int, default=20_000, help="default: 20,000")
    parser.add_argument(
        "--hiredis",
        action="store_true",
        help="give every peer hiredis, which speeds redis-py up, and which Umbel's installation "
        "brings and theirs don't",
    )
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}; needs all")
    options = parser.parse_args(arguments)
    for name in options.workloads:
        if name not in WORKLOADS:
            parser.error(f"there is no workload {name!r}; there are: {', '.join(WORKLOADS)}")
    for name in ("rounds", "tasks"):
        if (value := getattr(options, name)) < 1:
            parser.error(f"--{name} {value}: expected 1 or more")
    if options.write and (options.workloads or options.peers):
        parser.error("--write needs all workloads and peers, so that the page holds one run")
    try:
        peers: list[Contender] = chosen([name for name in options.peers.split(",") if name])
    except ValueError as error:
        parser.error(f"--peers: {error}")
    options.peers = [
        replace(each, has_hiredis=options.hiredis and each.library not in OWN) for each in peers
    ]
    return options


if __name__ == "__main__":
    sys.exit(main())
