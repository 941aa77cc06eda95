"""Messages and results on a primary that Sentinels name, and what a failover leaves of them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

import pytest
from tests.servers import Redis, Sentinel, Watched, redis_client, watched

from umbel import Umbel
from umbel.exceptions import BrokerUnavailable, ImproperlyConfigured, PublishUnknown
from umbel.ports import Broker
from umbel.retry.publishing import BOUND
from umbel.testing.contract.rig import OTHER, QUEUE, Background, Hand, eventually, ids, posting
from umbel.testing.contract.storing import result

__all__ = ["watched"]


@pytest.fixture
def app(watched: Watched) -> Iterator[Umbel]:
    with _app(watched.url, watched.transport) as app:
        yield app


def _app(url: str, transport: Mapping[str, object], **settings: object) -> Umbel:
    return Umbel(
        "client", broker=url, backend=url, set_as_current=False,
        changes={
            "broker_transport_options": transport,
            **settings,
        },
    )  # fmt: skip


@pytest.mark.setting("broker_transport_options")
def test_a_failover_leaves_messages_results_and_listeners_where_they_were(
    watched: Watched, app: Umbel
) -> None:
    broker, store = app.broker, app.store
    assert store is not None
    broker.declare([QUEUE])
    broker.publish([posting("a"), posting("b")])
    broker.enlist("run", "run#1", b"")
    hand = Hand(broker, "run#1")
    first = hand.take_one()
    store.put([result("a")])
    with redis_client(watched.primary.port) as client:
        client.wait(1, 5000)
    hearing = broker.subscribe(["control"])

    watched.primary.kill()
    started = time.monotonic()
    with pytest.raises((BrokerUnavailable, PublishUnknown)):
        app.send_task("t")
    assert time.monotonic() - started < BOUND
    watched.await_promotion()

    promoted = time.monotonic()
    assert hand.ack(first).lost == frozenset()
    assert ids(hand.take()) == ["b"]
    assert store.get(["a"]) == [result("a")]
    store.put([result("b")])
    _hears(app, hearing)
    assert time.monotonic() - promoted < 5.0
    hearing.close()
    assert broker.location == store.location


def _hears(app: Umbel, hearing: object) -> None:
    with pytest.raises(BrokerUnavailable):
        hearing.get(5.0)  # type: ignore[attr-defined]  # any driver's
    assert hearing.get(0.0) is None  # type: ignore[attr-defined]
    app.broker.broadcast("control", b"x")
    assert hearing.get(5.0) == ("control", b"x")  # type: ignore[attr-defined]


def test_a_primary_that_has_become_a_replica_is_left(watched: Watched, app: Umbel) -> None:
    """As after a failover that an administrator asked for: the old one runs on."""
    broker = app.broker
    broker.declare([QUEUE, OTHER])
    broker.publish([posting("a")])
    waiting = Background(lambda: broker.wait([OTHER], 60.0))
    eventually(lambda: bool(broker.waiting))  # type: ignore[attr-defined]
    with redis_client(watched.sentinels[0].port) as client:
        client.execute_command("SENTINEL", "FAILOVER", Sentinel.NAME)
    watched.await_promotion()
    # What is published now is seen on the new primary, by a driver and by one that waits.
    started = time.monotonic()
    with redis_client(watched.replica.port) as client:
        eventually(lambda: _publishes(broker) and bool(client.llen(OTHER)), 5.0)
    assert waiting.result() is True
    assert time.monotonic() - started < 5.0
    broker.enlist("run", "run#1", b"")
    assert ids(Hand(broker, "run#1").take()) == ["a"]


def _publishes(broker: Broker) -> bool:
    try:
        broker.publish([posting("b", OTHER)])
    except BrokerUnavailable:
        return False
    return True


def test_without_any_sentinel_the_primary_is_where_it_was(watched: Watched, app: Umbel) -> None:
    app.send_task("t", task_id="a")
    for sentinel in watched.sentinels:
        sentinel.kill()
    with redis_client(watched.primary.port) as client:
        client.client_kill_filter(_type="normal", skipme=True)
        app.send_task("t", task_id="b")
        assert client.llen("celery") == 2


@pytest.mark.setting("broker_transport_options")
def test_a_message_counts_when_the_replicas_have_it(watched: Watched) -> None:
    transport = {**watched.transport, "wait_replicas": 1}
    with _app(watched.url, transport) as app:
        app.broker.declare([QUEUE])
        app.broker.publish([posting("a")])
        watched.replica.freeze()
        try:
            started = time.monotonic()
            with pytest.raises(PublishUnknown, match="0 replicas say that they have it"):
                app.send_task("t")
            assert time.monotonic() - started < BOUND
        finally:
            watched.replica.thaw()


@pytest.mark.parametrize("replicas", [-1, True, "1"])
def test_a_number_of_replicas_that_cannot_be(replicas: object) -> None:
    with (
        _app("redis://127.0.0.1:1", {"wait_replicas": replicas}) as app,
        pytest.raises(ImproperlyConfigured, match="expected a whole number from 0"),
    ):
        assert app.broker


def test_sentinels_that_know_no_such_primary_or_are_away_are_said(watched: Watched) -> None:
    port = watched.sentinels[0].port
    with (
        _app(f"sentinel://127.0.0.1:{port}", {"master_name": "nobody"}) as app,
        pytest.raises(BrokerUnavailable, match="no Sentinel knows a primary 'nobody'"),
    ):
        app.broker.publish([])
    with (
        _app("sentinel://127.0.0.1:1", {"master_name": "main"}) as app,
        pytest.raises(BrokerUnavailable, match=r"127\.0\.0\.1:1 says"),
    ):
        app.broker.publish([])
    few = {**watched.transport, "min_other_sentinels": 2}
    with (
        _app(watched.url, few) as app,
        pytest.raises(BrokerUnavailable, match="1 others are known; min_other_sentinels is 2"),
    ):
        app.broker.publish([])


@pytest.mark.setting("broker_transport_options", "result_backend_transport_options")
def test_sentinels_and_servers_have_logins_of_their_own(redis_server: Redis) -> None:
    redis_server.flush()
    sentinel = Sentinel(redis_server, "requirepass of-the-sentinel")
    try:
        sentinel.prepare()
        sentinel.start()
        with redis_client(redis_server.port) as client:
            client.acl_setuser(
                "shop", enabled=True, passwords=["+of-the-server"], keys=["*"], channels=["*"],
                categories=["+@all"],
            )  # fmt: skip
            url = f"sentinel://shop:of-the-server@127.0.0.1:{sentinel.port}/2"
            transport = {"master_name": "main", "sentinel_kwargs": {"password": "of-the-sentinel"}}
            results = {"result_backend_transport_options": transport}
            with _app(url, transport, **results) as app:
                app.send_task("t", task_id="a")
                assert app.store is not None
                app.store.put([result("a")])
                users = {each["user"] for each in client.client_list() if each["db"] == "2"}
                assert users == {"shop"}
                client.select(2)
                assert client.exists("celery", "celery-task-meta-a") == 2
            wrong = {**transport, "sentinel_kwargs": {"password": "x"}}
            with (
                _app(url, wrong) as app,
                pytest.raises(BrokerUnavailable, match="no Sentinel knows a primary 'main'"),
            ):
                app.send_task("t")
            client.acl_deluser("shop")
    finally:
        sentinel.remove()


@pytest.mark.parametrize(
    ("url", "transport", "sentence"),
    [
        ("sentinel://one", {}, "has master_name=None; expected the name"),
        ("sentinel://one", {"master_name": "m", "sentinel_kwargs": 1}, "sentinel_kwargs=1"),
        ("sentinel://one;redis://two", {"master_name": "m"}, "mixes kinds of servers"),
    ],
)
def test_what_cannot_be_a_sentinels_address(
    url: str, transport: dict[str, object], sentence: str
) -> None:
    with _app(url, transport) as app, pytest.raises(ImproperlyConfigured, match=sentence):
        assert app.broker
