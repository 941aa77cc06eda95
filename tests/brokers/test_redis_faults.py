"""What a driver says and does when the server, or the way to it, fails."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial

import pytest
from redis import Redis as Client
from tests.brokers.redis_proxy import Proxy
from tests.servers import Redis

from umbel import Umbel
from umbel.brokers.redis import RedisBroker
from umbel.brokers.redis.waiting import SILENCE
from umbel.exceptions import BrokerUnavailable, PublishUnknown
from umbel.message import How, Settlement
from umbel.ports import BrokerOptions, Ready
from umbel.retry.publishing import BOUND
from umbel.testing.contract.rig import QUEUE, Background, Hand, eventually, ids, posting


@pytest.fixture
def direct(redis_server: Redis) -> Iterator[RedisBroker]:
    """A driver that nothing is done to."""
    redis_server.flush()
    driver = _opened(redis_server.url)
    yield driver
    driver.close()


@pytest.fixture
def proxy(redis_server: Redis) -> Iterator[Proxy]:
    made = Proxy(redis_server.port)
    yield made
    made.close()


@pytest.fixture
def driver(direct: RedisBroker, proxy: Proxy) -> Iterator[RedisBroker]:
    """A driver behind the proxy."""
    made = _opened(proxy.url)
    yield made
    made.close()


def _opened(url: str) -> RedisBroker:
    driver = RedisBroker(url, BrokerOptions())
    driver.open()
    driver.declare([QUEUE])
    return driver


def _hand(driver: RedisBroker) -> Hand:
    driver.enlist("run", "run#1", b"")
    return Hand(driver, "run#1")


def test_a_publish_whose_reply_is_lost_says_so(
    driver: RedisBroker, direct: RedisBroker, proxy: Proxy
) -> None:
    driver.publish([posting("before")])
    proxy.lose_replies = True
    with pytest.raises(PublishUnknown, match="may or may not be stored"):
        driver.publish([posting("a")])
    proxy.lose_replies = False
    eventually(lambda: direct.find("a") == (Ready(QUEUE, 1),))
    driver.publish([posting("after")])
    assert ids(_hand(driver).take()) == ["before", "a", "after"]


def test_a_turn_whose_reply_is_lost_is_repeated_and_done_once(
    driver: RedisBroker, direct: RedisBroker, proxy: Proxy
) -> None:
    driver.publish([posting("a"), posting("b"), posting("c")])
    hand = _hand(driver)
    first = hand.take_one()
    proxy.lose_replies = True
    settlement = Settlement(first.lease, How.ACK, (posting("follow"),))
    with pytest.raises(BrokerUnavailable):
        hand.turn(settlement, limit=1)
    eventually(lambda: direct.held(hand.name) == {2})
    proxy.lose_replies = False
    turn = hand.again(settlement, limit=1)
    assert (ids(turn.deliveries), turn.lost) == (["b"], frozenset())
    assert ids(hand.take()) == ["c", "follow"]


def test_a_connection_that_ended_while_idle_is_replaced_unnoticed(
    driver: RedisBroker, proxy: Proxy
) -> None:
    driver.publish([posting("a")])
    proxy.cut()
    driver.publish([posting("b")])
    assert ids(_hand(driver).take()) == ["a", "b"]


@pytest.mark.parametrize("is_connected", [True, False])
def test_a_publish_into_nothing_is_over_within_its_bound(
    driver: RedisBroker, proxy: Proxy, is_connected: bool
) -> None:
    driver.publish([posting("a")])
    proxy.swallow = True
    if not is_connected:
        proxy.cut()
    started = time.monotonic()
    with pytest.raises((BrokerUnavailable, PublishUnknown)):
        driver.publish([posting("b")])
    assert time.monotonic() - started < BOUND


@pytest.mark.parametrize("is_connected", [True, False])
def test_a_delay_into_nothing_is_over_within_its_bound_with_all_its_tries(
    proxy: Proxy, redis_server: Redis, is_connected: bool
) -> None:
    with Umbel("client", broker=proxy.url, set_as_current=False) as app:
        if is_connected:
            app.send_task("t")
        proxy.swallow = True
        started = time.monotonic()
        with pytest.raises((BrokerUnavailable, PublishUnknown)):
            app.send_task("t")
        assert time.monotonic() - started < BOUND


def test_a_server_that_is_away_is_one_sentence(direct: RedisBroker, redis_server: Redis) -> None:
    redis_server.kill()
    try:
        for call in (
            lambda: direct.publish([posting("a")]),
            lambda: direct.wait([QUEUE], 5.0),
            lambda: direct.queues(),
            lambda: direct.beat("run"),
            lambda: direct.broadcast("x", b""),
            lambda: direct.subscribe(["x"]),
            lambda: RedisBroker(redis_server.url, BrokerOptions()).open(),
        ):
            started = time.monotonic()
            with pytest.raises(BrokerUnavailable, match="can't be reached"):
                call()
            assert time.monotonic() - started < BOUND
    finally:
        redis_server.start()
    direct.publish([posting("b")])


def test_a_server_that_stands_still_holds_nobody_up(
    direct: RedisBroker, redis_server: Redis
) -> None:
    assert redis_server.pid is not None
    os.kill(redis_server.pid, signal.SIGSTOP)
    try:
        started = time.monotonic()
        with pytest.raises((BrokerUnavailable, PublishUnknown)):
            direct.publish([posting("a")])
        assert time.monotonic() - started < BOUND
    finally:
        os.kill(redis_server.pid, signal.SIGCONT)


def test_what_was_stored_survives_a_kill_of_the_server(
    direct: RedisBroker, redis_server: Redis
) -> None:
    direct.publish([posting("a"), posting("b")])
    hand = _hand(direct)
    first = hand.take_one()
    redis_server.kill()
    redis_server.start()
    assert hand.ack(first).lost == frozenset()
    assert ids(hand.take()) == ["b"]


def test_a_server_that_has_lost_everything_is_told_of_our_queues_again(
    direct: RedisBroker, redis_server: Redis
) -> None:
    direct.publish([posting("a")])
    redis_server.flush()
    direct.publish([posting("b")])
    assert ids(_hand(direct).take()) == ["b"]


def test_a_server_that_has_forgotten_the_scripts_is_given_them_again(
    direct: RedisBroker, redis_server: Redis
) -> None:
    with Client(port=redis_server.port) as client:
        client.script_flush()
    direct.publish([posting("a")])
    assert ids(_hand(direct).take()) == ["a"]


def test_a_wait_whose_connection_ends_says_so_and_the_next_one_waits(
    driver: RedisBroker, direct: RedisBroker, proxy: Proxy
) -> None:
    waiting = Background(lambda: driver.wait([QUEUE], 60.0))
    eventually(lambda: bool(driver.waiting))
    proxy.cut()
    with pytest.raises(BrokerUnavailable):
        waiting.result()
    waiting = Background(lambda: driver.wait([QUEUE], 60.0))
    direct.publish([posting("a")])
    assert waiting.result() is True


def test_a_wait_that_hears_nothing_any_more_notices(driver: RedisBroker, proxy: Proxy) -> None:
    waiting = Background(lambda: driver.wait([QUEUE], 60.0))
    eventually(lambda: bool(driver.waiting))
    proxy.swallow = True
    started = time.monotonic()
    with pytest.raises(BrokerUnavailable):
        waiting.result()
    assert time.monotonic() - started < 5.0


def test_at_its_memory_limit_publishing_fails_and_work_goes_on(
    direct: RedisBroker, redis_server: Redis
) -> None:
    direct.publish([posting("a"), posting("b")])
    hand = _hand(direct)
    first = hand.take_one()
    with Client(port=redis_server.port) as client:
        client.config_set("maxmemory", "1")
        try:
            with pytest.raises(BrokerUnavailable, match="is at its memory limit"):
                direct.publish([posting("c")])
            hand.ack(first)
            second = hand.take_one()
            hand.turn(begin=second.lease)
            assert direct.beat("run").alive
            hand.ack(second)
        finally:
            client.config_set("maxmemory", "0")
    assert direct.find("c") == ()
    assert hand.take() == ()


def test_a_subscription_whose_connection_ended_hears_again(
    driver: RedisBroker, direct: RedisBroker, proxy: Proxy
) -> None:
    listener = driver.subscribe(["control"])
    proxy.cut()
    with pytest.raises(BrokerUnavailable):
        listener.get(5.0)
    assert listener.get(0.0) is None
    direct.broadcast("control", b"x")
    assert listener.get(5.0) == ("control", b"x")
    listener.close()


def test_a_subscription_that_hears_nothing_any_more_notices(
    driver: RedisBroker, direct: RedisBroker, proxy: Proxy
) -> None:
    listener = driver.subscribe(["control"])
    proxy.deafen()
    started = time.monotonic()
    with pytest.raises(BrokerUnavailable, match="no answer for"):
        listener.get(60.0)
    assert time.monotonic() - started < 8.0
    assert listener.get(0.0) is None
    direct.broadcast("control", b"x")
    assert listener.get(5.0) == ("control", b"x")
    listener.close()


def test_a_subscription_to_a_server_that_is_there_is_asked_and_stays(driver: RedisBroker) -> None:
    listener = driver.subscribe(["control"])
    assert listener.get(2.5 * SILENCE) is None
    driver.broadcast("control", b"x")
    assert listener.get(5.0) == ("control", b"x")
    listener.close()


def test_a_wait_on_dead_connections_sees_what_comes(
    driver: RedisBroker, direct: RedisBroker, proxy: Proxy
) -> None:
    """Its own, of which nobody says that they ended; the next wait has new ones."""
    waiting = Background(lambda: driver.wait([QUEUE], 60.0))
    eventually(lambda: bool(driver.waiting))
    proxy.deafen()
    started = time.monotonic()
    with pytest.raises(BrokerUnavailable):
        waiting.result()
    waiting = Background(lambda: driver.wait([QUEUE], 60.0))
    direct.publish([posting("a")])
    assert waiting.result() is True
    assert time.monotonic() - started < 5.0


def test_one_dead_connection_is_a_word_about_the_others(driver: RedisBroker, proxy: Proxy) -> None:
    """So that it isn't found out of each of them in turn, for a time-out each."""
    start = threading.Barrier(4)

    def publish(name: str) -> None:
        start.wait()
        driver.publish([posting(name)])

    for each in [Background(partial(publish, f"a{n}")) for n in range(4)]:
        each.result()
    proxy.deafen()
    with pytest.raises(PublishUnknown):
        driver.publish([posting("b")])
    for n in range(4):
        driver.publish([posting(f"c{n}")])


def test_a_server_that_has_become_a_replica_is_left_for_the_next(redis_server: Redis) -> None:
    """Nothing was done there (READONLY), so it is done here, and nobody is told."""
    redis_server.flush()
    first = Redis()
    try:
        first.start()
        driver = _opened(f"{first.url};{redis_server.url}")
        driver.publish([posting("a")])
        with Client(port=first.port) as client:
            client.execute_command("REPLICAOF", "127.0.0.1", "1")
        with contextlib.suppress(BrokerUnavailable):  # its clients may be cut off first
            driver.publish([posting("b")])
        driver.publish([posting("c")])
        with Client(port=redis_server.port) as client:
            assert client.llen(QUEUE) >= 1
        driver.close()
    finally:
        first.remove()
