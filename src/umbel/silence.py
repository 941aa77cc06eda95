"""Runs that the broker still takes for alive, and that give no sign of life.

A run is declared dead by somebody else's heartbeat. Where the last worker has died there is nobody
to declare it, so who looks has to count for himself.
"""

from __future__ import annotations

import json
from typing import Any

from umbel.ports import RunRecord


def told(record: RunRecord) -> dict[str, Any]:
    """What a run has told of itself: ``hostname``, ``lease_time`` and more; empty for strangers."""
    try:
        known = json.loads(record.info)
    except ValueError:
        return {}
    return known if isinstance(known, dict) else {}


def node_name(record: RunRecord) -> str:
    """The worker's name; its run's id where that can't be read."""
    name = told(record).get("hostname")
    return name if isinstance(name, str) else record.run


def answers(record: RunRecord) -> bool:
    """Whether the worker obeys control commands, so that it answers when it is asked."""
    return told(record).get("answers") is True


def silent_for(record: RunRecord, now: float) -> float | None:
    """Seconds since the last sign of life, where that is longer than the run's lease; else None.

    `now` is in unix seconds.
    """
    lease_time = told(record).get("lease_time")
    silence = now - record.seen_at
    if isinstance(lease_time, (int, float)) and silence > lease_time:
        return silence
    return None
