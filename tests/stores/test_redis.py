from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis
from tests.servers import Redis
from tests.stores.forgetting import get_and_forget
from tests.worker.harness import until

from umbel import Umbel
from umbel.clock import Clock, ManualClock
from umbel.exceptions import (
    BackendGetMetaError,
    BackendStoreError,
    StoreUnavailable,
    TimeoutError,
)
from umbel.formats import ResultFormat
from umbel.message import Result
from umbel.ports import ResultStore
from umbel.resultset import ResultSet
from umbel.states import FAILURE, STARTED, SUCCESS
from umbel.stored import decode_meta, encode_meta
from umbel.stores.redis import Address, RedisStore, listening
from umbel.testing.contract import ResultStoreContract
from umbel.testing.contract.rig import Background, eventually
from umbel.testing.contract.storing import LONG, result

Make = Callable[..., RedisStore]
KEY = "celery-task-meta-{}"
CELERYS = Path(__file__).parent / "celery_5_7_redis"
_ports: list[int] = []


class TestRedisStore(ResultStoreContract):
    """The server keeps the time, so what expires is tested in real seconds."""

    @pytest.fixture(autouse=True)
    def _server(self, redis_server: Redis) -> None:
        _ports[:] = [redis_server.port]
        with closing(redis.Redis(port=redis_server.port)) as client:
            client.flushall()

    @staticmethod
    def connect_store(where: Path, clock: Clock) -> RedisStore:
        return RedisStore(Address("127.0.0.1", _ports[0]), clock=clock)

    def test_an_expired_record_is_not_got(self, store: ResultStore, clock: ManualClock) -> None:
        store.put([result("a", expires_at=clock.wall() + 0.3), result("b")])
        assert store.get(["a"])[0] is not None
        eventually(lambda: store.get(["a"]) == [None])
        assert store.get(["b"]) == [result("b")]

    def test_an_expired_success_gives_way(self, store: ResultStore, clock: ManualClock) -> None:
        store.put([result("a", expires_at=clock.wall() - 5)])
        eventually(lambda: store.get(["a"]) == [None])
        store.put([result("a", FAILURE)])
        assert store.get(["a"]) == [result("a", FAILURE)]

    def test_prune_deletes_what_has_expired_and_counts_it(
        self, store: ResultStore, clock: ManualClock
    ) -> None:
        store.put([result("a", expires_at=clock.wall() - 5)])
        assert store.prune() == 0, "the server does it"


@pytest.fixture
def client(redis_server: Redis) -> Iterator[redis.Redis]:
    with closing(redis.Redis(port=redis_server.port)) as client:
        client.flushall()
        yield client


@pytest.fixture
def make_store(redis_server: Redis, client: redis.Redis) -> Iterator[Make]:
    """Opens stores on the server, which is empty."""
    opened: list[RedisStore] = []

    def make(**options: Any) -> RedisStore:
        store = RedisStore(Address("127.0.0.1", redis_server.port), **options)
        store.open()
        opened.append(store)
        return store

    yield make
    for store in opened:
        store.close()


@pytest.fixture
def store(make_store: Make) -> RedisStore:
    return make_store()


@contextmanager
def own_server() -> Iterator[tuple[Redis, RedisStore]]:
    """One that may be killed, and a store on it."""
    server = Redis()
    try:
        server.start()
        store = RedisStore(Address("127.0.0.1", server.port))
        store.open()
        yield server, store
        store.close()
    finally:
        server.remove()


def listeners(client: redis.Redis) -> int:
    """Connections that have subscribed to something."""
    return len(client.client_list(_type="pubsub"))


@contextmanager
def hearing(client: redis.Redis, *task_ids: str) -> Iterator[Callable[[], bytes]]:
    """Gives what is told next of these, as a Celery client hears it."""
    channel: Any = client.pubsub()  # type: ignore[no-untyped-call]
    with closing(channel):
        channel.subscribe(*map(KEY.format, task_ids))
        for _ in task_ids:
            channel.get_message(timeout=5)
        yield lambda: channel.get_message(timeout=5)["data"]


# What Celery finds, and what we find of Celery's


