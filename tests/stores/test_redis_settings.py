"""Redis as `result_backend`: its URLs, and each setting of it, changed in an app."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
import redis
from tests.servers import Redis
from tests.worker.harness import until

from umbel import Umbel
from umbel.clock import SYSTEM
from umbel.drivers import Results, make_store
from umbel.exceptions import ImproperlyConfigured, LaterSetting, StoreUnavailable
from umbel.redisurl import CONNECT_TIMEOUT
from umbel.stores.redis import Address, RedisStore
from umbel.testing.contract.rig import Background
from umbel.testing.contract.storing import result

Open = Callable[..., RedisStore]
KEY = "celery-task-meta-a"


class ShopLogin(redis.CredentialProvider):
    def get_credentials(self) -> tuple[str, str]:
        return "shop", "secret"


@pytest.fixture
def open_store(request: pytest.FixtureRequest) -> Open:
    """The store of an app with these settings."""

    def store(url: str, **settings: object) -> RedisStore:
        app = Umbel(
            "proj", broker="memory://redis-settings", backend=url, changes=settings,
            set_as_current=False,
        )  # fmt: skip
        request.addfinalizer(app.close)
        opened = app.store
        assert isinstance(opened, RedisStore)
        return opened

    return store


@pytest.fixture
def client(redis_server: Redis) -> Iterator[redis.Redis]:
    """Of database 3; no database of the server holds anything."""
    with closing(redis.Redis(port=redis_server.port, db=3)) as client:
        client.flushall()
        yield client
        client.acl_deluser("shop")


def get_a(store: RedisStore) -> bool:
    store.put([result("a")])
    return store.get(["a"]) == [result("a")]


@pytest.mark.setting("result_backend")
@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://", ("localhost", 6379, None, 0)),
        ("redis://h", ("h", 6379, None, 0)),
        ("redis://h:1/2", ("h", 1, None, 2)),
        ("redis://h:1/?db=4", ("h", 1, None, 4)),
        ("rediss://[::1]:7", ("::1", 7, None, 0)),
        ("redis+socket:///run/r.sock?virtual_host=5", ("localhost", 6379, "/run/r.sock", 5)),
        ("redis+socket:///run/r.sock?virtual_host=/5", ("localhost", 6379, "/run/r.sock", 5)),
        ("unix://u:p@/run/a%20b.sock?db=1", ("localhost", 6379, "/run/a b.sock", 1)),
    ],
)
def test_what_a_url_names(url: str, expected: tuple[object, ...]) -> None:
    address = Address.of("result_backend", url)
    assert (address.host, address.port, address.path, address.db) == expected
    assert (address.tls is not None) == url.startswith("rediss")


def test_options_behind_a_url() -> None:
    url = (
        "rediss://me:p%40ss@h?ssl_cert_reqs=CERT_NONE&ssl_ca_certs=/ca.pem&socket_timeout=2.5"
        "&socket_keepalive=True&retry_on_timeout=no&max_connections=7&client_name=n"
    )
    address = Address.of("result_backend", url, {"socket_timeout": 9, "username": "other"})
    assert address.tls == {
        "ssl_cert_reqs": "none", "ssl_ca_certs": "/ca.pem", "ssl_check_hostname": False,
    }  # fmt: skip
    assert address.max_connections == 7
    assert address.options == {
        "username": "me", "password": "p@ss", "socket_timeout": 2.5, "client_name": "n",
        "socket_keepalive": True, "retry_on_timeout": False,
        "socket_connect_timeout": CONNECT_TIMEOUT,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("redis://me:secret@h/first", r"'redis://me:\*+@h/first' has the db 'first'"),
        ("redis://h:port", "isn't a URL"),
        ("redis://h:0", "isn't a URL: port 0"),
        ("redis://h?nonsense=1", "has the option 'nonsense'; known: db, virtual_host"),
        ("redis://h?socket_timeout=long", "has socket_timeout='long', which can't be"),
        ("redis://h?socket_keepalive=perhaps", "has socket_keepalive='perhaps'"),
        ("rediss://h?ssl_cert_reqs=never", "ssl_cert_reqs is 'never'; expected 'required'"),
        ("rediss://h?ssl_nonsense=1", "aren't all options of redis-py: .*ssl_nonsense"),
        ("redis+socket://h", "names no socket"),
        ("redis+cluster://h/3", "has the db 3; a cluster has 0 only"),
        ("sentinel://h", "has master_name=None; expected the name"),
        ("redi://h", "did you mean redis://"),
    ],
)
def test_a_url_that_cannot_be(open_store: Open, url: str, sentence: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=sentence):
        open_store(url)


def test_the_package_is_named_where_it_is_missing(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(ImproperlyConfigured, match=r"pip install 'umbel\[redis\]'"):
        open_store("redis://h")


@pytest.mark.setting("redis_host", "redis_port", "redis_db")
def test_place(open_store: Open, redis_server: Redis, client: redis.Redis) -> None:
    """What the URL doesn't say; else the URL holds."""
    port = redis_server.port
    assert get_a(open_store("redis://", redis_host="127.0.0.1", redis_port=str(port), redis_db=3))
    assert client.get(KEY) == result("a").meta
    client.flushall()
    url = f"redis://127.0.0.1:{port}/3"
    assert get_a(open_store(url, redis_host="nowhere.invalid", redis_port=1, redis_db=9))
    assert client.get(KEY) == result("a").meta


