"""Contract of deaths: reclaim, fencing, abandon, burial."""

from __future__ import annotations

import pytest

from umbel.exceptions import RunLost
from umbel.message import Dead, How, Loss, Lost, Settlement
from umbel.ports import SetAside
from umbel.testing.contract.rig import OTHER, QUEUE, DriverSuite, Rig, ids, posting


class ReclaimContract(DriverSuite):
    def test_what_a_dead_run_held_goes_back_in_its_old_order_uncounted(self, rig: Rig) -> None:
        names = [f"m{n}" for n in range(14)]
        rig.publish(*names)
        one, two = rig.hand("doomed", 1), rig.hand("doomed", 2)
        for _ in range(6):
            two.take(1)
            one.take(1)
        rig.kill("doomed")
        deliveries = rig.hand("next").take()
        assert ids(deliveries) == names
        assert [d.redelivered for d in deliveries] == [True] * 12 + [False] * 2
        assert {d.redeliveries for d in deliveries} == {0}
        assert {d.lost for d in deliveries} == {None}

    def test_what_had_begun_is_set_aside_with_the_runs_info(self, rig: Rig) -> None:
        rig.publish("a", "b", "c")
        hand = rig.hand("doomed", info=b"task options")
        hand.take()
        hand.turn(begin=2)
        rig.kill("doomed")
        stats = rig.stats()
        if not rig.driver.features.lease_records:
            assert (stats.lost, stats.ready, stats.leased) == (0, 3, 0)
            deliveries = rig.hand("next").take()
            assert [(d.lost, d.redelivered) for d in deliveries] == [(None, True)] * 3
            return
        assert (stats.lost, stats.ready, stats.leased) == (2, 1, 0)
        deliveries = rig.hand("next").take()
        assert ids(deliveries) == ["a", "b", "c"]
        lost = [d.lost for d in deliveries]
        assert lost[2] is None
        for each in lost[:2]:
            assert each is not None
            assert (each.loss, each.info) == (Loss.WORKER, b"task options")
            assert "doomed" in each.detail

    def test_the_beat_says_how_many_deliveries_it_reclaimed(self, rig: Rig) -> None:
        rig.publish("a", "b", "c")
        hand = rig.hand("doomed")
        hand.take()
        hand.turn(begin=1)
        rig.driver.enlist("alive", None, b"")
        reclaimed = 0
        for _ in range(5):
            reclaimed += rig.driver.beat("alive").reclaimed
            rig.manual.advance(rig.options.heartbeat)
        assert reclaimed == 3

    def test_leases_handed_out_under_an_earlier_mark_count_as_begun(self, rig: Rig) -> None:
        rig.publish("a", "b")
        hand = rig.hand("doomed")
        hand.turn(begin=1)
        hand.take()
        rig.kill("doomed")
        begun = 1 if rig.driver.features.lease_records else 0
        assert (rig.stats().lost, rig.stats().ready) == (begun, 2 - begun)
        assert ids(rig.hand("next").turn(limit=9, lost_only=True).deliveries) == ["a"][:begun]

    def test_a_run_that_leaves_gives_back_what_its_owners_held(self, rig: Rig) -> None:
        rig.publish("a", "b")
        hand = rig.hand("leaver", info=b"options")
        hand.take()
        hand.turn(begin=1)
        rig.driver.leave("leaver")
        first, second = rig.hand("next").take()
        assert second.lost is None
        if rig.driver.features.lease_records:
            assert first.lost is not None
            assert (first.lost.loss, first.lost.info) == (Loss.WORKER, b"options")
        else:
            assert (first.lost, first.redelivered) == (None, True)
        with pytest.raises(RunLost):
            hand.take()

    def test_counts_and_first_seen_times_survive_a_reclaim(self, rig: Rig) -> None:
        rig.publish("a")
        hand = rig.hand("doomed")
        hand.requeue(hand.take_one())
        seen_at = rig.now
        hand.release(hand.take_one(), unknown=True)
        hand.take_one()
        rig.kill("doomed")
        delivery = rig.hand("next").take_one()
        assert (delivery.redeliveries, delivery.unknown_since_at) == (1, seen_at)