def test_celery_finds_the_record_under_its_key_and_on_its_channel(
    store: RedisStore, client: redis.Redis
) -> None:
    with hearing(client, "an-id") as next_one:
        store.put([result("an-id", STARTED), result("an-id", value=[1])])
        heard = [next_one(), next_one()]
    assert heard == [
        result("an-id", STARTED).meta, result("an-id", value=[1]).meta,
    ]  # fmt: skip
    assert client.get(KEY.format("an-id")) == result("an-id", value=[1]).meta
    assert client.keys() == [KEY.format("an-id").encode()]


def test_a_result_that_is_kept_out_is_not_told(store: RedisStore, client: redis.Redis) -> None:
    store.put([result("a")])
    with hearing(client, "a", "b") as next_one:
        store.put([result("a", FAILURE), result("b")])
        assert next_one() == result("b").meta


def test_a_record_lives_as_long_as_it_should(store: RedisStore, client: redis.Redis) -> None:
    store.put([result("a", expires_at=time.time() + 500), result("b")])
    assert 499_000 < client.pttl(KEY.format("a")) <= 500_001
    assert client.pttl(KEY.format("b")) == -1
    store.put([result("c", STARTED, expires_at=time.time() + 500), result("c", FAILURE)])
    assert client.pttl(KEY.format("c")) == -1, "a later record has a life of its own"


@pytest.mark.parametrize("name", ["success", "failure", "started", "extended"])
def test_what_celery_stored(store: RedisStore, client: redis.Redis, name: str) -> None:
    """Records of Celery 5.7, byte for byte."""
    recorded = (CELERYS / f"{name}.json").read_bytes()
    meta = decode_meta(recorded)
    key = KEY.format(meta.task_id)
    client.set(key, recorded)
    [record] = store.get([meta.task_id])
    assert record is not None
    assert (record.state, record.meta) == (meta.status, recorded)
    store.put([result(meta.task_id, FAILURE, "ours")])
    if meta.status == SUCCESS:
        assert client.get(key) == recorded, "Celery's SUCCESS stays as well"
    else:
        assert store.get([meta.task_id]) == [result(meta.task_id, FAILURE, "ours")]


def test_celery_s_publishing_ends_a_wait(store: RedisStore, client: redis.Redis) -> None:
    waiting = Background(lambda: store.wait(["a"], LONG))
    until(lambda: listeners(client) == 1)
    client.set(KEY.format("a"), result("a").meta, ex=100)
    client.publish(KEY.format("a"), result("a").meta)
    waiting.result()


# What is never overwritten


@pytest.mark.parametrize(
    "record",
    [
        b'{"status": "SUCCESS", "result": 1, "task_id": "a"}',
        b'  { "status" :"SUCCESS","result":1,"task_id":"a"}',
        b'{"task_id":"a","result":"\\"status\\":\\"FAILURE\\"","status":"SUCCESS"}',
        b'{"task_id":"a","result":' + b"[" * 500 + b"]" * 500 + b',"status":"SUCCESS"}',
    ],
)
def test_a_success_in_whatever_form_stays(
    store: RedisStore, client: redis.Redis, record: bytes
) -> None:
    client.set(KEY.format("a"), record)
    store.put([result("a", FAILURE)])
    assert client.get(KEY.format("a")) == record


@pytest.mark.parametrize("junk", [b"", b"junk", b"{", b'{"status": 7}', b"[1]", b"\xff\x00"])
def test_a_record_that_cannot_be_read_is_replaced(
    store: RedisStore, client: redis.Redis, junk: bytes
) -> None:
    client.set(KEY.format("a"), junk)
    store.put([result("b"), result("a", STARTED), result("a"), result("a", FAILURE)])
    assert store.get(["a", "b"]) == [result("a"), result("b")]


def test_what_cannot_be_read_is_an_error_and_ends_a_wait(
    store: RedisStore, client: redis.Redis
) -> None:
    client.set(KEY.format("a"), b"junk")
    Background(lambda: store.wait(["a"], LONG)).result()
    with pytest.raises(BackendGetMetaError):
        store.get(["a"])


