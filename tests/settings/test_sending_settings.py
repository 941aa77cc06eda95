"""Settings of what is sent and of what is kept, each changed for an app on the memory broker."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.api.looking import only, store, waiting
from tests.cli.helpers import bury

from umbel import Umbel
from umbel.clock import ManualClock
from umbel.exceptions import ImproperlyConfigured, Unroutable
from umbel.states import SUCCESS

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


@pytest.mark.option("delivery_mode")
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


# The exchange of the default queue


@pytest.mark.option("exchange", "routing_key")
@pytest.mark.setting("task_default_exchange", "task_default_routing_key")
@pytest.mark.parametrize(
    ("settings", "exchange", "routing_key"),
    [
        ({}, "celery", "celery"),
        ({"task_default_exchange": "shop"}, "shop", "celery"),
        ({"task_default_routing_key": "k"}, "celery", "k"),
        ({"task_default_exchange": "shop", "task_default_routing_key": "k"}, "shop", "k"),
    ],
)
def test_the_exchange_and_routing_key_of_the_default_queue(
    app: Umbel, settings: dict[str, str], exchange: str, routing_key: str
) -> None:
    """They lead to it, as its own name does twice, and no others do."""
    app.conf.update(settings)
    app.send_task("a", exchange=exchange, routing_key=routing_key)
    assert only(app).task == "a"
    for other in ("celery", "shop"):
        for key in ("celery", "k"):
            if (other, key) not in ((exchange, routing_key), ("celery", "celery")):
                with pytest.raises(Unroutable):
                    app.send_task("b", exchange=other, routing_key=key)
    assert len(waiting(app)) == 1


@pytest.mark.setting("task_default_exchange_type")
@pytest.mark.parametrize(("kind", "taken"), [("direct", False), ("topic", True)])
def test_the_type_of_the_default_exchange(app: Umbel, kind: str, taken: bool) -> None:
    app.conf.update(
        task_default_exchange="shop",
        task_default_exchange_type=kind,
        task_default_routing_key="order.#",
    )
    if taken:
        app.send_task("a", exchange="shop", routing_key="order.paid")
    else:
        with pytest.raises(Unroutable):
            app.send_task("a", exchange="shop", routing_key="order.paid")
    assert len(waiting(app)) == taken


@pytest.mark.setting("task_create_missing_queue_exchange_type")
@pytest.mark.parametrize(("kind", "taken"), [(None, False), ("fanout", True)])
def test_the_exchange_type_of_queues_that_nobody_declared(
    app: Umbel, kind: str | None, taken: bool
) -> None:
    app.conf.task_create_missing_queue_exchange_type = kind
    app.send_task("first", queue="new")
    if taken:
        app.send_task("a", exchange="new", routing_key="anything")
    else:
        with pytest.raises(Unroutable):
            app.send_task("a", exchange="new", routing_key="anything")
    assert len(waiting(app, "new")) == 1 + taken


@pytest.mark.setting("task_queue_max_priority")
@pytest.mark.parametrize(("most", "order"), [(None, ["high", "low"]), (5, ["low", "high"])])
def test_the_highest_priority_of_queues(app: Umbel, most: int | None, order: list[str]) -> None:
    app.conf.task_queue_max_priority = most
    app.send_task("low", priority=5)
    app.send_task("high", priority=9)
    assert [message.task for message in waiting(app)] == order


@pytest.mark.setting("result_cache_max")
@pytest.mark.parametrize(
    ("most", "kept"), [(-1, set()), (1, {"b"}), (2, {"a", "b"}), (0, {"a", "b"})]
)
def test_so_many_results_are_remembered(app: Umbel, most: int, kept: set[str]) -> None:
    """A process that has read them doesn't ask the store again."""
    app.conf.result_cache_max = most
    for task_id in ("a", "b"):
        store(app, task_id, SUCCESS, task_id)
        assert app.AsyncResult(task_id).get(timeout=1) == task_id
    assert app.store is not None
    app.store.forget(["a", "b"])
    assert {task_id for task_id in ("a", "b") if app.AsyncResult(task_id).ready()} == kept
