"""Tasks for workers that consume topic, fanout and broadcast queues."""

from __future__ import annotations

import os
from typing import Any

from tests.worker.live_app import note, wait_for

from umbel import Task, Umbel
from umbel.routing import Broadcast, Exchange, Queue

NEWS = Exchange("news", type="topic")
QUEUES = [
    "celery",
    Queue("sport", NEWS, routing_key="sport.#"),
    Queue("goals", NEWS, routing_key="#.goal"),
    Broadcast("calls"),
]
app = Umbel("routed", set_as_current=False)
app.conf.task_queues = QUEUES
app.conf.task_routes = {"follow": {"exchange": "news", "routing_key": "sport.goal"}}
app.conf.worker_direct = "WORKER_DIRECT" in os.environ


@app.task(name="where", bind=True)
def where(self: Task[..., Any], tag: str) -> str:
    """Note the queue that it came from."""
    delivery = self.request.delivery
    assert delivery is not None
    note(tag, delivery.queue)
    return delivery.queue


@app.task(name="follow")
def follow(value: str) -> None:
    note("follow", value)


@app.task(name="once_more", bind=True, default_retry_delay=0.01)
def once_more(self: Task[..., Any], tag: str) -> None:
    note(tag, self.request.retries)
    if not self.request.retries:
        raise self.retry()


@app.task(name="fails")
def fails(tag: str) -> None:
    note(tag, "failed")
    raise ValueError(tag)


@app.task(name="holds")
def holds(tag: str, gate: str) -> None:
    note(tag, "began")
    wait_for(gate)
