"""Queues that Celery's workers use too: what their dead held comes back, what is ours goes back."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from redis import Redis as Client
from tests.brokers.test_redis import (
    celery_message,
    client,
    clock,
    driver,
    hand_of,
    opened,
    server,
)
from tests.servers import Redis

from umbel.brokers.redis import Keys, RedisBroker
from umbel.brokers.redis.keys import Unacked
from umbel.clock import ManualClock
from umbel.exceptions import ImproperlyConfigured
from umbel.exchanges import Binding
from umbel.message import How, Loss, Lost, Settlement
from umbel.ports import HandedBack
from umbel.testing.contract.rig import OTHER, QUEUE, ids, posting

__all__ = ["client", "clock", "driver", "server"]

HOUR = 3600.0


class Holding:
    """A worker of Celery's that has taken messages and died, as far as the server knows of it."""

    def __init__(self, client: Client, clock: ManualClock, prefix: str = "") -> None:
        self._client = client
        self._clock = clock
        self._prefix = prefix

    def hold(
        self,
        task_id: str,
        ago: float,
        *,
        exchange: str = "",
        key: str = QUEUE,
        priority: int = 0,
        tag: str = "",
    ) -> None:
        envelope = json.loads(celery_message(task_id))
        envelope["properties"]["priority"] = priority
        self.put(tag or f"tag-{task_id}", json.dumps([envelope, exchange, key]), ago)

    def put(self, tag: str, stored: str, ago: float) -> None:
        self._client.hset(f"{self._prefix}unacked", tag, stored)
        self._client.zadd(f"{self._prefix}unacked_index", {tag: self._clock.wall() - ago})

    def tags(self) -> set[str]:
        held: Any = self._client.hkeys(f"{self._prefix}unacked")
        return set(held)


@pytest.fixture
def dead(client: Client, clock: ManualClock) -> Holding:
    return Holding(client, clock)


