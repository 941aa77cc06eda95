"""What a pool process makes of one message, step by step in this process."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from umbel import Umbel, shared_task
from umbel.message import Delivery
from umbel.outcome import End
from umbel.shared import SHARED
from umbel.worker.executor import Executor
from umbel.worker.lanes import MainLane


@pytest.fixture
def app() -> Iterator[Umbel]:
    before = len(SHARED)
    with Umbel("proj", broker=f"memory://{uuid.uuid4().hex}", set_as_current=False) as made:
        yield made
    del SHARED[before:]


def executor_of(app: Umbel) -> Executor:
    return Executor(
        app, hostname="w@here", is_revoked=lambda _: False, store_started=lambda _: None
    )


def take(app: Umbel) -> Delivery:
    run = uuid.uuid4().hex
    app.broker.enlist(run, f"{run}#1", b"{}")
    (delivery,) = app.broker.turn(f"{run}#1", 1, queues=["celery"], begin=1, limit=1).deliveries
    return delivery


def test_a_shared_task_that_came_after_the_start_is_known(app: Umbel) -> None:
    executor = executor_of(app)

    @shared_task(name="lib.late")
    def late(number: int) -> int:
        return number + 1

    app.send_task("lib.late", (1,))
    execution = executor.prepare(take(app))
    assert execution.end is None
    ended = executor.run(execution, MainLane(0))
    assert (ended.end, ended.value) == (End.RETURNED, 2)


def test_a_task_keeps_the_options_that_held_when_its_message_was_read(app: Umbel) -> None:
    @app.task
    def ignoring() -> None: ...

    app.conf.task_ignore_result = True
    ignoring.delay()
    execution = executor_of(app).prepare(take(app))
    app.conf.task_ignore_result = False
    assert execution.task_options is not None
    assert execution.task_options.ignore_result
