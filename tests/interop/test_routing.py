"""Priorities, topic exchanges, serializers and compression."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.interop.conftest import Fleet, Pair, busy
from tests.interop.sides import CELERIES, SIDES, UMBEL, Place
from tests.servers import Redis


def test_priorities_in_celerys_order(pair: Pair) -> None:
    """0 is served first, in steps, by each of them."""
    with busy(pair):
        sent = {
            pair.client.send("ran", queue=pair.queue, priority=priority): priority
            for priority in (9, 5, 0, 3, 7, 0)
        }
        stored = {step: pair.place.redis.llen(f"{pair.queue}\x06\x16{step}") for step in (3, 6, 9)}
        assert stored == {3: 2, 6: 1, 9: 1}
    for task_id in sent:
        pair.client.get(task_id)
    order = [sent[note.id] for note in pair.place.notes(what="ran") if note.id in sent]
    assert order == [0, 0, 5, 3, 7, 9]


@pytest.mark.parametrize("sender", CELERIES[-1:])
def test_priorities_where_umbel_is_to_serve_the_highest_first(
    redis: Redis, celeries: None, tmp_path: Path, sender: str
) -> None:
    """`redis_priority_order` is the order in which a worker serves; messages are stored alike."""
    place = Place(tmp_path, redis, 8, UMBEL_REDIS_PRIORITY_ORDER="high-first")
    try:
        client = place.client(sender)
        sent = {client.send("ran", priority=n): n for n in (9, 5, 0, 3, 7, 0)}
        place.worker(UMBEL, UMBEL).ready()
        place.noted(6, what="ran")
        assert [sent[note.id] for note in place.notes()] == [9, 7, 5, 3, 0, 0]
    finally:
        place.close()


@pytest.mark.parametrize("sender", SIDES)
def test_a_topic_exchange_leads_to_the_queues_of_both(fleet: Fleet, sender: str) -> None:
    """Each names its own queue, whose exchange leads to the others'."""
    for key, expected in (
        ("order.paid", {"umbel", "celery-5.6", "celery-5.7"}),
        ("order.sent", {"umbel", "celery-5.7"}),
        ("order.paid.late", {"umbel"}),
    ):
        sent = fleet.clients[sender].send("ran", queue=f"shop-{sender}", routing_key=key)
        notes = fleet.place.noted(len(expected), id=sent)
        assert sorted(note.who for note in notes) == sorted(expected)


def test_umbel_needs_no_queue_to_send_to_a_topic_exchange(fleet: Fleet) -> None:
    """Celery takes an exchange that it hasn't declared in this process for a direct one."""
    sent = fleet.clients[UMBEL].send("ran", exchange="shop", routing_key="order.sent")
    notes = fleet.place.noted(2, id=sent)
    assert sorted(note.who for note in notes) == ["celery-5.7", "umbel"]


@pytest.mark.parametrize("serializer", ["pickle", "msgpack", "yaml"])
@pytest.mark.parametrize("compression", ["gzip", "bzip2"])
def test_other_serializers_and_compression(pair: Pair, serializer: str, compression: str) -> None:
    sent = pair.client.send(
        "add", ["é" * 100], ["b"], queue=pair.queue, serializer=serializer, compression=compression
    )
    assert pair.client.get(sent) == ["é" * 100, "b"]