class TestWhatCelerysDeadHeld:
    def test_goes_back_to_the_front_of_its_queue_after_the_visibility_timeout(
        self, driver: RedisBroker, dead: Holding
    ) -> None:
        driver.publish([posting("waits")])
        dead.hold("older", HOUR + 2)
        dead.hold("old", HOUR + 1)
        dead.hold("young", HOUR - 1)
        assert driver.tend() == 10.0
        assert dead.tags() == {"tag-young"}
        taken = hand_of(driver).take()
        assert ids(taken) == ["older", "old", "waits"]

    def test_says_that_it_is_delivered_again(
        self, driver: RedisBroker, client: Client, dead: Holding
    ) -> None:
        dead.hold("a", HOUR + 1)
        driver.tend()
        stored = json.loads(str(client.lindex(QUEUE, -1)))
        assert stored["headers"]["redelivered"] is True
        assert stored["properties"]["delivery_info"]["redelivered"] is True
        assert stored["properties"]["delivery_tag"] == "0f7ad8a5-7f6b-4c26-9ed3-0b8d7ee6a1f4"
        assert client.zcard("unacked_index") == 0

    def test_keeps_its_priority(self, driver: RedisBroker, client: Client, dead: Holding) -> None:
        dead.hold("a", HOUR + 1, priority=7)
        driver.tend()
        assert client.llen(f"{QUEUE}\x06\x166") == 1

    def test_goes_where_its_exchange_leads(self, driver: RedisBroker, dead: Holding) -> None:
        driver.declare([], [Binding(OTHER, "news", "topic", "a.*")])
        dead.hold("a", HOUR + 1, exchange="news", key="a.b")
        driver.tend()
        assert [each.ready for each in driver.queues() if each.name == OTHER] == [1]

    def test_stays_where_it_was_a_copy_of_what_was_published_to_a_fanout_exchange(
        self, driver: RedisBroker, dead: Holding, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Our queues have copies of their own."""
        driver.declare([], [Binding(OTHER, "news", "fanout")])
        dead.hold("a", HOUR + 1, exchange="news", key="celery")
        driver.tend()
        driver.tend()
        assert dead.tags() == {"tag-a"}
        assert [each.ready for each in driver.queues() if each.name == OTHER] == [0]
        assert caplog.text.count("own copy of what was published") == 1

    def test_goes_to_a_queue_that_only_celery_knows(
        self, driver: RedisBroker, client: Client, dead: Holding
    ) -> None:
        dead.hold("a", HOUR + 1, key="theirs")
        driver.tend()
        assert client.llen("theirs") == 1

    @pytest.mark.parametrize(
        "stored", ["not JSON", "[]", '["text", "", "q"]', '[{"body": 1}, "", "q"]']
    )
    def test_stays_where_it_is_unreadable_and_is_told_of_once(
        self,
        driver: RedisBroker,
        dead: Holding,
        caplog: pytest.LogCaptureFixture,
        stored: str,
    ) -> None:
        dead.put("bad", stored, HOUR + 9)
        dead.hold("good", HOUR + 1)
        driver.tend()
        driver.tend()
        assert dead.tags() == {"bad"}
        assert ids(hand_of(driver).take()) == ["good"]
        assert caplog.text.count("'bad' stays there") == 1

    def test_stays_where_its_exchange_leads_nowhere(
        self, driver: RedisBroker, dead: Holding, caplog: pytest.LogCaptureFixture
    ) -> None:
        dead.hold("a", HOUR + 1, exchange="gone", key="k")
        driver.tend()
        assert dead.tags() == {"tag-a"}
        assert "'gone'" in caplog.text

    def test_an_index_without_a_message_is_forgotten(
        self, driver: RedisBroker, client: Client, clock: ManualClock
    ) -> None:
        client.zadd("unacked_index", {"tag": clock.wall() - HOUR - 1})
        driver.tend()
        assert client.zcard("unacked_index") == 0

    def test_hundreds_come_back_in_their_order(self, driver: RedisBroker, dead: Holding) -> None:
        for n in range(250):
            dead.hold(f"t{n}", HOUR + 1000 - n)
        driver.tend()
        assert dead.tags() == set()
        assert ids(hand_of(driver).take(300)) == [f"t{n}" for n in range(250)]

    def test_nothing_is_done_while_a_worker_of_celerys_does_it(
        self, driver: RedisBroker, client: Client, dead: Holding
    ) -> None:
        dead.hold("a", HOUR + 1)
        client.set("unacked_mutex", "theirs", px=300_000)
        driver.tend()
        assert dead.tags() == {"tag-a"}
        assert client.get("unacked_mutex") == "theirs"

    def test_the_mutex_is_let_go_of(
        self, driver: RedisBroker, client: Client, dead: Holding
    ) -> None:
        dead.hold("a", HOUR + 1)
        driver.tend()
        assert client.exists("unacked_mutex") == 0

    def test_names_prefix_and_timeout_are_the_fleet_s(
        self, server: Redis, client: Client, clock: ManualClock
    ) -> None:
        transport = {
            "global_keyprefix": "shop:",
            "visibility_timeout": 60,
            "unacked_key": "u",
            "unacked_index_key": "ui",
            "unacked_mutex_key": "um",
        }
        keys = Keys.of(transport, low_first=False)
        assert keys.unacked == Unacked("u", "ui", "um", 60.0)
        driver = opened(server, keys, clock)
        envelope = json.loads(celery_message("a"))
        client.hset("shop:u", "t", json.dumps([envelope, "", QUEUE]))
        client.zadd("shop:ui", {"t": clock.wall() - 61})
        driver.tend()
        assert client.llen(f"shop:{QUEUE}") == 1
        driver.close()

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("visibility_timeout", 0),
            ("visibility_timeout", "an hour"),
            ("visibility_timeout", True),
            ("unacked_key", ""),
            ("unacked_mutex_key", 5),
        ],
    )
    def test_a_wrong_option_is_named(self, name: str, value: object) -> None:
        with pytest.raises(ImproperlyConfigured, match=f"{name}="):
            Keys.of({name: value}, low_first=False)


class TestHandingBack:
    def test_what_is_due_later_becomes_celerys_eta(
        self, driver: RedisBroker, client: Client, clock: ManualClock
    ) -> None:
        due = clock.wall() + 100
        driver.publish([posting("a", due_at=due), posting("b", due_at=due + 1, priority=7)])
        assert driver.hand_back() == HandedBack(delayed=2)
        stored = json.loads(str(client.lindex(QUEUE, 0)))
        assert "umbel" not in stored
        assert datetime.fromisoformat(stored["headers"]["eta"]) == datetime.fromtimestamp(due, UTC)
        assert client.llen(f"{QUEUE}\x06\x166") == 1
        assert [each.delayed for each in driver.queues() if each.name == QUEUE] == [0]
        assert client.exists("umbel:due") == 0

    def test_an_eta_of_its_own_stays(
        self, driver: RedisBroker, client: Client, clock: ManualClock
    ) -> None:
        sent = posting("a", due_at=clock.wall() + 100)
        sent.message.headers["eta"] = "2030-01-01T00:00:00+00:00"
        driver.publish([sent])
        driver.hand_back()
        stored = json.loads(str(client.lindex(QUEUE, 0)))
        assert stored["headers"]["eta"] == "2030-01-01T00:00:00+00:00"

    def test_hundreds_keep_the_order_of_their_times(
        self, driver: RedisBroker, client: Client, clock: ManualClock
    ) -> None:
        driver.publish([posting(f"t{n}", due_at=clock.wall() + 100 + n) for n in range(250)])
        assert driver.hand_back() == HandedBack(delayed=250)
        stored: Any = client.lrange(QUEUE, 0, -1)
        assert [json.loads(each)["headers"]["id"] for each in reversed(stored)] == [
            f"t{n}" for n in range(250)
        ]

    def test_what_awaits_burial_becomes_a_dead_letter(self, driver: RedisBroker) -> None:
        driver.publish([posting("a")])
        hand = hand_of(driver)
        (taken,) = hand.take()
        driver.abandon("run#1", running={taken.lease: Lost(Loss.PROCESS, "killed by 9")})
        assert driver.hand_back() == HandedBack(buried=1)
        (letter,) = driver.dead()
        assert (letter.id, letter.reason) == ("a", "killed by 9")
        assert [each.lost for each in driver.queues() if each.name == QUEUE] == [0]

    def test_what_is_leased_stays(self, driver: RedisBroker) -> None:
        driver.publish([posting("a")])
        hand = hand_of(driver)
        (taken,) = hand.take()
        assert driver.hand_back() == HandedBack()
        assert driver.held("run#1") == {taken.lease}
        turn = driver.turn("run#1", 9, settlements=[Settlement(taken.lease, How.ACK)])
        assert turn.lost == frozenset()

    def test_twice_is_fine(self, driver: RedisBroker, clock: ManualClock) -> None:
        driver.publish([posting("a", due_at=clock.wall() + 100)])
        assert driver.hand_back() == HandedBack(delayed=1)
        assert driver.hand_back() == HandedBack()