@pytest.mark.setting("redis_username", "redis_password")
def test_login(open_store: Open, redis_server: Redis, client: redis.Redis) -> None:
    url = redis_server.url
    client.acl_setuser(
        "shop", True, passwords="+secret", keys=["celery-task-meta-*"], channels=["*"],
        categories=["+@all"],
    )  # fmt: skip
    with pytest.raises(StoreUnavailable, match=r"invalid username-password|WRONGPASS"):
        open_store(url, redis_username="shop", redis_password="wrong").get(["a"])
    assert get_a(open_store(url, redis_username="shop", redis_password="secret"))
    assert {each["user"] for each in client.client_list()} >= {"shop"}
    with_login = url.replace("://", "://shop:secret@")
    assert get_a(open_store(with_login, redis_username="nobody", redis_password="wrong"))


@pytest.mark.setting("redis_backend_credential_provider")
@pytest.mark.parametrize("given", [ShopLogin, ShopLogin(), f"{__name__}:ShopLogin"])
def test_credential_provider(
    open_store: Open, redis_server: Redis, client: redis.Redis, given: object
) -> None:
    client.acl_setuser(
        "shop", True, passwords="+secret", keys=["*"], channels=["*"], categories=["+@all"]
    )
    store = open_store(
        redis_server.url, redis_backend_credential_provider=given, redis_password="wrong"
    )
    assert get_a(store)
    assert {each["user"] for each in client.client_list()} >= {"shop"}


@pytest.mark.setting("redis_client_name")
def test_client_name(open_store: Open, redis_server: Redis, client: redis.Redis) -> None:
    assert get_a(open_store(redis_server.url, redis_client_name="shop-results"))
    assert "shop-results" in {each["name"] for each in client.client_list()}


@pytest.mark.setting("redis_max_connections")
def test_max_connections(open_store: Open, redis_server: Redis, client: redis.Redis) -> None:
    def most_at_once(name: str, **settings: object) -> int:
        store = open_store(redis_server.url, redis_client_name=name, **settings)
        together = threading.Barrier(8)

        def get_often() -> None:
            together.wait()
            for _ in range(30):
                store.get(["a"])

        for each in [Background(get_often) for _ in range(8)]:
            each.result()
        return sum(each["name"] == name for each in client.client_list())

    assert most_at_once("few", redis_max_connections=2) <= 2
    assert most_at_once("any") > 2


@pytest.mark.setting("redis_socket_keepalive")
@pytest.mark.parametrize("on", [True, False])
def test_keepalive(open_store: Open, redis_server: Redis, on: bool) -> None:
    wire = open_store(redis_server.url, redis_socket_keepalive=on)._client.unconnected()
    wire.connect()
    assert bool(wire._sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)) == on
    wire.disconnect()


@contextmanager
def silent_server() -> Iterator[tuple[str, list[socket.socket]]]:
    """Its URL, and who came: it takes connections, and never answers."""
    came: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            while True:
                try:
                    came.append(server.accept()[0])
                except OSError:
                    return

        thread = threading.Thread(target=accept)
        thread.start()
        yield f"redis://127.0.0.1:{server.getsockname()[1]}", came
        server.shutdown(socket.SHUT_RDWR)
    thread.join()
    for each in came:
        each.close()


@pytest.mark.setting("redis_socket_timeout", "redis_retry_on_timeout")
def test_a_server_that_does_not_answer(open_store: Open) -> None:
    """Is asked once, and twice where it is said so; here when it is opened, and to read."""
    with silent_server() as (url, came):
        store = open_store(url, redis_socket_timeout=0.05)
        with pytest.raises(StoreUnavailable, match=r"(?i)timeout"):
            store.get(["a"])
        until(lambda: len(came) >= 2)
        store = open_store(url, redis_socket_timeout=0.05, redis_retry_on_timeout=True)
        with pytest.raises(StoreUnavailable, match=r"(?i)timeout"):
            store.get(["a"])
        until(lambda: len(came) >= 2 + 4)
        assert len(came) == 2 + 4


@pytest.mark.setting("redis_socket_connect_timeout")
def test_a_server_that_takes_no_connection(open_store: Open) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        address = server.getsockname()
        crowd = [socket.socket() for _ in range(4)]
        for each in crowd:  # fill what waits to be accepted
            each.setblocking(False)
            each.connect_ex(address)
        url = f"redis://127.0.0.1:{address[1]}"
        store = open_store(url, redis_socket_connect_timeout=0.05)
        with pytest.raises(StoreUnavailable, match=r"(?i)timeout connecting|timed out"):
            Background(lambda: store.get(["a"])).result(limit=CONNECT_TIMEOUT / 2)
        for each in crowd:
            each.close()


