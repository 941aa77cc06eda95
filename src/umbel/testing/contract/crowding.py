"""Contract of concurrency: eight threads, and eight processes, run everything exactly once."""

from __future__ import annotations

import multiprocessing
import pickle
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from umbel.clock import SYSTEM
from umbel.message import How, Settlement
from umbel.ports import BrokerOptions
from umbel.testing.contract.rig import (
    PATIENCE,
    QUEUE,
    Background,
    Connect,
    Driver,
    DriverSuite,
    Rig,
    posting,
)

CROWD = 8
EACH = 60


class CrowdingContract(DriverSuite):
    def test_eight_threads_with_a_driver_each_take_everything_once(self, live: Rig) -> None:
        crowd = [
            Background(partial(work, live.another(), f"run{n}", f"run{n}#1", n))
            for n in range(CROWD)
        ]
        _assert_exactly_once([worker.result(3 * PATIENCE) for worker in crowd])
        assert live.stats().ready == live.stats().leased == 0

    def test_eight_threads_on_one_driver_object_take_everything_once(self, live: Rig) -> None:
        crowd = [Background(partial(work, live.driver, "run", f"run#{n}", n)) for n in range(CROWD)]
        _assert_exactly_once([worker.result(3 * PATIENCE) for worker in crowd])
        assert live.stats().ready == live.stats().leased == 0

    def test_eight_processes_take_everything_once(self, live: Rig) -> None:
        if not live.driver.features.processes:
            # Carried into another process it would be an empty broker that swallows messages.
            with pytest.raises(TypeError):
                pickle.dumps(live.driver)
            return
        context = multiprocessing.get_context("spawn")
        with context.Pool(CROWD) as pool:
            calls = [
                pool.apply_async(_work_elsewhere, (self.connect, live.where, n))
                for n in range(CROWD)
            ]
            taken = [call.get(6 * PATIENCE) for call in calls]
        _assert_exactly_once(taken)
        assert live.stats().ready == live.stats().leased == 0


def work(driver: Driver, run: str, owner: str, n: int) -> list[str]:
    """Publish `EACH` messages, with one follow-up each; take until the whole crowd's are done.

    Every fifth delivery is requeued once. Returns the ids acknowledged.
    """
    driver.enlist(run, owner, b"")
    done: list[str] = []
    pending: list[Settlement] = []
    number = 0
    deadline = time.monotonic() + 3 * PATIENCE
    while time.monotonic() < deadline:
        if number < EACH:
            driver.publish([posting(f"{n}-{number}", priority=number % 3)])
        number += 1
        turn = driver.turn(owner, number, queues=[QUEUE], settlements=pending, limit=5)
        assert not turn.lost
        assert not turn.refused
        pending = []
        for count, delivery in enumerate(turn.deliveries):
            task_id = getattr(delivery.message, "id", "")
            if count == 4 and not delivery.redelivered:
                pending.append(Settlement(delivery.lease, How.REQUEUE))
                continue
            done.append(task_id)
            follow = () if task_id.endswith("+") else (posting(task_id + "+"),)
            pending.append(Settlement(delivery.lease, How.ACK, follow))
        if number >= EACH and not pending and not _left(driver):
            return done
    raise AssertionError(f"{owner} was not done in time")


def _left(driver: Driver) -> int:
    """Messages that are published and not settled."""
    stats = [queue for queue in driver.queues() if queue.name == QUEUE]
    return sum(queue.ready + queue.leased + queue.lost + queue.delayed for queue in stats)


def _work_elsewhere(connect: Connect, where: Path, n: int) -> list[str]:
    driver = connect(where, BrokerOptions(), SYSTEM)
    driver.open()
    try:
        return work(driver, f"run{n}", f"run{n}#1", n)
    finally:
        driver.close()


def _assert_exactly_once(taken: Sequence[object]) -> None:
    counts: Counter[str] = Counter()
    for each in taken:
        assert isinstance(each, list)
        counts.update(each)
    wanted = {f"{n}-{m}{end}" for n in range(CROWD) for m in range(EACH) for end in ("", "+")}
    assert set(counts) == wanted
    assert {name: count for name, count in counts.items() if count != 1} == {}
