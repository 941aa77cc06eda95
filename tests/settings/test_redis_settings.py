"""Settings of a broker on Redis."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis import Redis as Client
from tests.servers import Redis, redis

from umbel import Umbel
from umbel.message import Message

__all__ = ["redis"]


@pytest.fixture
def app(redis: Redis) -> Iterator[Umbel]:
    redis.flush()
    with Umbel("client", broker=redis.url, set_as_current=False) as app:
        yield app


def served(app: Umbel) -> list[str]:
    """Ids in the order in which a worker would take them."""
    return [each.id for each in app.broker.peek("celery", 10) if isinstance(each, Message)]


@pytest.mark.setting("redis_priority_order")
def test_which_priority_comes_first(app: Umbel) -> None:
    for priority in (0, 9, 5):
        app.send_task("t", task_id=f"p{priority}", priority=priority)
    assert served(app) == ["p9", "p5", "p0"]
    with Umbel("other", broker=app.conf.broker_url, set_as_current=False) as other:
        other.conf.redis_priority_order = "low-first"
        assert served(other) == ["p0", "p5", "p9"]


@pytest.mark.setting("broker_transport_options")
def test_names_of_keys_are_the_fleets(app: Umbel, redis: Redis) -> None:
    app.conf.broker_transport_options = {
        "global_keyprefix": "shop:",
        "sep": ":",
        "priority_steps": [0, 5],
    }
    app.send_task("t", task_id="a", priority=7)
    assert served(app) == ["a"]
    with Client(port=redis.port, decode_responses=True) as client:
        assert client.llen("shop:celery:5") == 1
        assert all(name.startswith("shop:") for name in client.scan_iter())
