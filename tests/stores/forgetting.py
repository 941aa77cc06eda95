"""What a client process has left after many results that it waited for, got and forgot."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from tests.servers import Redis, redis_client
from tests.worker.harness import until

from umbel import Umbel
from umbel.stores.redis import RedisStore
from umbel.testing.contract.storing import result

TOGETHER: Final = 20
"""Results that are waited for at once, each by a thread; half of them come meanwhile."""
SPARE: Final = 2000
"""Python objects, for whatever is made once and kept; a leak is one for each result."""


def get_and_forget(server: Redis, number: int) -> None:
    """Fails where a key, channel, connection, thread or object for each is left."""
    server.flush()
    with (
        Umbel("web", broker="memory://", backend=server.url, set_as_current=False) as app,
        redis_client(server.port) as client,
    ):
        threads, connections = threading.active_count(), len(client.client_list())
        _round(app, "warm-up")
        objects = _objects()
        for turn in range(number // TOGETHER):
            _round(app, str(turn))
            if turn % 50 == 0:
                assert len(client.client_list(_type="pubsub")) <= 1
        store = app.store
        assert isinstance(store, RedisStore)
        until(lambda: store.listener.channels == 0)
        until(lambda: threading.active_count() <= threads + 1)  # the one that listens
        assert client.dbsize() == 0
        until(lambda: client.pubsub_channels() == [])
        # One for each that asked at the same time, for this thread, and for the one that listens.
        assert len(client.client_list()) <= connections + TOGETHER + 2
        grown = _objects() - objects
        print(f"{number} results: {grown:+} objects")
        assert grown < min(SPARE, number)


def _round(app: Umbel, name: str) -> None:
    results = [app.AsyncResult(f"{name}-{n}") for n in range(TOGETHER)]
    store = app.store
    assert store is not None
    there, later = results[::2], results[1::2]
    store.put([result(each.id, value=each.id) for each in there])
    with ThreadPoolExecutor(TOGETHER) as waiting:
        got = [waiting.submit(each.get, timeout=30) for each in results]
        store.put([result(each.id, value=each.id) for each in later])
        assert [each.result() for each in got] == [each.id for each in results]
    for each in results:
        each.forget()


def _objects() -> int:
    gc.collect()
    return len(gc.get_objects())