@pytest.mark.parametrize(
    ("serializer", "compression"),
    [("json", "gzip"), ("pickle", None), ("yaml", None), ("pickle", "bzip2")],
)
def test_a_form_that_the_server_cannot_read(
    make_store: Make, serializer: str, compression: str | None
) -> None:
    form = ResultFormat.find(serializer, compression, ["json", serializer], {}, 2**20)
    store = make_store(form=form)

    def stored(state: str, value: object) -> Result:
        done = "2026-01-02T03:04:05+00:00" if state != STARTED else None
        meta = encode_meta("a", state, value, children=[], date_done=done, form=form)
        return Result("a", state, meta)

    for state, value in ((STARTED, 0), (FAILURE, 1), (SUCCESS, 2), (FAILURE, 3), (SUCCESS, 4)):
        store.put([stored(state, value)])
        assert store.get(["a"]) == [
            stored(state, min(value, 2)) if value < 3 else stored(SUCCESS, 2)
        ]
    assert store.prune(0) == 1


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_writers_that_meet_never_replace_a_success(
    make_store: Make, compression: str | None
) -> None:
    """Eight writers on the same ids: what any of them stored as SUCCESS is there at the end."""
    form = ResultFormat.find("json", compression, ["json"], {}, 2**20)
    ids = [f"m{n}" for n in range(30)]

    def record(task_id: str, state: str) -> Result:
        meta = encode_meta(task_id, state, state, children=[], date_done=None, form=form)
        return Result(task_id, state, meta)

    def write(state: str) -> None:
        store = make_store(form=form)
        for _ in range(5):
            for task_id in ids:
                store.put([record(task_id, state)])

    writers = [
        Background(partial(write, state)) for state in (STARTED, FAILURE, SUCCESS, STARTED) * 2
    ]
    for writer in writers:
        writer.result()
    assert make_store(form=form).get(ids) == [record(task_id, SUCCESS) for task_id in ids]


# Waiting


def test_all_who_wait_share_one_connection(store: RedisStore, client: redis.Redis) -> None:
    ids = [f"w{n}" for n in range(20)]
    waiting = [Background(partial(store.wait, [task_id, "all"], LONG)) for task_id in ids]
    until(lambda: store.listener.channels == 21)
    until(lambda: all(n == 1 for _, n in client.pubsub_numsub(*map(KEY.format, ids))))
    assert listeners(client) == 1
    store.put([result("w7")])
    waiting[7].result()
    assert sum(each.running for each in waiting) == 19
    store.put([result("all")])
    for each in waiting:
        each.result()