class FencingContract(DriverSuite):
    def test_a_run_taken_for_dead_can_settle_nothing(self, rig: Rig) -> None:
        rig.publish("a")
        late = rig.hand("late")
        delivery = late.take_one()
        rig.kill("late")
        new = rig.hand("new").take_one()
        with pytest.raises(RunLost):
            late.ack(delivery, posting("follow"), dead=Dead("x"))
        assert rig.driver.find("follow") == ()
        assert rig.driver.dead() == ()
        assert rig.driver.held("new#1") == {new.lease}

    def test_a_lease_that_is_anothers_by_now_is_not_settled(self, rig: Rig) -> None:
        rig.publish("a")
        one, two = rig.hand(number=1), rig.hand(number=2)
        delivery = one.take_one()
        one.release(delivery)
        two.take_one()
        for how in How:
            reply = one.turn(Settlement(delivery.lease, how, (posting("f"),), Dead("x")))
            assert reply.lost == {delivery.lease}
        assert two.held == {1}
        assert rig.driver.find("f") == ()
        assert rig.driver.dead() == ()

    def test_abandon_by_a_late_supervisor_changes_nothing(self, rig: Rig) -> None:
        rig.publish("a")
        late = rig.hand("late")
        delivery = late.take_one()
        rig.kill("late")
        new = rig.hand("new")
        new.take_one()
        late.abandon(
            decided=[Settlement(delivery.lease, How.ACK, (posting("follow"),))],
            running=[delivery.lease],
        )
        assert new.held == {1}
        assert rig.driver.find("follow") == ()


class AbandonContract(DriverSuite):
    def test_decided_is_applied_running_set_aside_and_the_rest_goes_back(self, rig: Rig) -> None:
        names = [f"m{n}" for n in range(6)]
        rig.publish(*names)
        hand = rig.hand(number=1, info=b"options")
        hand.take(5)
        hand.turn(begin=4)
        hand.abandon(
            decided=[
                Settlement(1, How.ACK, (posting("follow"),)),
                Settlement(2, How.ACK, dead=Dead("failed", "ValueError")),
            ],
            running=[3],
            lost=Lost(Loss.HARD_LIMIT, "exceeded 5 s"),
        )
        assert rig.driver.find("m0") == ()
        letter = rig.driver.dead_find("m1")
        assert letter is not None
        assert letter.reason == "failed"
        deliveries = rig.hand(number=2).take()
        assert ids(deliveries) == ["m2", "m3", "m4", "m5", "follow"]
        assert deliveries[0].lost == Lost(Loss.HARD_LIMIT, "exceeded 5 s", b"options")
        assert [d.lost for d in deliveries[1:]] == [None] * 4
        assert [d.redelivered for d in deliveries[1:]] == [True, True, False, False]
        assert [d.redeliveries for d in deliveries[1:]] == [0, 0, 0, 0]

    def test_a_loss_that_is_not_described_is_a_dead_process(self, rig: Rig) -> None:
        rig.publish("a")
        hand = rig.hand(number=1, info=b"options")
        hand.abandon(running=[hand.take_one().lease])
        lost = rig.hand(number=2).take_one().lost
        assert lost is not None
        assert (lost.loss, lost.info) == (Loss.PROCESS, b"options")

    def test_a_refused_decision_is_set_aside_for_burial(self, rig: Rig) -> None:
        rig.publish("a", "b")
        hand = rig.hand(number=1)
        hand.take()
        hand.abandon(
            decided=[
                Settlement(1, How.ACK, (posting("x", "nowhere"),)),
                Settlement(2, How.ACK, (posting("y"),)),
            ]
        )
        assert rig.stats().lost == 1
        first, second = rig.hand(number=2).take()
        assert ids([first, second]) == ["a", "y"]
        assert first.lost is not None

    def test_abandoning_twice_or_an_unknown_owner_is_fine(self, rig: Rig) -> None:
        rig.publish("a")
        hand = rig.hand()
        lease = hand.take_one().lease
        hand.abandon(running=[lease])
        hand.abandon(running=[lease])
        rig.driver.abandon("nobody#7", running={1: Lost(Loss.PROCESS, "signal 9")})
        assert rig.stats().lost == 1

    def test_leases_that_are_not_its_own_are_left_alone(self, rig: Rig) -> None:
        rig.publish("a", "b")
        one, two = rig.hand(number=1), rig.hand(number=2)
        one.take_one()
        two.take_one()
        one.abandon(decided=[Settlement(9, How.ACK, (posting("x"),))], running=[10])
        assert two.held == {1}
        assert rig.driver.find("x") == ()
        assert ids(two.take()) == ["a"]

    def test_the_other_owners_of_the_run_go_on(self, rig: Rig) -> None:
        rig.publish("a", "b")
        one, two = rig.hand(number=1), rig.hand(number=2)
        one.take_one()
        delivery = two.take_one()
        one.abandon()
        assert two.ack(delivery).lost == frozenset()
        assert rig.driver.beat("run").alive


