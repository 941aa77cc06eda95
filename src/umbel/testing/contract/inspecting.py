"""Contract of the inspector: sizes, peek, find, purge, dead letters and their retention."""

from __future__ import annotations

import pytest

from umbel.exceptions import Unroutable
from umbel.message import Dead, How, Loss, Lost, Message, Posting, Settlement
from umbel.ports import (
    BrokerOptions,
    DeadLetter,
    Delayed,
    Leased,
    QueueStats,
    Ready,
    Revocation,
    SetAside,
)
from umbel.testing.contract.rig import (
    OTHER,
    QUEUE,
    Driver,
    DriverSuite,
    Hand,
    Rig,
    message,
    posting,
)


class PlacesContract(DriverSuite):
    def test_queues_are_counted_by_place_and_named_in_order(self, rig: Rig) -> None:
        hand = rig.hand()
        rig.publish("dead", "lost", "leased", "ready1", "ready2")
        rig.publish("delayed", due_at=rig.now + 10)
        hand.bury_as_dead(hand.take_one())
        hand.abandon(running=[hand.take_one().lease])
        rig.hand(number=2).turn(limit=0)
        other = rig.hand(number=3)
        assert other.turn(limit=1, lost_only=True).deliveries
        assert rig.driver.queues() == (
            QueueStats(OTHER),
            QueueStats(QUEUE, ready=3, delayed=1, leased=1, lost=0, dead=1),
        )
        other.turn(Settlement(1, How.RELEASE), limit=0)
        assert rig.stats() == QueueStats(QUEUE, ready=3, delayed=1, lost=1, dead=1)

    def test_what_has_fallen_due_counts_as_ready(self, rig: Rig) -> None:
        rig.publish("a", due_at=rig.now + 10)
        rig.manual.advance(10)
        assert rig.stats() == QueueStats(QUEUE, ready=1)
        rig.assert_at("a", Ready(QUEUE, 0))

    def test_runs_come_oldest_first(self, rig: Rig) -> None:
        for run in ("zeta", "alpha", "mid"):
            rig.driver.enlist(run, None, run.encode())
            rig.manual.advance(1)
        rig.driver.beat("zeta")
        assert [record.run for record in rig.driver.runs()] == ["zeta", "alpha", "mid"]

    def test_peek_shows_the_next_in_order_and_takes_nothing(self, rig: Rig) -> None:
        rig.publish("a", "b", "c")
        rig.publish("urgent", priority=9)
        rig.publish("later", due_at=rig.now + 5)
        shown = rig.driver.peek(QUEUE, 3)
        first = ["urgent", "a", "b"] if rig.driver.features.priority else ["a", "b", "c"]
        assert [each.id for each in shown if isinstance(each, Message)] == first
        assert len(rig.driver.peek(QUEUE, 50)) == 4
        assert rig.driver.peek(OTHER, 5) == ()
        assert rig.stats() == QueueStats(QUEUE, ready=4, delayed=1)

    def test_a_message_is_found_in_every_place(self, rig: Rig) -> None:
        rig.publish("before")
        rig.publish("urgent", priority=9)
        rig.publish("x")
        rig.assert_at("x", Ready(QUEUE, 2))
        one = rig.hand(number=1)
        one.take(2)
        rig.assert_at("x", Ready(QUEUE, 0))
        lease = one.take_one().lease
        rig.assert_at("x", Leased(QUEUE, one.name, lease, begun=False))
        one.turn(begin=lease)
        rig.assert_at("x", Leased(QUEUE, one.name, lease, begun=True))
        one.turn(Settlement(lease, How.RELEASE, delay=7.0))
        rig.assert_at("x", Delayed(QUEUE, rig.now + 7.0))
        rig.manual.advance(7.0)
        lease = one.take_one().lease
        one.abandon(running=[lease], lost=Lost(Loss.TERMINATED, "SIGTERM by a person"))
        rig.assert_at("x", SetAside(QUEUE, "terminated", "SIGTERM by a person"))
        two = rig.hand(number=2)
        two.turn(Settlement(two.take_one().lease, How.REJECT, dead=Dead("over", "Terminated")))
        letter = rig.driver.dead_find("x")
        assert letter is not None
        rig.assert_at("x", letter)
        rig.assert_at("nobody")

    def test_an_id_that_is_there_twice_is_found_twice(self, rig: Rig) -> None:
        rig.publish("x", "x")
        rig.publish("x", queue=OTHER, due_at=rig.now + 9)
        found = set(rig.driver.find("x"))
        if not rig.driver.features.find:
            assert found == set()
            return
        assert found == {Ready(QUEUE, 0), Ready(QUEUE, 1), Delayed(OTHER, rig.now + 9)}

    def test_purge_deletes_what_waits_or_is_due_and_nothing_else(self, rig: Rig) -> None:
        rig.publish("leased", "a", "b")
        rig.publish("due", due_at=rig.now + 5)
        rig.publish("elsewhere", queue=OTHER)
        hand = rig.hand()
        delivery = hand.take_one()
        assert rig.driver.purge([QUEUE, "nowhere"]) == 3
        assert rig.driver.purge([QUEUE]) == 0
        assert rig.stats() == QueueStats(QUEUE, leased=1)
        assert rig.stats(OTHER).ready == 1
        assert hand.ack(delivery).lost == frozenset()
        rig.manual.advance(10)
        assert hand.take() == ()