def test_nothing_is_left_of_waits_that_are_over(
    store: RedisStore, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After 2,000 gets, waits and forgets: no channel, key, connection or thread."""
    monkeypatch.setattr(listening, "LINGER", 0.05)
    monkeypatch.setattr(listening, "IDLE", 0.05)
    monkeypatch.setattr(listening, "_TICK", 0.02)
    threads = threading.active_count()
    store.put([result("first")])
    connections = len(client.client_list())
    for n in range(2_000):
        task_id = f"n{n}"
        waiting = n % 10 == 0 and Background(partial(store.wait, [task_id], LONG))
        store.put([result(task_id)])
        if waiting:
            waiting.result()
        assert store.get([task_id]) == [result(task_id)]
        store.forget([task_id])
    until(lambda: store.listener.channels == 0)
    until(lambda: threading.active_count() == threads)
    until(lambda: len(client.client_list()) <= connections + 1)
    assert client.dbsize() == 1
    assert client.pubsub_channels() == []
    assert not store.listener._watches
    waiting = Background(partial(store.wait, ["again"], LONG))
    until(lambda: listeners(client) == 1)
    store.put([result("again")])
    waiting.result()


def test_nothing_is_left_of_results_that_many_threads_waited_for(redis_server: Redis) -> None:
    """Of 100,000 there isn't either: tests/stores/long_forgetting.py."""
    get_and_forget(redis_server, 2000)


def test_a_server_that_stands_still_does_not_hold_up_a_wait() -> None:
    """Neither while it is asked nor while a connection is made; redis-py would wait for long."""
    with own_server() as (server, store):
        store.wait(["a"], 0.05)
        server.freeze()
        for _ in range(3):  # the first connection is given up, others have to be made
            started = time.monotonic()
            store.wait(["a"], 0.3)
            assert 0.3 <= time.monotonic() - started < 3
        server.thaw()
        store.put([result("a")])
        assert store.get(["a"]) == [result("a")]


def test_a_server_that_stands_still_does_not_hold_up_get() -> None:
    with own_server() as (server, _):
        app = Umbel("proj", broker="memory://", backend=server.url, set_as_current=False)
        one, another = app.AsyncResult("a"), app.AsyncResult("b")
        assert one.state == "PENDING"
        server.freeze()
        for ask in (
            lambda: one.get(timeout=0.3),
            lambda: one.get(timeout=0.3),
            lambda: one.get(timeout=0),
            lambda: ResultSet([one, another]).get(timeout=0.3),
        ):
            started = time.monotonic()
            with pytest.raises(TimeoutError):
                ask()
            assert time.monotonic() - started < 3
        server.thaw()
        store = app.store
        assert store is not None
        store.put([result("a", value=1), result("b", value=2)])
        assert ResultSet([one, another]).get(timeout=0) == [1, 2]
        assert app.AsyncResult("a").get(timeout=0) == 1
        app.close()


def test_connecting_has_a_time_of_its_own() -> None:
    """Also the first words on a connection, when nobody has said how long he waits."""
    with own_server() as (server, _):
        options = {"socket_timeout": 60, "socket_connect_timeout": 0.1}
        store = RedisStore(Address("127.0.0.1", server.port, options=options))
        server.freeze()
        store.open()
        with pytest.raises(StoreUnavailable, match=r"(?i)timeout"):
            Background(lambda: store.get(["a"])).result(5)
        server.thaw()
        store.put([result("a")])
        wire = store._client.unconnected()
        wire.connect()
        assert wire._sock.gettimeout() == 60
        wire.disconnect()
        store.close()


def test_a_wait_whose_connection_is_cut_returns_and_the_next_one_hears(
    store: RedisStore, client: redis.Redis
) -> None:
    waiting = Background(lambda: store.wait(["a"], LONG))
    until(lambda: listeners(client) == 1)
    assert client.client_kill_filter(_type="pubsub") == 1
    waiting.result()
    waiting = Background(lambda: store.wait(["a"], LONG))
    until(lambda: listeners(client) == 1)
    store.put([result("a")])
    waiting.result()


def test_a_server_that_ends_and_comes_back() -> None:
    with own_server() as (server, store):
        store.put([result("a")])
        waiting = Background(lambda: store.wait(["b"], LONG))
        until(lambda: store.listener.channels == 1)
        server.kill()
        with suppress(StoreUnavailable):  # where it was just looking
            waiting.result()
        for ask in (
            lambda: store.get(["a"]),
            lambda: store.put([result("b")]),
            lambda: store.wait(["b"], LONG),
            lambda: store.forget(["b"]),
        ):
            with pytest.raises(StoreUnavailable, match=r"result store redis:127.* can't be used"):
                Background(ask).result()
        server.start()
        assert store.get(["a", "b"]) == [result("a"), None]
        waiting = Background(lambda: store.wait(["b"], LONG))
        until(lambda: store.listener.channels == 1)
        store.put([result("b")])  # the script is loaded anew
        waiting.result()


def test_a_store_that_is_away_when_it_is_opened(caplog: pytest.LogCaptureFixture) -> None:
    with own_server() as (server, _):
        server.kill()
        store = RedisStore(Address("127.0.0.1", server.port))
        store.open()
        assert "can't be used now" in caplog.text
        assert "It is used as soon as it can be." in caplog.text
        server.start()
        store.put([result("a")])
        assert store.get(["a"]) == [result("a")]
        store.close()


def test_a_user_who_must_not_listen_is_told(redis_server: Redis, client: redis.Redis) -> None:
    client.acl_setuser(
        "deaf", True, passwords="+secret", keys=["*"], reset_channels=True, categories=["+@all"]
    )
    login = {"username": "deaf", "password": "secret"}
    store = RedisStore(Address("127.0.0.1", redis_server.port, options=login))
    store.open()
    with pytest.raises(StoreUnavailable, match=r"(?i)permission"):
        Background(lambda: store.wait(["a"], LONG)).result()
    store.close()
    client.acl_deluser("deaf")


def test_closing_ends_waits(make_store: Make, client: redis.Redis) -> None:
    store = make_store()
    waiting = Background(lambda: store.wait(["a"], LONG))
    until(lambda: listeners(client) == 1)
    store.close()
    with suppress(StoreUnavailable):
        waiting.result()
    until(lambda: listeners(client) == 0)
    with pytest.raises(StoreUnavailable, match="is closed"):
        store.get(["a"])


# The rest


FORKING = """
import os, sys, threading, time
from umbel import Umbel
from umbel.testing.contract.storing import result

app = Umbel("proj", broker="memory://", backend=sys.argv[1], set_as_current=False)
app.store.put([result("before", value=1)])
got = []
waiting = threading.Thread(target=lambda: got.append(app.AsyncResult("child").get(timeout=20)))
waiting.start()
while not app.store.listener.channels:
    time.sleep(0.005)
inherited = app.store
child = os.fork()
if child == 0:
    assert app.store is not inherited
    assert app.AsyncResult("before").get(timeout=20) == 1
    app.store.put([result("child", value=2)])
    assert app.AsyncResult("parent").get(timeout=20) == 3
    os._exit(7)
waiting.join()
assert got == [2], got
assert app.AsyncResult("before").get(timeout=20) == 1
app.store.put([result("parent", value=3)])
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
app.close()
"""


def test_parent_and_child_of_a_fork_have_connections_of_their_own(
    redis_server: Redis, client: redis.Redis
) -> None:
    """The fork comes while a thread of the parent waits."""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKING, redis_server.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_a_server_at_its_memory_limit(store: RedisStore, client: redis.Redis) -> None:
    store.put([result("a")])
    client.config_set("maxmemory", 1)
    try:
        with pytest.raises(StoreUnavailable, match=r"(?i)maxmemory"):
            store.put([result("b")])
        assert store.get(["a"]) == [result("a")]
    finally:
        client.config_set("maxmemory", 0)
    store.put([result("b")])
    assert store.get(["b"]) == [result("b")]


def test_scripts_that_are_gone_are_loaded_again(store: RedisStore, client: redis.Redis) -> None:
    store.put([result("a")])
    client.script_flush()
    store.put([result("b")])
    assert store.get(["a", "b"]) == [result("a"), result("b")]


def test_connections_that_were_cut_are_made_anew(store: RedisStore, client: redis.Redis) -> None:
    store.put([result("a")])
    client.client_kill_filter(_type="normal", skipme=True)
    store.put([result("b")])
    client.client_kill_filter(_type="normal", skipme=True)
    assert store.get(["a", "b"]) == [result("a"), result("b")]


@pytest.mark.parametrize("task_id", ["with a blank", "line\r\nend", "x" * 300, "é", "\ud800", ""])
def test_any_id(store: RedisStore, task_id: str) -> None:
    record = Result(task_id, SUCCESS, result("a").meta)
    store.put([record, result("b")])
    assert store.get([task_id, "b"]) == [record, result("b")]
    store.forget([task_id])
    assert store.get([task_id, "b"]) == [None, result("b")]


def test_many_at_once(store: RedisStore) -> None:
    records = [result(f"m{n}", value="x" * 20_000) for n in range(1_201)]
    store.put(records)
    assert store.get([each.task_id for each in records]) == records
    store.forget([each.task_id for each in records])
    assert store.get(["m0", "m1200"]) == [None, None]


def test_a_result_that_no_server_takes_is_named(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("umbel.stores.redis.store.LARGEST", 1_000)
    with pytest.raises(BackendStoreError, match=r"task big has 2\d{3} bytes"):
        store.put([result("a"), result("big", value="x" * 2_000)])


def test_pruning_looks_at_own_keys_alone(make_store: Make, client: redis.Redis) -> None:
    """A prefix is no pattern."""
    mine = make_store(transport={"global_keyprefix": "a*[b]?\\:"})
    others = make_store(transport={"global_keyprefix": "aXb:"})
    for store in (mine, others):
        store.put([result(f"m{n}") for n in range(700)])
    client.set("something", "else")
    client.lpush(KEY.format("list"), "x")
    assert mine.prune(10) == 690
    assert others.prune(700) == 0
    assert mine.prune() == 0