@pytest.mark.setting("redis_backend_health_check_interval")
def test_health_check_interval(open_store: Open) -> None:
    """A server that falls silent while somebody listens is noticed after two of them."""
    server = Redis()
    try:
        server.start()
        url = server.url
        store = open_store(url, redis_backend_health_check_interval=0.1, redis_socket_timeout=2.0)

        def wait() -> None:
            # Where the server falls silent while the record is looked at, that is noticed first.
            with suppress(StoreUnavailable):
                store.wait(["a"], 60)

        waiting = Background(wait)
        with closing(redis.Redis(port=server.port)) as client:
            until(lambda: client.pubsub_numsub(KEY)[0][1] == 1)
        server.freeze()
        waiting.result(limit=10)
    finally:
        server.remove()


@pytest.mark.setting("result_backend_transport_options")
@pytest.mark.parametrize(
    ("prefix", "key"),
    [("shop", f"shop_{KEY}"), *((f"s{end}", f"s{end}{KEY}") for end in ":_-."), ("", KEY)],
)
def test_global_keyprefix(
    open_store: Open, redis_server: Redis, client: redis.Redis, prefix: str, key: str
) -> None:
    options = {"global_keyprefix": prefix}
    assert get_a(open_store(redis_server.url[:-1] + "3", result_backend_transport_options=options))
    assert client.keys() == [key.encode()]


def test_a_prefix_that_cannot_be(open_store: Open) -> None:
    with pytest.raises(ImproperlyConfigured, match=r"global_keyprefix=7; expected a str"):
        open_store("redis://h", result_backend_transport_options={"global_keyprefix": 7})


def test_other_transport_options_are_warned_of(open_store: Open, redis_server: Redis) -> None:
    with pytest.warns(LaterSetting, match=r"has 'sync'.* for redis://; known there: global_key"):
        open_store(redis_server.url, result_backend_transport_options={"sync": "full"})


@pytest.mark.setting("redis_backend_use_ssl")
def test_use_ssl(open_store: Open, redis_over_tls: tuple[str, Path]) -> None:
    place, certificate = redis_over_tls
    trusted = {"ssl_ca_certs": str(certificate)}
    assert get_a(open_store(f"redis://{place}", redis_backend_use_ssl=trusted))
    assert get_a(open_store(f"rediss://{place}?ssl_ca_certs={certificate}"))
    assert get_a(open_store(f"rediss://{place}?ssl_cert_reqs=none"))
    for url, settings in (
        (f"rediss://{place}", {}),
        (f"redis://{place}", {"redis_backend_use_ssl": True}),
    ):
        with pytest.raises(StoreUnavailable, match="certificate verify failed"):
            open_store(url, **settings).get(["a"])
    with pytest.raises(ImproperlyConfigured, match="aren't all options of redis-py"):
        open_store(f"redis://{place}", redis_backend_use_ssl={"cafile": "x"})


def test_a_wait_over_tls(open_store: Open, redis_over_tls: tuple[str, Path]) -> None:
    place, _ = redis_over_tls
    store = open_store(f"rediss://{place}?ssl_cert_reqs=none")
    waiting = Background(lambda: store.wait(["b"], 60))
    until(lambda: store.listener.channels == 1)
    store.put([result("b", value="x" * 200_000)])
    waiting.result()


def test_a_socket(open_store: Open, redis_server: Redis, client: redis.Redis) -> None:
    store = open_store(f"redis+socket://{redis_server.socket}?virtual_host=3")
    assert get_a(store)
    assert client.get(KEY) == result("a").meta
    assert store.location == f"redis:{redis_server.socket}"


def location(url: str, **settings: object) -> str:
    app = Umbel("proj", broker="memory://", backend=url, changes=settings, set_as_current=False)
    return make_store(url, app.conf, SYSTEM, Results(app.result_format, UTC)).location


def test_the_databases_of_a_server_are_one_location() -> None:
    assert location("redis://H:7/0") == location("redis://u:p@h:7/1") == "redis:h:7"
    assert location("redis://h:7") != location("redis://h:8")
    assert location("redis://") == "redis:localhost:6379"


@pytest.mark.parametrize(
    "settings",
    [{"result_serializer": "pickle", "result_accept_content": ["pickle"]},
     {"result_compression": "gzip"}],
)  # fmt: skip
def test_what_scripts_cannot_read_is_not_shared(settings: dict[str, Any]) -> None:
    """A broker's script doesn't know a SUCCESS there, so the store keeps it by itself."""
    assert location("redis://h:7", **settings) != location("redis://h:7")
