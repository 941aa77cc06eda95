"""Fanout exchanges on Redis: who listens on Kombu's channels hears ours, and we hear theirs."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from redis import Redis as Client
from redis.client import PubSub
from tests.servers import Redis

from umbel.brokers.redis import Keys, RedisBroker
from umbel.codec import pack
from umbel.exceptions import ImproperlyConfigured, Unroutable
from umbel.exchanges import Binding
from umbel.message import How, Message, Posting, Settlement
from umbel.ports import BrokerOptions, Relay
from umbel.testing.contract.rig import OTHER, QUEUE, eventually, message, posting

SEP = "\x06\x16"
NEWS = Binding(QUEUE, "news", "fanout")


@pytest.fixture
def server(redis_server: Redis) -> Redis:
    redis_server.flush()
    return redis_server


@pytest.fixture
def client(server: Redis) -> Iterator[Client]:
    """A Celery worker and client, as far as they can be seen on the server."""
    with Client(port=server.port) as made:
        yield made


@pytest.fixture
def driver(server: Redis) -> Iterator[RedisBroker]:
    made = opened(server)
    yield made
    made.close()


def opened(server: Redis, keys: Keys | None = None) -> RedisBroker:
    made = RedisBroker(server.url, BrokerOptions(), keys=keys)
    made.open()
    made.declare([QUEUE, OTHER])
    return made


def listening(client: Client, *patterns: str) -> PubSub:
    heard: PubSub = client.pubsub()  # type: ignore[no-untyped-call]  # redis-py's
    heard.psubscribe(*patterns)
    for _ in patterns:
        assert heard.get_message(timeout=10.0) is not None
    return heard


def payloads(heard: PubSub, count: int) -> list[dict[str, Any]]:
    """What was published, in its order; nothing comes after it."""
    found: list[dict[str, Any]] = []
    while len(found) < count:
        each = heard.get_message(timeout=10.0)
        assert each is not None, found
        found.append({"channel": each["channel"].decode(), **json.loads(each["data"])})
    assert heard.get_message(timeout=0.05) is None
    return found


def stored(driver: RedisBroker, queue: str = QUEUE) -> list[str]:
    return [each.id for each in driver.peek(queue, 10) if isinstance(each, Message)]


def carry(relays: Sequence[Relay]) -> None:
    """Until all that was published before this has been carried."""
    for relay in relays:
        relay.carry(10.0)


def relay_of(driver: RedisBroker, *queues: str) -> Relay:
    relay = driver.relay(queues)
    assert relay is not None
    return relay


def test_what_goes_to_a_fanout_exchange_is_also_told(driver: RedisBroker, client: Client) -> None:
    driver.declare([], [NEWS, Binding(OTHER, "news", "fanout")])
    heard = listening(client, "/0.news", "/0.news/celery", "/0.other*")
    driver.publish([Posting(message("a"), "", "news")])
    assert stored(driver) == stored(driver, OTHER) == ["a"]
    [told] = payloads(heard, 1)
    assert told["channel"] == "/0.news"
    assert list(told)[1] == "umbel"
    assert told["headers"]["id"] == "a"
    driver.publish([Posting(message("b"), "celery", "news")])
    assert [each["channel"] for each in payloads(heard, 1)] == ["/0.news/celery"]


def test_strangers_hear_it_by_whichever_key_they_listen(
    driver: RedisBroker, client: Client
) -> None:
    driver.declare([], [NEWS])
    client.sadd("_kombu.binding.news", f"celery{SEP}{SEP}theirs", f"x{SEP}{SEP}fan")
    heard = listening(client, "/0.news/celery", "/0.news/x")
    driver.publish([Posting(message("a"), "", "news")])
    assert sorted(each["channel"] for each in payloads(heard, 2)) == ["/0.news/celery", "/0.news/x"]
    # They take it from no list.
    assert client.exists("theirs", "fan") == 0
    assert stored(driver) == ["a"]


def test_follow_ups_are_told_too(driver: RedisBroker, client: Client) -> None:
    driver.declare([], [Binding(OTHER, "news", "fanout")])
    heard = listening(client, "/0.news")
    driver.publish([posting("a")])
    driver.enlist("run", "run#1", b"")
    driver.turn("run#1", 1, queues=[QUEUE], limit=1)
    follow_up = Posting(message("b"), "", "news")
    driver.turn("run#1", 2, settlements=[Settlement(1, How.ACK, follow_ups=(follow_up,))])
    assert [each["headers"]["id"] for each in payloads(heard, 1)] == ["b"]
    assert stored(driver, OTHER) == ["b"]


def test_strangers_alone_must_be_there_to_hear_it(driver: RedisBroker, client: Client) -> None:
    """The bindings of dead workers of Celery's stay."""
    client.sadd("_kombu.binding.calls", f"celery{SEP}{SEP}bcast.1234")
    both = [posting("stays"), Posting(message("a"), "", "calls")]
    with pytest.raises(Unroutable, match="exchange 'calls'"):
        driver.publish(both)
    assert stored(driver) == []
    heard = listening(client, "/0.calls/celery")
    driver.publish(both)
    assert [each["headers"]["id"] for each in payloads(heard, 1)] == ["a"]
    assert stored(driver) == ["stays"]
    assert client.exists("bcast.1234") == 0


