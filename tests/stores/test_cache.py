from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pymemcache.client.base import Client
from tests.servers import Memcached

from umbel.clock import SYSTEM, Clock, ManualClock
from umbel.exceptions import BackendStoreError, ImproperlyConfigured, StoreUnavailable
from umbel.message import Result
from umbel.ports import ResultStore
from umbel.states import FAILURE, STARTED, SUCCESS
from umbel.stores.cache import MemcachedStore
from umbel.testing.contract import ResultStoreContract
from umbel.testing.contract.rig import Background, eventually
from umbel.testing.contract.storing import result

KEY = "celery-task-meta-{}"
_servers: list[str] = []


class TestMemcachedStore(ResultStoreContract):
    """The server keeps the time, so what expires is tested in real seconds."""

    @pytest.fixture(autouse=True)
    def _server(self, memcached: Memcached) -> None:
        _servers[:] = [f"127.0.0.1:{memcached.port}"]
        with closing(Client(("127.0.0.1", memcached.port))) as client:
            client.flush_all(noreply=False)

    @staticmethod
    def connect_store(where: Path, clock: Clock) -> MemcachedStore:
        return MemcachedStore(_servers, clock=clock)

    def test_an_expired_record_is_not_got(self, store: ResultStore, clock: ManualClock) -> None:
        store.put([result("a", expires_at=clock.wall() + 0.5), result("b")])
        assert store.get(["a"])[0] is not None
        eventually(lambda: store.get(["a"]) == [None])
        assert store.get(["b"]) == [result("b")]

    def test_an_expired_success_gives_way(self, store: ResultStore, clock: ManualClock) -> None:
        store.put([result("a", expires_at=clock.wall() - 5)])

        def gives_way() -> bool:
            store.put([result("a", FAILURE)])
            return store.get(["a"]) == [result("a", FAILURE)]

        eventually(gives_way)

    def test_prune_deletes_what_has_expired_and_counts_it(
        self, store: ResultStore, clock: ManualClock
    ) -> None:
        store.put([result("a", expires_at=clock.wall() - 5)])
        assert store.prune() == 0, "the server does it"

    def test_prune_keeps_the_newest_successes(self, store: ResultStore, clock: ManualClock) -> None:
        store.put([result(f"m{n}") for n in range(3)])
        assert store.prune(1) == 0, "the server can't list what it has"


@pytest.fixture
def client(memcached: Memcached) -> Iterator[Client]:
    with closing(Client(("127.0.0.1", memcached.port))) as client:
        client.flush_all(noreply=False)
        yield client


@pytest.fixture
def store(memcached: Memcached, client: Client) -> Iterator[MemcachedStore]:
    store = MemcachedStore([f"127.0.0.1:{memcached.port}"], clock=SYSTEM)
    store.open()
    yield store
    store.close()


def test_celery_finds_the_record_under_its_key(store: MemcachedStore, client: Client) -> None:
    store.put([result("an-id")])
    assert client.get(KEY.format("an-id")) == result("an-id").meta


def test_a_life_longer_than_30_days_is_an_instant_to_the_server(store: MemcachedStore) -> None:
    store.put([result("a", expires_at=time.time() + 40 * 86_400)])
    assert store.get(["a"]) == [result("a")]


@pytest.mark.parametrize("task_id", ["with a blank", "line\r\nend", "x" * 300, "é", "\ud800"])
def test_an_id_that_cannot_be_a_key(store: MemcachedStore, task_id: str) -> None:
    record = Result(task_id, SUCCESS, result("a").meta)
    store.put([record, result("a")])
    assert store.get([task_id, "a"]) == [record, result("a")]
    store.forget([task_id])
    assert store.get([task_id, "a"]) == [None, result("a")]


def test_a_result_that_the_server_refuses_is_named(store: MemcachedStore) -> None:
    with pytest.raises(BackendStoreError, match=r"task big has 2000\d* bytes"):
        store.put([result("big", value="x" * 2_000_000)])
    store.put([result("a")])
    assert store.get(["big", "a"]) == [None, result("a")]


def test_a_record_that_cannot_be_read_is_replaced(store: MemcachedStore, client: Client) -> None:
    client.set(KEY.format("a"), b"junk", noreply=False)
    store.put([result("a")])
    assert store.get(["a"]) == [result("a")]


def test_writers_that_meet_never_replace_a_success(memcached: Memcached, client: Client) -> None:
    """Eight writers on the same ids: what any of them stored as SUCCESS is there at the end."""
    ids = [f"m{n}" for n in range(30)]

    def write(state: str) -> Callable[[], None]:
        def work() -> None:
            store = MemcachedStore([f"127.0.0.1:{memcached.port}"])
            store.open()
            for _ in range(5):
                for task_id in ids:
                    store.put([result(task_id, state)])
            store.close()

        return work

    writers = [Background(write(state)) for state in (STARTED, FAILURE, SUCCESS, STARTED) * 2]
    for writer in writers:
        writer.result()
    store = MemcachedStore([f"127.0.0.1:{memcached.port}"])
    store.open()
    assert store.get(ids) == [result(task_id) for task_id in ids]
    store.close()


def test_records_lie_where_celery_looks_for_them(client: Client, memcached: Memcached) -> None:
    """Celery's placement over several servers, with both ends at one server: by node name."""
    second = Memcached()
    try:
        second.start()
        nodes = [f"127.0.0.1:{memcached.port}", f"127.0.0.1:{second.port}"]
        store = MemcachedStore(nodes)
        store.open()
        ids = [f"p{n}" for n in range(20)]
        store.put([result(task_id) for task_id in ids])
        assert store.get(ids) == [result(task_id) for task_id in ids]
        for node, port in zip(nodes, (memcached.port, second.port), strict=True):
            with closing(Client(("127.0.0.1", port))) as each:
                here = {i for i in ids if each.get(KEY.format(i)) is not None}
            assert here == {i for i in ids if _winner(nodes, KEY.format(i)) == node}
        second.kill()
        with pytest.raises(StoreUnavailable, match="doesn't answer"):
            store.get(ids)
        store.close()
    finally:
        second.remove()


def _winner(nodes: list[str], key: str) -> str:
    """The highest random weight, as pymemcache's clients place a key."""
    from pymemcache.client.murmur3 import murmur3_32

    return max(nodes, key=lambda node: (murmur3_32(f"{node}-{key}", 0), node))


def test_options_are_the_client_s(memcached: Memcached) -> None:
    store = MemcachedStore([f"127.0.0.1:{memcached.port}"], {"key_prefix": b"mine:"})
    store.open()
    store.put([result("a")])
    assert store.get(["a"]) == [result("a")]
    with closing(Client(("127.0.0.1", memcached.port))) as client:
        assert client.get("mine:celery-task-meta-a") == result("a").meta
    store.close()
    with pytest.raises(ImproperlyConfigured, match=r"cache_backend_options .*'nonsense'"):
        MemcachedStore(["127.0.0.1"], {"nonsense": 1}).open()


@pytest.mark.parametrize("server", ["host:", ":11211", "host:0", "host:99999", "host:http"])
def test_a_server_that_is_no_address(server: str) -> None:
    with pytest.raises(ImproperlyConfigured, match="isn't an address"):
        MemcachedStore([server])