class DeadLetterContract(DriverSuite):
    @staticmethod
    def bury(rig: Rig, *names: str, queue: str = QUEUE) -> None:
        rig.publish(*names, queue=queue)
        hand = rig.fresh_hand("undertaker")
        for _ in names:
            hand.bury_as_dead(hand.take_one(queue))

    def test_a_dead_letter_carries_everything(self, rig: Rig) -> None:
        rig.publish("a")
        hand = rig.hand()
        hand.requeue(hand.take_one(), "WorkerLostError: signal 9")
        first_at = rig.now
        rig.manual.advance(5)
        hand.ack(hand.take_one(), dead=Dead("ValueError: no", "ValueError"))
        letter = rig.driver.dead_find("a")
        assert letter == DeadLetter(
            id="a",
            queue=QUEUE,
            message=message("a"),
            reason="ValueError: no",
            error="ValueError",
            died_at=rig.now,
            redeliveries=1,
            history=((first_at, "WorkerLostError: signal 9"), (rig.now, "ValueError: no")),
        )
        assert rig.driver.dead() == (letter,)

    def test_dead_letters_come_oldest_first_by_queue_and_limit(self, rig: Rig) -> None:
        for name, queue in (("a", QUEUE), ("b", OTHER), ("c", QUEUE), ("d", OTHER)):
            self.bury(rig, name, queue=queue)
            rig.manual.advance(1)
        listed = [letter.id for letter in rig.driver.dead()]
        assert listed == ["a", "b", "c", "d"]
        assert [letter.id for letter in rig.driver.dead(OTHER)] == ["b", "d"]
        assert [letter.id for letter in rig.driver.dead(limit=3)] == ["a", "b", "c"]
        assert [letter.id for letter in rig.driver.dead(QUEUE, 1)] == ["a"]
        assert rig.driver.dead("nowhere") == ()

    def test_the_newest_of_an_id_is_found(self, rig: Rig) -> None:
        self.bury(rig, "a")
        rig.manual.advance(1)
        self.bury(rig, "a")
        letter = rig.driver.dead_find("a")
        assert letter is not None
        assert letter.died_at == rig.now
        assert rig.driver.dead_find("nobody") is None

    def test_requeue_sends_once_and_deletes_all_of_the_id(self, rig: Rig) -> None:
        self.bury(rig, "a", "a", "b")
        assert rig.driver.dead_requeue("a", posting("a", OTHER)) is True
        assert [letter.id for letter in rig.driver.dead()] == ["b"]
        delivery = rig.hand().take_one(OTHER)
        assert delivery.message == message("a")
        assert (delivery.redeliveries, delivery.redelivered) == (0, False)
        rig.assert_at("a", Leased(OTHER, "run#1", 1, begun=False))

    def test_requeueing_what_is_not_dead_does_nothing(self, rig: Rig) -> None:
        rig.driver.revoke([Revocation("nobody")])
        assert rig.driver.dead_requeue("nobody", posting("nobody")) is False
        assert rig.stats().ready == 0
        assert rig.driver.revoked(0)[1] == (Revocation("nobody"),)

    def test_what_has_no_id_is_not_requeued_as_one(self, rig: Rig) -> None:
        self.bury(rig, "", "", "a")
        assert rig.driver.dead_requeue("", posting("")) is False
        assert [letter.id for letter in rig.driver.dead()] == ["", "", "a"]
        assert rig.stats().ready == 0

    def test_requeueing_to_an_unknown_queue_changes_nothing(self, rig: Rig) -> None:
        self.bury(rig, "a")
        rig.driver.revoke([Revocation("a")])
        with pytest.raises(Unroutable):
            rig.driver.dead_requeue("a", posting("a", "nowhere"))
        assert rig.driver.dead_find("a") is not None
        assert rig.driver.revoked(0)[1] == (Revocation("a"),)

    def test_dead_letters_are_deleted_by_id_by_queue_or_all(self, rig: Rig) -> None:
        self.bury(rig, "a", "b", "c", "d")
        self.bury(rig, "e", "f", queue=OTHER)
        assert rig.driver.dead_delete(["a", "nobody"]) == 1
        assert rig.driver.dead_delete(["b", "e"], QUEUE) == 1
        assert rig.driver.dead_delete([]) == 0
        assert rig.driver.dead_delete(None, OTHER) == 2
        assert [letter.id for letter in rig.driver.dead()] == ["c", "d"]
        assert rig.driver.dead_delete(None) == 2
        assert rig.driver.dead() == ()

    def test_of_what_is_not_unicode_there_is_nothing(self, rig: Rig) -> None:
        """Such as an argument of a command line that isn't UTF-8."""
        self.bury(rig, "a")
        rig.publish("b")
        driver, half = rig.driver, "a\udcff"
        assert driver.find(half) == ()
        assert driver.peek(half, 3) == ()
        assert driver.purge([half]) == 0
        assert driver.dead(half) == ()
        assert driver.dead_find(half) is None
        assert driver.dead_requeue(half, posting("a")) is False
        assert driver.dead_delete([half]) == 0
        assert driver.dead_delete(["a"], half) == 0
        assert driver.dead_delete(None, half) == 0
        driver.unrevoke([half])
        assert [letter.id for letter in driver.dead()] == ["a"]
        assert rig.stats().ready == 1

    def _filled(self, rig: Rig, options: BrokerOptions, bodies: list[int]) -> Driver:
        """A driver with these options, through which messages of these sizes died."""
        driver = rig.another(options)
        driver.enlist("filler", "filler#1", b"")
        hand = Hand(driver, "filler#1")
        for n, size in enumerate(bodies):
            body = message(f"m{n}", body=b"x" * size)
            driver.publish([Posting(body, routing_key=QUEUE)])
            hand.bury_as_dead(hand.take_one())
            rig.manual.advance(1)
        driver.beat("filler")
        return driver

    def test_the_oldest_beyond_the_count_are_dropped_per_queue(self, rig: Rig) -> None:
        self.bury(rig, "elsewhere", queue=OTHER)
        driver = self._filled(rig, BrokerOptions(dead_max_count=3), [1] * 7)
        assert [letter.id for letter in driver.dead(QUEUE)] == ["m4", "m5", "m6"]
        assert [letter.id for letter in driver.dead(OTHER)] == ["elsewhere"]
        assert rig.stats().dead == 3

    def test_the_oldest_beyond_the_bytes_are_dropped(self, rig: Rig) -> None:
        # Encodings differ between drivers by up to half of a body's size.
        driver = self._filled(rig, BrokerOptions(dead_max_bytes=35_000), [10_000] * 6)
        kept = [letter.id for letter in driver.dead()]
        assert kept in (["m3", "m4", "m5"], ["m4", "m5"])

    def test_the_newest_is_kept_however_large_it_is(self, rig: Rig) -> None:
        # The message is nowhere else: dropping it would lose it silently.
        driver = self._filled(rig, BrokerOptions(dead_max_bytes=5_000), [1, 1, 20_000])
        assert [letter.id for letter in driver.dead()] == ["m2"]

    def test_limits_are_applied_on_demand(self, rig: Rig) -> None:
        self._filled(rig, BrokerOptions(), [1, 1, 1])
        assert rig.driver.dead_prune() == 0
        strict = rig.another(BrokerOptions(dead_max_count=1))
        assert strict.dead_prune() == 2
        assert [letter.id for letter in strict.dead()] == ["m2"]

    def test_what_is_too_old_is_dropped_by_a_beat(self, rig: Rig) -> None:
        driver = self._filled(rig, BrokerOptions(dead_max_age=100.0), [1, 1, 1])
        rig.manual.advance(98.5)
        driver.beat("filler")
        assert [letter.id for letter in driver.dead()] == ["m2"]
        rig.manual.advance(100)
        driver.beat("filler")
        assert driver.dead() == ()
