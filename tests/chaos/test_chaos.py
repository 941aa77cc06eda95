"""The short form of ``./dev chaos``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.brokers.redis_keys import kinds
from tests.chaos import campaign
from tests.chaos.campaign import Plan
from tests.chaos.run import durable
from tests.servers import Redis

SHORT = Plan(tasks=600, kills=6, seconds=12.0, seed=7)


@pytest.fixture
def server() -> Iterator[Redis]:
    made = durable()
    yield made
    made.remove()


def test_kills_of_processes_workers_and_the_server(server: Redis, tmp_path: Path) -> None:
    """Each task ends once, late ones run to success, and the keys are what they were."""
    report = campaign.run(SHORT, tmp_path, server, print)
    print("\n".join(report.lines()))
    assert report.faults == []
    assert report.kills == {"worker": 6, "process": 6, "server": 2}
    assert sum(report.ends.values()) == SHORT.tasks
    assert report.ends["late SUCCESS"] == report.ends["again SUCCESS"] == SHORT.tasks // 3


def test_a_key_that_nobody_has_written_down_is_found() -> None:
    found = kinds(["umbel:n", "umbel:{celery}:due", "umbel:{other}:due", "celery"], ["celery"])
    assert found == {
        "umbel:n": 1,
        "umbel:{<queue>}:due": 1,
        "<queue>": 1,
        "unknown: umbel:{other}:due": 1,
    }
