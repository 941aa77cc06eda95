"""The heart beside runs of other lease times."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from umbel.brokers.sqlite import SqliteBroker
from umbel.message import Message, Posting
from umbel.ports import Beat, BrokerOptions
from umbel.worker.heart import Heart
from umbel.worker.scoreboard import Scoreboard

SHORT = 0.3


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Scoreboard]:
    scoreboard = Scoreboard.create("long", 1, "sqlite:test", tmp_path)
    yield scoreboard
    scoreboard.close()


@pytest.mark.filterwarnings("ignore::umbel.exceptions.NoWorkerYet")
def test_a_dead_run_of_a_short_lease_is_found_beside_a_worker_of_a_long_one(
    tmp_path: Path, board: Scoreboard
) -> None:
    short = SqliteBroker(tmp_path / "b.db", BrokerOptions(lease_time=SHORT))
    long = SqliteBroker(tmp_path / "b.db", BrokerOptions(lease_time=30.0))
    replies: list[Beat] = []
    short.open()
    long.open()
    short.declare(["work"])
    headers = {"id": "a", "task": "t"}
    short.publish([Posting(Message(b"", "utf-8", "text/plain", headers, {}), routing_key="work")])
    short.enlist("short", "short#1", b"")
    assert short.turn("short#1", 1, queues=["work"], limit=1).deliveries
    long.enlist("long", None, b"")
    heart = Heart(long, "long", board, 30.0, replies.append)
    heart.beat()
    heart.start()
    try:
        deadline = time.monotonic() + 10
        while not any(reply.reclaimed for reply in tuple(replies)):
            assert time.monotonic() < deadline, "the dead run is never taken for dead"
            time.sleep(0.01)
    finally:
        heart.stop()
        short.close()
        long.close()
