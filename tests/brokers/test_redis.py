"""What lies on the server: Celery's forms in, Celery's forms out, and nothing left behind."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hiredis
import pytest
from redis import Redis as Client
from tests.servers import Redis

from umbel.brokers.redis import Keys, RedisBroker, link
from umbel.brokers.redis.routes import kombu_pattern
from umbel.clock import ManualClock
from umbel.exceptions import BrokerUnavailable, ImproperlyConfigured, Unroutable
from umbel.exchanges import Binding
from umbel.message import Dead, How, Message, Posting, Settlement, Unreadable
from umbel.ports import BrokerOptions, Ready, Revocation
from umbel.testing.contract.rig import (
    OTHER,
    QUEUE,
    Background,
    Hand,
    eventually,
    ids,
    message,
    posting,
)

SEP = "\x06\x16"


@pytest.fixture
def server(redis_server: Redis) -> Redis:
    redis_server.flush()
    return redis_server


@pytest.fixture
def client(server: Redis) -> Iterator[Client]:
    """To look at what lies there, and to be a Celery producer."""
    with Client(port=server.port, decode_responses=True) as made:
        yield made


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def driver(server: Redis, clock: ManualClock) -> Iterator[RedisBroker]:
    made = opened(server, Keys(), clock)
    yield made
    made.close()


def opened(server: Redis, keys: Keys, clock: ManualClock) -> RedisBroker:
    driver = RedisBroker(server.url, BrokerOptions(), clock=clock, keys=keys)
    driver.open()
    driver.declare([QUEUE, OTHER])
    return driver


def hand_of(driver: RedisBroker, run: str = "run", number: int = 1) -> Hand:
    driver.enlist(run, f"{run}#{number}", b"")
    return Hand(driver, f"{run}#{number}")


def celery_message(task_id: str) -> str:
    """As `add.delay(1, 2)` of Celery 5.7 puts it into a list."""
    body = '[[1, 2], {}, {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]'
    envelope = {
        "body": base64.b64encode(body.encode()).decode(),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {"lang": "py", "task": "add", "id": task_id, "retries": 0},
        "properties": {
            "correlation_id": task_id,
            "delivery_mode": 2,
            "delivery_info": {"exchange": "", "routing_key": QUEUE},
            "priority": 0,
            "body_encoding": "base64",
            "delivery_tag": "0f7ad8a5-7f6b-4c26-9ed3-0b8d7ee6a1f4",
        },
    }
    return json.dumps(envelope)


def element(client: Client, name: str = QUEUE) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(client.lindex(name, 0))  # type: ignore[arg-type]
    return found


class TestCelerysForms:
    def test_a_message_is_kombus_envelope_with_one_key_more(
        self, driver: RedisBroker, client: Client
    ) -> None:
        driver.publish([posting("a")])
        stored = element(client)
        assert list(stored) == [
            "umbel", "body", "content-encoding", "content-type", "headers", "properties",
        ]  # fmt: skip
        assert base64.b64decode(stored["body"]) == message("a").body
        assert stored["headers"] == message("a").headers

    def test_new_ones_come_in_on_the_left(self, driver: RedisBroker, client: Client) -> None:
        driver.publish([posting("a"), posting("b")])
        assert element(client)["headers"]["id"] == "b"
        client.rpop(QUEUE)  # as a Celery worker takes
        assert ids(hand_of(driver).take()) == ["b"]

    @pytest.mark.parametrize(
        ("priority", "name"),
        [(0, QUEUE), (2, QUEUE), (3, f"{QUEUE}{SEP}3"), (5, f"{QUEUE}{SEP}3"),
         (6, f"{QUEUE}{SEP}6"), (9, f"{QUEUE}{SEP}9")],
    )  # fmt: skip
    def test_each_priority_has_the_list_of_its_step(
        self, driver: RedisBroker, client: Client, priority: int, name: str
    ) -> None:
        driver.publish([posting("a", priority=priority)])
        assert client.llen(name) == 1

    def test_what_celery_pushes_is_taken(self, driver: RedisBroker, client: Client) -> None:
        for n in range(3):
            client.lpush(QUEUE, celery_message(f"c{n}"))
        assert driver.find("c1") == (Ready(QUEUE, 1),)
        assert [m.id for m in driver.peek(QUEUE, 5) if isinstance(m, Message)] == ["c0", "c1", "c2"]
        hand = hand_of(driver)
        taken = hand.take()
        assert ids(taken) == ["c0", "c1", "c2"]
        first = taken[0].message
        assert isinstance(first, Message)
        assert first.body.startswith(b"[[1, 2], {}, ")
        hand.turn(*(Settlement(each.lease, How.ACK) for each in taken))
        assert client.llen(QUEUE) == 0

    def test_what_celery_pushed_goes_back_to_its_place(
        self, driver: RedisBroker, client: Client
    ) -> None:
        client.lpush(QUEUE, celery_message("c0"), celery_message("c1"))
        driver.publish([posting("u2")])
        client.lpush(QUEUE, celery_message("c3"))
        hand = hand_of(driver)
        taken = hand.take(3)
        hand.turn(*(Settlement(each.lease, How.RELEASE) for each in taken))
        assert ids(hand.take()) == ["c0", "c1", "u2", "c3"]

    def test_counts_stay_with_what_celery_pushed(self, driver: RedisBroker, client: Client) -> None:
        client.lpush(QUEUE, celery_message("c0"))
        hand = hand_of(driver)
        hand.requeue(hand.take_one(), "note, with: signs")
        again = hand.take_one()
        assert (again.redeliveries, again.redelivered) == (1, True)
        hand.ack(again, dead=Dead("it\nfailed: 100%", "ValueError"))
        letter = driver.dead_find("c0")
        assert letter is not None
        assert [note for _, note in letter.history] == ["note, with: signs", "it\nfailed: 100%"]

    def test_what_a_celery_worker_gives_back_keeps_its_count(
        self, driver: RedisBroker, client: Client
    ) -> None:
        driver.publish([posting("a")])
        hand = hand_of(driver)
        hand.requeue(hand.take_one())
        # It reads, marks and writes the envelope with Python's json, and pushes it to the front.
        envelope = json.loads(client.rpop(QUEUE))  # type: ignore[arg-type]
        envelope["headers"]["redelivered"] = True
        client.rpush(QUEUE, json.dumps(envelope))
        again = hand.take_one()
        assert ids([again]) == ["a"]
        assert again.redeliveries == 1

    def test_queues_with_celerys_messages_take_turns(
        self, driver: RedisBroker, client: Client
    ) -> None:
        for n in range(4):
            client.lpush(QUEUE, celery_message(f"q{n}"))
            client.lpush(OTHER, celery_message(f"o{n}"))
        taken = ids(hand_of(driver).take(4, QUEUE, OTHER))
        assert sorted(taken) == ["o0", "o1", "q0", "q1"]

    def test_what_celery_pushed_and_a_person_revoked_comes_first(
        self, driver: RedisBroker, client: Client
    ) -> None:
        client.lpush(QUEUE, celery_message("c0"), celery_message("c1"))
        assert driver.revoke([Revocation("c1")]) == {"c1"}
        assert ids(hand_of(driver).take()) == ["c1", "c0"]

    @pytest.mark.parametrize(
        "raw", [b"no json", b"\xff\x00\xfe", b"{}", b"[1]", b'{"body": 5}', b'{"bad', b""]
    )
    def test_what_is_no_message_is_handed_out_as_it_is_and_can_be_buried(
        self, driver: RedisBroker, client: Client, raw: bytes
    ) -> None:
        client.lpush(QUEUE, raw, celery_message("c0"))
        hand = hand_of(driver)
        first, second = hand.take()
        assert isinstance(first.message, Unreadable)
        assert first.message.raw == raw
        hand.release(first)
        again = hand.take_one()
        assert isinstance(again.message, Unreadable)
        assert again.message.raw == raw
        hand.reject(again, Dead("not a message", "DecodeError"))
        hand.ack(second)
        (letter,) = driver.dead()
        assert isinstance(letter.message, Unreadable)
        assert (letter.message.raw, letter.id) == (raw, "")

    def test_bindings_are_in_kombus_sets(self, driver: RedisBroker, client: Client) -> None:
        driver.declare(["news"], [Binding("news", "world", "topic", "sport.*.#")])
        driver.declare([], [Binding("news", "pets", "direct", "cat")])
        member = rf"sport.*.#{SEP}^sport\.[^\.]+\..*?${SEP}news"
        assert client.smembers("_kombu.binding.world") == {member}
        assert client.smembers("_kombu.binding_permanent.world") == {member}
        assert client.smembers("_kombu.binding.pets") == {f"cat{SEP}{SEP}news"}
        assert client.smembers("_kombu.binding.news") == {f"news{SEP}{SEP}news"}
        driver.unbind([Binding("news", "pets", "direct", "cat")])
        assert client.exists("_kombu.binding.pets") == 0

    def test_celerys_bindings_lead_our_messages(self, driver: RedisBroker, client: Client) -> None:
        client.sadd("_kombu.binding.theirs", f"a.#{SEP}{kombu_pattern('a.#')}{SEP}{QUEUE}")
        client.sadd("_kombu.binding.plain", f"key{SEP}{SEP}celerys")
        driver.publish(
            [Posting(message("m"), "a.b", "theirs"), Posting(message("n"), "key", "plain")]
        )
        assert driver.find("m") == (Ready(QUEUE, 0),)
        assert client.llen("celerys") == 1
        with pytest.raises(Unroutable):
            driver.publish([Posting(message("m"), "b.a", "theirs")])

    def test_what_is_due_later_is_in_no_list(self, driver: RedisBroker, client: Client) -> None:
        driver.publish([posting("a", due_at=1_800_000_010.5)])
        assert client.exists(QUEUE) == 0
        assert (
            client.zrange(f"umbel:{{{QUEUE}}}:due", 0, -1, withscores=True)[0][1] == 1_800_000_010.5
        )


class TestOptions:
    def test_low_first_serves_as_celery_does(self, server: Redis, clock: ManualClock) -> None:
        driver = opened(server, Keys(low_first=True), clock)
        for priority in (9, 0, 6, 3, 1):
            driver.publish([posting(f"p{priority}", priority=priority)])
        driver.revoke([Revocation("p6")])
        shown = [each.id for each in driver.peek(QUEUE, 9) if isinstance(each, Message)]
        assert shown == ["p6", "p0", "p1", "p3", "p9"]
        assert ids(hand_of(driver).take()) == shown
        driver.close()

    def test_every_key_has_the_prefix(
        self, server: Redis, client: Client, clock: ManualClock
    ) -> None:
        driver = opened(server, Keys("shop:"), clock)
        driver.declare([], [Binding(QUEUE, "x", "topic", "a")])
        driver.publish([posting("a"), posting("b", due_at=clock.wall() + 9)])
        hand = hand_of(driver)
        hand.bury_as_dead(hand.take_one())
        driver.beat("run")
        assert {each for each in client.scan_iter() if not each.startswith("shop:")} == set()
        driver.close()

    def test_steps_and_sep_are_as_the_fleet_has_them(
        self, server: Redis, client: Client, clock: ManualClock
    ) -> None:
        options = {"sep": ":", "priority_steps": [0, 5]}
        driver = opened(server, Keys.of(options, low_first=False), clock)
        driver.publish([posting("a", priority=4), posting("b", priority=7)])
        assert (client.llen(QUEUE), client.llen(f"{QUEUE}:5")) == (1, 1)
        assert ids(hand_of(driver).take()) == ["b", "a"]
        driver.close()

    @pytest.mark.parametrize(
        "options",
        [
            {"sep": ""}, {"sep": 1}, {"global_keyprefix": None}, {"priority_steps": []},
            {"priority_steps": [1, 2]}, {"priority_steps": [0, 3, 3]}, {"priority_steps": "0369"},
            {"priority_steps": [0, 10]},
        ],
    )  # fmt: skip
    def test_options_that_cannot_be(self, options: dict[str, object]) -> None:
        with pytest.raises(ImproperlyConfigured, match="broker_transport_options has "):
            Keys.of(options, low_first=False)


class TestAddresses:
    def test_what_a_url_names(self) -> None:
        driver = RedisBroker("redis://:secret@Host:1234/5", BrokerOptions())
        assert driver.location == "redis:host:1234"

    def test_a_unix_socket(self, server: Redis) -> None:
        driver = RedisBroker(f"redis+socket://{server.socket}", BrokerOptions())
        driver.open()
        driver.declare([QUEUE])
        driver.publish([posting("a")])
        assert driver.wait([QUEUE], 5.0)
        assert ids(hand_of(driver).take()) == ["a"]
        driver.close()

    def test_over_tls(self, redis_over_tls: tuple[str, Path]) -> None:
        place, certificate = redis_over_tls
        driver = RedisBroker(f"rediss://{place}?ssl_ca_certs={certificate}", BrokerOptions())
        driver.open()
        driver.declare([QUEUE])
        waiting = Background(lambda: driver.wait([QUEUE], 60.0))
        eventually(lambda: bool(driver.waiting))
        for name in "abc":
            driver.publish([posting(name)])
        assert waiting.result() is True
        assert ids(hand_of(driver).take()) == ["a", "b", "c"]
        driver.close()
        with pytest.raises(BrokerUnavailable, match="certificate verify failed"):
            RedisBroker(f"rediss://{place}", BrokerOptions()).open()

    def test_a_wrong_password_is_one_sentence(self, server: Redis) -> None:
        url = server.url.replace("//", "//user:wrong@")
        with pytest.raises(BrokerUnavailable, match="refuses this user or password"):
            RedisBroker(url, BrokerOptions()).open()


def test_commands_are_packed_as_hiredis_does() -> None:
    command = ("SET", b"\xff\x00", 12, -3, "ü", b"", "")
    assert link.pack(command) == hiredis.pack_command(command)  # type: ignore[arg-type]


def test_nothing_is_left_behind(driver: RedisBroker, client: Client, clock: ManualClock) -> None:
    """After tasks of all kinds, and workers that died of all kinds, the keys are what they were."""
    driver.enlist("survivor", None, b"")
    driver.beat("survivor")
    driver.publish([posting("first")])
    before = {*client.scan_iter()} - {QUEUE}
    driver.purge([QUEUE])
    for n in range(60):
        run = f"run{n}"
        own = f"own.{n}"
        hand = hand_of(driver, run)
        other = hand_of(driver, run, 2)
        driver.declare([own], [Binding(own, "all", "fanout")], run=run)
        driver.publish(
            [posting(f"m{n}-{k}", priority=k % 10, due_at=clock.wall() + k % 3) for k in range(12)]
        )
        driver.publish([Posting(message("b"), "", "all")])
        clock.advance(3)
        taken = hand.take(6)
        hand.turn(
            Settlement(taken[0].lease, How.ACK, (posting("follow"),)),
            Settlement(taken[1].lease, How.REQUEUE),
            Settlement(taken[2].lease, How.ACK, dead=Dead("failed", "ValueError")),
            Settlement(taken[3].lease, How.RELEASE, delay=1.0),
            begin=5,
        )
        driver.revoke([Revocation(f"m{n}-1")])
        other.take(4)
        if n % 3 == 0:
            driver.leave(run)
        elif n % 3 == 1:
            other.abandon(running=[1])
    for _ in range(8):
        clock.advance(driver._options.heartbeat)
        driver.beat("survivor")
    last = hand_of(driver, "last")
    while taken := last.take(100):
        last.turn(*(Settlement(each.lease, How.ACK) for each in taken))
    driver.leave("last")
    driver.dead_delete(None)
    clock.advance(8 * 86_400)
    driver.beat("survivor")
    after = {*client.scan_iter()}
    assert after - before <= {"umbel:revocations:version", "umbel:revocations:looked"}
    assert before - after == set()