def test_what_strangers_publish_is_stored_once_in_each_queue(
    driver: RedisBroker, server: Redis, client: Client
) -> None:
    driver.declare([], [NEWS, Binding(OTHER, "news", "fanout"), Binding(OTHER, "more", "fanout")])
    second = opened(server)
    relays = [relay_of(driver, QUEUE, OTHER), relay_of(second, QUEUE, OTHER)]
    client.publish("/0.news", pack(message("a")))
    client.publish("/0.news/celery", pack(message("b")))
    client.publish("/0.more", pack(message("c")))
    for _ in range(3):
        carry(relays)
    assert stored(driver) == ["a", "b"]
    assert stored(driver, OTHER) == ["a", "b", "c"]
    names = list(client.scan_iter("umbel:heard:*"))
    assert len(names) == 5
    assert all(0 < client.ttl(name) <= 600 for name in names)
    for relay in relays:
        relay.close()
    second.close()


def test_what_we_publish_is_not_taken_for_a_strangers(driver: RedisBroker, client: Client) -> None:
    driver.declare([], [NEWS])
    relay = relay_of(driver, QUEUE)
    driver.publish([Posting(message("a"), "", "news")])
    client.publish("/0.news", pack(message("b")))
    for _ in range(2):
        relay.carry(10.0)
    assert stored(driver) == ["a", "b"]
    relay.close()
    relay.close()


def test_the_strangers_priority_counts(driver: RedisBroker, client: Client) -> None:
    driver.declare([], [NEWS])
    relay = relay_of(driver, QUEUE)
    for task_id, priority in (("low", 0), ("high", 7)):
        sent = message(task_id)
        sent.properties["priority"] = priority
        client.publish("/0.news", pack(sent))
    client.publish("/0.news", b"no message")
    for _ in range(3):
        relay.carry(10.0)
    assert stored(driver) == ["high", "low"]
    assert len(driver.peek(QUEUE, 10)) == 3
    relay.close()


def test_celerys_workers_dont_give_their_copies_to_our_queues(
    driver: RedisBroker, client: Client
) -> None:
    """As they would to all that is bound in Kombu's set, when one of them has died."""
    driver.declare([], [NEWS])
    driver.enlist("run", None, b"")
    driver.declare([], [Binding("own", "news", "fanout")], run="run")
    assert client.exists("_kombu.binding.news") == 0
    assert driver.unbind([NEWS]) == 1
    driver.leave("run")
    assert driver.bindings() == ()


def test_without_fanout_queues_there_is_nothing_to_relay(driver: RedisBroker) -> None:
    driver.declare([], [NEWS])
    assert driver.relay([OTHER]) is None
    assert driver.relay([]) is None


def test_a_relay_goes_on_after_its_server_was_away(
    driver: RedisBroker, server: Redis, client: Client
) -> None:
    driver.declare([], [NEWS])
    relay = relay_of(driver, QUEUE)
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            try:
                relay.carry(0.2)
            except Exception:
                time.sleep(0.01)

    thread = threading.Thread(target=work)
    thread.start()
    server.kill()
    server.start()

    def reaches_us() -> bool:
        with Client(port=server.port) as again:
            return bool(again.publish("/0.news", pack(message("a"))))

    driver.declare([QUEUE], [NEWS])
    eventually(reaches_us)
    eventually(lambda: "a" in stored(driver))
    over.set()
    relay.close()
    thread.join()


@pytest.mark.parametrize(
    ("options", "plain", "keyed"),
    [
        ({}, "/0.news", "/0.news/k"),
        ({"fanout_prefix": "x{db}-"}, "x0-news", "x0-news/k"),
        ({"fanout_prefix": False}, "news", "news/k"),
        ({"fanout_patterns": False}, "/0.news", "/0.news"),
        ({"global_keyprefix": "GP:"}, "GP:/0.news", "GP:/0.news/k"),
    ],
)
def test_names_of_channels_are_the_fleets(
    server: Redis, client: Client, options: dict[str, object], plain: str, keyed: str
) -> None:
    driver = opened(server, Keys.of(options, low_first=False))
    driver.declare([], [NEWS])
    relay, heard = relay_of(driver, QUEUE), listening(client, "*")
    for key in ("", "k"):
        driver.publish([Posting(message(f"ours{key}"), key, "news")])
    assert [each["channel"] for each in payloads(heard, 2)] == [plain, keyed]
    for number, channel in enumerate((plain, keyed)):
        client.publish(channel, pack(message(f"theirs{number}")))
    for _ in range(4):
        relay.carry(10.0)
    assert stored(driver) == ["ours", "oursk", "theirs0", "theirs1"]
    relay.close()
    driver.close()


def test_names_with_signs_of_patterns_are_names(driver: RedisBroker, client: Client) -> None:
    odd = "a*[b]?\\"
    listener = driver.subscribe([odd])
    client.publish("/0.axb", b"no")
    client.publish(f"/0.{odd}", b"yes")
    assert listener.get(10.0) == (odd, b"yes")
    listener.close()


@pytest.mark.parametrize("value", [7, "{", "{nothing}"])
def test_a_prefix_that_cant_be_one_is_refused(value: object) -> None:
    with pytest.raises(ImproperlyConfigured, match="fanout_prefix"):
        Keys.of({"fanout_prefix": value}, low_first=False)
