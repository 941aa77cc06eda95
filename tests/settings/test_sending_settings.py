"""Settings of what is sent and of what is kept, each changed for an app on the memory broker."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.api.looking import only, waiting
from tests.cli.helpers import bury

from umbel import Umbel
from umbel.clock import ManualClock
from umbel.exceptions import ImproperlyConfigured

pytestmark = pytest.mark.filterwarnings("ignore::umbel.exceptions.NoWorkerYet")


# Where messages go


@pytest.mark.setting("task_default_queue")
def test_the_default_queue(app: Umbel) -> None:
    app.conf.task_default_queue = "mine"
    app.send_task("a")
    assert only(app, "mine").task == "a"
    assert waiting(app) == []


@pytest.mark.setting("task_default_priority")
@pytest.mark.parametrize(("default", "priority"), [(None, 0), (7, 7)])
def test_the_default_priority(app: Umbel, default: int | None, priority: int) -> None:
    app.conf.task_default_priority = default
    app.send_task("a")
    app.send_task("b", priority=3)
    assert {message.task: message.properties["priority"] for message in waiting(app)} == {
        "a": priority,
        "b": 3,
    }


# What messages are


@pytest.mark.setting("task_protocol")
def test_messages_are_of_protocol_2(app: Umbel) -> None:
    """There is no other to choose: version 1 went with Celery 4."""
    app.conf.task_protocol = 2
    app.send_task("a", [1])
    assert only(app).headers["task"] == "a"
    args, kwargs, embed = json.loads(only(app).body)
    assert (args, kwargs, set(embed)) == ([1], {}, {"callbacks", "errbacks", "chain", "chord"})
    with pytest.raises(ImproperlyConfigured, match="version 1 went with Celery 4"):
        app.conf.update(task_protocol=1)


@pytest.mark.setting("task_repr_maxlevels")
@pytest.mark.parametrize(("levels", "text"), [(3, "[[[[...]]]]"), (5, "[[[['deep']]]]")])
def test_the_depth_of_shown_arguments(app: Umbel, levels: int, text: str) -> None:
    app.conf.task_repr_maxlevels = levels
    app.send_task("a", [[[["deep"]]]])
    assert only(app).headers["argsrepr"] == text


@pytest.mark.setting("task_default_delivery_mode")
@pytest.mark.parametrize(("mode", "number"), [(2, 2), ("persistent", 2), ("transient", 1), (1, 1)])
def test_the_delivery_mode(app: Umbel, mode: Any, number: int) -> None:
    app.conf.update(task_default_delivery_mode=mode)
    app.send_task("a")
    app.send_task("b", delivery_mode="persistent")
    app.send_task("c", delivery_mode=1)
    modes = {message.task: message.properties["delivery_mode"] for message in waiting(app)}
    assert modes == {"a": number, "b": 2, "c": 1}


@pytest.mark.parametrize("mode", [0, 3, True, "durable"])
def test_a_delivery_mode_that_there_is_not(app: Umbel, mode: object) -> None:
    with pytest.raises(ValueError, match="expected 2"):
        app.send_task("a", delivery_mode=mode)  # type: ignore[arg-type]  # what it refuses
    assert waiting(app) == []


@pytest.mark.setting("task_eta_in_broker")
@pytest.mark.parametrize("in_broker", [True, False])
def test_what_is_due_later(app: Umbel, clock: ManualClock, in_broker: bool) -> None:
    """In the broker it waits until it is due; else it travels at once, with its `eta`."""
    app.conf.task_eta_in_broker = in_broker
    app.send_task("a", countdown=60)
    (queue,) = app.broker.queues()
    assert (queue.ready, queue.delayed) == ((0, 1) if in_broker else (1, 0))
    clock.advance(61)
    assert only(app).headers["eta"] is not None


# What is kept


def letters(app: Umbel, clock: ManualClock, sizes: list[int]) -> list[str]:
    """The dead letters that are kept of these, 10 s apart, whose bodies have about these sizes."""
    for number, size in enumerate(sizes):
        app.send_task("a", ["x" * size], task_id=f"{number}")
        bury(app, f"{number}")
        clock.advance(10)
    app.broker.dead_prune()
    return sorted(letter.id or "" for letter in app.dead.list())


@pytest.mark.setting("dead_letters_max_count")
@pytest.mark.parametrize(("most", "kept"), [(2, ["2", "3"]), (10, ["0", "1", "2", "3"])])
def test_so_many_dead_letters_are_kept(
    app: Umbel, clock: ManualClock, most: int, kept: list[str]
) -> None:
    app.conf.dead_letters_max_count = most
    assert letters(app, clock, [1] * 4) == kept


@pytest.mark.setting("dead_letters_max_age")
@pytest.mark.parametrize(("most", "kept"), [(25, ["2", "3"]), (100, ["0", "1", "2", "3"])])
def test_dead_letters_are_kept_so_long(
    app: Umbel, clock: ManualClock, most: float, kept: list[str]
) -> None:
    app.conf.dead_letters_max_age = most
    assert letters(app, clock, [1] * 4) == kept


@pytest.mark.setting("dead_letters_max_bytes")
@pytest.mark.parametrize(("most", "kept"), [(50_000, ["2", "3"]), (200_000, ["0", "1", "2", "3"])])
def test_dead_letters_of_so_many_bytes_are_kept(
    app: Umbel, clock: ManualClock, most: int, kept: list[str]
) -> None:
    app.conf.dead_letters_max_bytes = most
    assert letters(app, clock, [20_000] * 4) == kept
