"""The long form: ``python -m tests.chaos.run [redis|sqlite] [--tasks N] [--kills N] …``"""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.chaos import campaign
from tests.chaos.campaign import Plan
from tests.servers import Redis


def main(arguments: Sequence[str] | None = None) -> int:
    """0 where nothing was lost, doubled, stranded or left behind, else 1."""
    options = parse(arguments)
    plan = Plan(options.tasks, options.kills, options.seconds, options.seed)
    print(f"{options.broker}: {plan}", flush=True)
    server = durable() if options.broker == "redis" else None
    try:
        with tempfile.TemporaryDirectory(prefix="umbel-chaos-") as folder:
            report = campaign.run(plan, Path(folder), server, lambda line: print(line, flush=True))
    finally:
        if server is not None:
            server.remove()
    print("\n".join(report.lines()))
    return int(bool(report.faults))


def durable() -> Redis:
    """A server that answers once what it was told is on the disk."""
    server = Redis("--appendfsync", "always")
    server.start()
    return server


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./dev chaos",
        description="Run tasks while workers, their processes and the server are killed at random, "
        "and count what became of each.",
    )
    parser.add_argument("broker", nargs="?", default="redis", choices=["redis", "sqlite"])
    parser.add_argument("--tasks", type=int, default=5000)
    parser.add_argument(
        "--kills", type=int, default=60,
        help="of whole workers; as many processes are killed, and the server a quarter as often",
    )  # fmt: skip
    parser.add_argument("--seconds", type=float, default=120.0, help="that these are spread over")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10_000))
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
