"""Sending only, by one process: one call after the other, and in bulk. No worker runs."""

from __future__ import annotations

from collections.abc import Mapping

from bench.bed import Ground
from bench.figures import DoesNotAddUp, Figure, Workload

BEFORE = 100
"""Calls before those that are measured, so that what is done once is done."""


def measure(ground: Ground) -> Mapping[str, float]:
    values = _send(ground, "send", "one by one")
    if ground.contender.has_bulk:
        values |= _send(ground, "send_in_bulk", "in bulk")
    return values


def _send(ground: Ground, function: str, kind: str) -> dict[str, float]:
    bed = ground.bed(stored=False)
    with bed.sender() as sender:
        sender.call(function, "noop", range(-BEFORE, 0))
        answer = sender.call(function, "noop", range(bed.count))
        if (waiting := bed.waiting()) != BEFORE + bed.count:
            raise DoesNotAddUp(f"{BEFORE + bed.count} messages were sent, {waiting} wait")
    return {
        f"enqueue, {kind}, CPU": answer["cpu"] / bed.count * 1e6,
        f"enqueue, {kind}, rate": bed.count / answer["wall"],
    }


WORKLOAD = Workload(
    "enqueue",
    "calls of a no-op task by one process, no worker running",
    tuple(
        figure
        for kind in ("one by one", "in bulk")
        for figure in (
            Figure(f"enqueue, {kind}, CPU", "µs per call"),
            Figure(f"enqueue, {kind}, rate", "calls per second", is_rate=True),
        )
    ),
    measure,
    is_scaled=True,
)
