"""Settings of the connections to a broker on Redis: several URLs, TLS, limits, times."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py
from redis import Redis as Client
from tests.servers import Redis, redis, redis_over_tls
from tests.worker.harness import until

from umbel import Umbel
from umbel.exceptions import BrokerUnavailable, ImproperlyConfigured, LaterSetting
from umbel.message import Message
from umbel.retry.publishing import BOUND

__all__ = ["redis", "redis_over_tls"]

NOWHERE = "redis://127.0.0.1:1"
Open = Callable[..., Umbel]


class ShopLogin(redis_py.CredentialProvider):
    def get_credentials(self) -> tuple[str, str]:
        return "shop", "secret"


@pytest.fixture
def client(redis: Redis) -> Iterator[Client]:
    redis.flush()
    with Client(port=redis.port, decode_responses=True) as client:
        yield client


@pytest.fixture
def other() -> Iterator[Redis]:
    """Another server, of the test's own."""
    made = Redis()
    try:
        made.start()
        yield made
    finally:
        made.remove()


@pytest.fixture
def open_app(request: pytest.FixtureRequest) -> Open:
    def app(url: str | Sequence[str], **settings: object) -> Umbel:
        changes = {"broker_url": url, "result_backend": "disabled://", **settings}
        made = Umbel("client", set_as_current=False, changes=changes)
        request.addfinalizer(made.close)
        return made

    return app


def waiting(app: Umbel) -> list[str]:
    return [each.id for each in app.broker.peek("celery", 10) if isinstance(each, Message)]


