"""Eight processes on one file: no `database is locked`, everything settled exactly once."""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter
from pathlib import Path

from umbel.brokers.sqlite import SqliteBroker
from umbel.message import How, Message, Result, Settlement
from umbel.ports import BrokerOptions
from umbel.stores.sqlite import SqliteStore
from umbel.testing.contract.rig import PATIENCE, QUEUE, posting

CROWD = 8
EACH = 400


def _work(path: Path, n: int) -> list[str]:
    """Publish, one message at a time, and take, 16 at a time, until nothing has come for 1 s."""
    broker = SqliteBroker(path, BrokerOptions())
    broker.open()
    owner = f"run{n}#1"
    broker.enlist(f"run{n}", owner, b"")
    taken: list[str] = []
    settlements: list[Settlement] = []
    number = 0
    while True:
        number += 1
        if number <= EACH:
            broker.publish([posting(f"{n}-{number}")])
        turn = broker.turn(owner, number, queues=[QUEUE], settlements=settlements, limit=16)
        assert not turn.lost
        settlements = []
        for delivery in turn.deliveries:
            assert isinstance(delivery.message, Message)
            taken.append(delivery.message.id)
            result = Result(delivery.message.id, "SUCCESS", owner.encode())
            settlements.append(Settlement(delivery.lease, How.ACK, result=result))
        if number >= EACH and not settlements and not broker.wait([QUEUE], 1.0):
            broker.close()
            return taken


def test_eight_processes_settle_everything_exactly_once(tmp_path: Path) -> None:
    path = tmp_path / "umbel.db"
    broker = SqliteBroker(path, BrokerOptions())
    broker.open()
    broker.declare([QUEUE])
    started = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(CROWD) as pool:
        calls = [pool.apply_async(_work, (path, n)) for n in range(CROWD)]
        counts = Counter(task_id for call in calls for task_id in call.get(3 * PATIENCE))
    assert time.monotonic() - started < 2 * PATIENCE
    wanted = [f"{n}-{number}" for n in range(CROWD) for number in range(1, EACH + 1)]
    assert counts == Counter(wanted)
    store = SqliteStore(path)
    store.open()
    assert None not in store.get(wanted)
    stats = broker.queues()[0]
    assert (stats.ready, stats.leased, stats.lost) == (0, 0, 0)
    store.close()
    broker.close()