class BurialContract(DriverSuite):
    @staticmethod
    def lose(rig: Rig, *names: str, queue: str = QUEUE) -> None:
        """Publish, take, and die running them."""
        rig.publish(*names, queue=queue)
        hand = rig.fresh_hand("victim")
        leases = [d.lease for d in hand.take(len(names), queue)]
        hand.abandon(running=leases, lost=Lost(Loss.PROCESS, "signal 9"))

    def test_burials_are_handed_out_before_all_else(self, rig: Rig) -> None:
        self.lose(rig, "a", "b")
        self.lose(rig, "c", queue=OTHER)
        rig.publish("urgent", priority=9 if rig.driver.features.priority else 0)
        deliveries = rig.hand().take(10, QUEUE, OTHER)
        assert ids(deliveries) == ["a", "b", "c", "urgent"]
        assert [d.lost is not None for d in deliveries] == [True, True, True, False]

    def test_lost_only_hands_out_burials_and_nothing_else(self, rig: Rig) -> None:
        rig.publish("plain")
        rig.publish("due", due_at=rig.now + 1)
        hand = rig.hand()
        rig.manual.advance(2)
        assert hand.turn(limit=5, lost_only=True).deliveries == ()
        rig.driver.purge([QUEUE])
        self.lose(rig, "a", "b")
        assert ids(hand.turn(limit=1, lost_only=True).deliveries) == ["a"]

    def test_a_requeue_after_a_burial_is_run_again_and_not_buried_again(self, rig: Rig) -> None:
        self.lose(rig, "a")
        hand = rig.hand()
        hand.requeue(hand.take_one(), "WorkerLostError: signal 9")
        delivery = hand.take_one()
        assert delivery.lost is None
        assert (delivery.redeliveries, delivery.redelivered) == (1, True)

    def test_a_release_that_says_begun_ends_a_burial(self, rig: Rig) -> None:
        self.lose(rig, "a")
        hand = rig.hand()
        hand.release(hand.take_one(), redelivered=True)
        delivery = hand.take_one()
        assert delivery.lost is None
        assert (delivery.redeliveries, delivery.redelivered) == (0, True)

    def test_a_burial_that_is_only_given_back_stays_a_burial(self, rig: Rig) -> None:
        self.lose(rig, "a")
        hand = rig.hand()
        first = hand.take_one()
        hand.release(first)
        assert hand.take_one().lost == first.lost

    def test_a_retry_after_a_burial_is_a_message_like_any_other(self, rig: Rig) -> None:
        self.lose(rig, "a")
        hand = rig.hand()
        hand.ack(hand.take_one(), posting("a"))
        delivery = hand.take_one()
        assert delivery.lost is None
        assert not delivery.redelivered
        assert rig.stats().lost == 0

    def test_a_burier_that_dies_before_it_began_leaves_the_burial_as_it_was(self, rig: Rig) -> None:
        self.lose(rig, "a")
        hand = rig.hand("doomed")
        first = hand.take_one()
        rig.kill("doomed")
        again = rig.hand("next").take_one()
        assert again.lost == first.lost
        assert again.redeliveries == first.redeliveries

    def test_a_burier_that_dies_burying_does_not_hide_what_killed_the_task(self, rig: Rig) -> None:
        self.lose(rig, "a")
        hand = rig.hand("doomed")
        first = hand.take_one()
        hand.turn(begin=first.lease)
        rig.kill("doomed")
        second = rig.hand("next")
        again = second.take_one()
        assert again.lost == first.lost
        second.abandon(running=[again.lease], lost=Lost(Loss.PROCESS, "signal 11"))
        assert rig.hand("last").take_one().lost == first.lost

    def test_what_awaits_burial_is_found_and_survives_a_purge(self, rig: Rig) -> None:
        self.lose(rig, "a")
        assert rig.driver.purge([QUEUE]) == 0
        rig.assert_at("a", SetAside(QUEUE, "process", "signal 9"))
        assert ids(rig.hand().take()) == ["a"]