@contextmanager
def black_hole() -> Iterator[str]:
    """The URL of a server that takes no connection and says nothing of it."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        crowd = [socket.socket() for _ in range(4)]
        for each in crowd:  # fill what waits to be accepted
            each.setblocking(False)
            each.connect_ex(server.getsockname())
        try:
            yield f"redis://127.0.0.1:{server.getsockname()[1]}"
        finally:
            for each in crowd:
                each.close()


@pytest.mark.setting("broker_url")
@pytest.mark.parametrize("as_list", [True, False])
def test_of_several_urls_one_that_is_there_is_used(
    open_app: Open, redis: Redis, client: Client, as_list: bool
) -> None:
    urls = [NOWHERE, redis.url]
    app = open_app(urls if as_list else ";".join(urls))
    app.send_task("t", task_id="a")
    assert waiting(app) == ["a"]
    assert client.llen("celery") == 1


def test_one_that_takes_no_connection_is_passed_over_in_time(open_app: Open, redis: Redis) -> None:
    redis.flush()
    with black_hole() as hole:
        app = open_app([hole, redis.url])
        started = time.monotonic()
        app.send_task("t", task_id="a")
        assert time.monotonic() - started < BOUND
        assert waiting(app) == ["a"]


def test_the_next_one_is_used_when_one_fails(open_app: Open, redis: Redis, other: Redis) -> None:
    redis.flush()
    app = open_app([other.url, redis.url])
    app.send_task("t", task_id="a")
    assert waiting(app) == ["a"]
    other.kill()
    app.send_task("t", task_id="b")
    assert waiting(app) == ["b"]
    other.start()  # it isn't gone back to while the one that is used works
    app.send_task("t", task_id="c")
    assert waiting(app) == ["b", "c"]


def test_all_away_is_one_error_in_time(open_app: Open) -> None:
    app = open_app([NOWHERE, "redis://127.0.0.1:2"])
    started = time.monotonic()
    with pytest.raises(BrokerUnavailable, match=r"redis:127\.0\.0\.1:1 or redis:127\.0\.0\.1:2"):
        app.send_task("t")
    assert time.monotonic() - started < BOUND


@pytest.mark.setting("broker_failover_strategy")
def test_the_order_in_which_several_are_tried(
    open_app: Open, redis: Redis, other: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    for server in (redis, other):
        server.flush()
    urls = [redis.url, other.url]

    def last_first(given: list[str]) -> Iterator[str]:
        assert given == urls
        return itertools.cycle(reversed(given))

    open_app(urls, broker_failover_strategy=last_first).send_task("t", task_id="function")
    monkeypatch.setattr("random.shuffle", list.reverse)
    open_app(urls, broker_failover_strategy="shuffle").send_task("t", task_id="shuffle")
    open_app(urls, broker_failover_strategy="round-robin").send_task("t", task_id="in order")
    assert waiting(open_app(other.url)) == ["function", "shuffle"]
    assert waiting(open_app(redis.url)) == ["in order"]


@pytest.mark.parametrize(
    ("strategy", "sentence"),
    [
        ("random", "broker_failover_strategy is 'random'; expected 'round-robin', 'shuffle'"),
        (lambda _: ["redis://else"], "gave 'redis://else', which isn't one of the URLs"),
        (lambda _: [], "came to an end"),
    ],
)
def test_an_order_that_cannot_be(open_app: Open, strategy: object, sentence: str) -> None:
    app = open_app([NOWHERE, "redis://127.0.0.1:2"], broker_failover_strategy=strategy)
    with pytest.raises(ImproperlyConfigured, match=sentence):
        app.send_task("t")


@pytest.mark.setting("broker_use_ssl")
def test_use_ssl(open_app: Open, redis_over_tls: tuple[str, Path]) -> None:
    place, certificate = redis_over_tls
    url = f"redis://{place}"
    app = open_app(url, broker_use_ssl={"ssl_ca_certs": str(certificate)})
    app.send_task("t", task_id="a")
    assert "a" in waiting(app)
    with pytest.raises(BrokerUnavailable, match=r"(?i)certificate"):
        open_app(url, broker_use_ssl=True).send_task("t")


@pytest.mark.setting("broker_connection_timeout")
def test_connection_timeout(open_app: Open) -> None:
    """One try; without the setting it is over within the bound of a publish."""
    with black_hole() as hole:
        started = time.monotonic()
        with pytest.raises(BrokerUnavailable, match=r"(?i)timeout connecting|timed out"):
            open_app(hole, broker_connection_timeout=2.5).send_task("t", retry=False)
        longest = time.monotonic() - started
        started = time.monotonic()
        with pytest.raises(BrokerUnavailable, match=r"(?i)timeout connecting|timed out"):
            open_app(hole).send_task("t")
        assert time.monotonic() - started < BOUND < longest


@pytest.mark.setting("broker_pool_limit")
def test_no_more_connections_than_the_limit(open_app: Open, redis: Redis, client: Client) -> None:
    options = {"client_name": "counted"}
    app = open_app(redis.url, broker_pool_limit=2, broker_transport_options=options)
    start = threading.Barrier(8)

    def send() -> None:
        start.wait()
        for _ in range(20):
            app.send_task("t")

    threads = [threading.Thread(target=send) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert client.llen("celery") == 160
    assert 1 <= connections(client, "counted") <= 2


def connections(client: Client, name: str) -> int:
    return sum(each["name"] == name for each in client.client_list())


@pytest.mark.setting("broker_pool_limit")
@pytest.mark.parametrize("limit", [0, None])
def test_without_a_pool_no_connection_is_kept(
    open_app: Open, redis: Redis, client: Client, limit: int | None
) -> None:
    options = {"client_name": f"passing-{limit}"}
    app = open_app(redis.url, broker_pool_limit=limit, broker_transport_options=options)
    app.send_task("t")
    assert client.llen("celery") == 1
    until(lambda: connections(client, f"passing-{limit}") == 0)


@pytest.mark.setting("broker_pool_acquire_timeout")
def test_longest_wait_for_a_connection(open_app: Open, other: Redis) -> None:
    app = open_app(other.url, broker_pool_limit=1, broker_pool_acquire_timeout=0.05)
    app.send_task("t")
    other.freeze()
    errors: list[str] = []

    def send() -> None:
        try:
            app.send_task("t", retry=False)
        except Exception as error:
            errors.append(str(error))

    threads = [threading.Thread(target=send) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    other.thaw()
    assert len(errors) == 2
    assert [each for each in errors if "all 1 connections to" in each], errors
    app.send_task("t")


@pytest.mark.setting("broker_transport_options")
def test_who_is_logged_in_and_under_which_name(
    open_app: Open, redis: Redis, client: Client
) -> None:
    client.acl_setuser(
        "shop", enabled=True, passwords=["+secret"], keys=["*"], channels=["*"],
        categories=["+@all"],
    )  # fmt: skip
    try:
        login = {"username": "shop", "password": "secret", "client_name": "till"}
        for options in (login, {"credential_provider": ShopLogin, "client_name": "till"}):
            app = open_app(redis.url, broker_transport_options=options)
            app.send_task("t")
            users = {each["user"] for each in client.client_list() if each["name"] == "till"}
            assert users == {"shop"}
            app.close()
        wrong = open_app(redis.url, broker_transport_options={**login, "password": "x"})
        with pytest.raises(BrokerUnavailable, match="refuses this user or password"):
            wrong.send_task("t")
    finally:
        client.acl_deluser("shop")


@pytest.mark.setting("broker_transport_options")
def test_how_long_answers_and_connections_take(open_app: Open, other: Redis) -> None:
    app = open_app(other.url, broker_transport_options={"socket_timeout": 3.0})
    app.send_task("t", task_id="a")
    other.freeze()
    threading.Timer(2.0, other.thaw).start()
    app.send_task("t", task_id="b")
    assert waiting(app) == ["a", "b"]
    with black_hole() as hole:
        started = time.monotonic()
        options = {"socket_connect_timeout": 2.5}
        with pytest.raises(BrokerUnavailable):
            open_app(hole, broker_transport_options=options).send_task("t", retry=False)
        assert time.monotonic() - started > BOUND


@pytest.mark.setting("broker_transport_options")
def test_idle_connections_are_asked_whether_they_are_there(
    open_app: Open, redis: Redis, client: Client
) -> None:
    app = open_app(redis.url, broker_transport_options={"health_check_interval": 0.01})
    asked = int(client.info("commandstats").get("cmdstat_ping", {"calls": 0})["calls"])

    def is_asked() -> bool:
        app.send_task("t")
        return bool(client.info("commandstats").get("cmdstat_ping", {"calls": 0})["calls"] > asked)

    until(is_asked)


@pytest.mark.setting("broker_transport_options")
def test_keepalive(open_app: Open, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[socket.socket] = []
    connect = socket.socket.connect

    def noted(sock: socket.socket, to: Any) -> None:
        made.append(sock)
        connect(sock, to)

    monkeypatch.setattr(socket.socket, "connect", noted)
    options = {
        "socket_keepalive": True,
        "socket_keepalive_options": {socket.TCP_KEEPIDLE: 7},
    }
    open_app(redis.url, broker_transport_options=options).send_task("t")
    assert made[-1].getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert made[-1].getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 7


@pytest.mark.setting("broker_transport_options")
def test_an_option_that_changes_nothing_is_named(open_app: Open, redis: Redis) -> None:
    app = open_app(redis.url, broker_transport_options={"queue_order_strategy": True})
    with pytest.warns(LaterSetting, match=r"has 'queue_order_strategy', which changes nothing"):
        assert app.broker
