"""Contract of a turn: settling, begun marks, follow-ups, release, requeue, repetition."""

from __future__ import annotations

import pytest

from umbel.exceptions import RunLost
from umbel.message import Dead, How, Loss, Lost, Settlement
from umbel.ports import Delayed, Leased
from umbel.testing.contract.rig import OTHER, QUEUE, DriverSuite, Rig, ids, posting


class SettlingContract(DriverSuite):
    def test_leases_count_from_one_within_an_owner_without_gaps(self, rig: Rig) -> None:
        rig.publish(*(f"m{n}" for n in range(6)))
        one, two = rig.hand(number=1), rig.hand(number=2)
        assert [d.lease for d in one.take(2)] == [1, 2]
        assert [d.lease for d in two.take(1)] == [1]
        one.turn(Settlement(1, How.ACK), Settlement(2, How.ACK))
        assert [d.lease for d in one.take(2)] == [3, 4]
        assert one.held == {3, 4}
        assert two.held == {1}

    def test_a_leased_message_is_nobody_elses(self, rig: Rig) -> None:
        rig.publish("a", "b")
        assert ids(rig.hand(number=1).take(1)) == ["a"]
        assert ids(rig.hand("other", 2).take()) == ["b"]

    def test_an_acknowledged_message_is_gone(self, rig: Rig) -> None:
        rig.publish("a")
        hand = rig.hand()
        reply = hand.ack(hand.take_one())
        assert (reply.lost, reply.refused) == (frozenset(), ())
        assert hand.held == frozenset()
        assert rig.driver.find("a") == ()

    def test_a_rejected_message_is_gone_unless_it_leaves_a_dead_letter(self, rig: Rig) -> None:
        rig.publish("a", "b")
        hand = rig.hand()
        first, second = hand.take()
        hand.reject(first)
        hand.reject(second, Dead("refused by the task", "Reject"))
        assert rig.driver.find("a") == ()
        letter = rig.driver.dead_find("b")
        assert letter is not None
        assert (letter.reason, letter.error) == ("refused by the task", "Reject")

    def test_one_turn_settles_marks_and_takes(self, rig: Rig) -> None:
        rig.publish("a", "b", "c")
        hand = rig.hand()
        hand.take(1)
        reply = hand.turn(Settlement(1, How.ACK), begin=2, limit=2)
        assert ids(reply.deliveries) == ["b", "c"]
        assert rig.driver.find("a") == ()
        rig.assert_at("b", Leased(QUEUE, hand.name, 2, begun=True))
        rig.assert_at("c", Leased(QUEUE, hand.name, 3, begun=False))

    def test_a_lease_settled_before_is_lost(self, rig: Rig) -> None:
        rig.publish("a")
        hand = rig.hand()
        delivery = hand.take_one()
        hand.ack(delivery)
        reply = hand.ack(delivery, posting("follow"))
        assert reply.lost == {delivery.lease}
        assert rig.driver.find("follow") == ()

    def test_a_lease_that_never_was_is_lost_and_harms_no_other(self, rig: Rig) -> None:
        rig.publish("a", "b")
        hand = rig.hand()
        first, second = hand.take()
        reply = hand.turn(
            Settlement(first.lease, How.ACK),
            Settlement(77, How.ACK, (posting("follow"),)),
            Settlement(second.lease, How.ACK),
        )
        assert reply.lost == {77}
        assert hand.held == frozenset()
        assert rig.driver.find("follow") == ()

    def test_of_two_settlements_of_one_lease_the_first_counts(self, rig: Rig) -> None:
        rig.publish("a")
        hand = rig.hand()
        lease = hand.take_one().lease
        reply = hand.turn(Settlement(lease, How.ACK), Settlement(lease, How.REQUEUE))
        assert reply.lost == {lease}
        assert rig.driver.find("a") == ()

    def test_a_turn_of_an_unknown_owner_raises(self, rig: Rig) -> None:
        rig.publish("a")
        with pytest.raises(RunLost):
            rig.driver.turn("nobody#1", 1, queues=[QUEUE], limit=1)
        assert rig.stats().ready == 1


class FollowUpContract(DriverSuite):
    def test_follow_ups_are_stored_with_the_settlement(self, rig: Rig) -> None:
        rig.publish("a")
        hand = rig.hand()
        hand.ack(hand.take_one(), posting("b"), posting("c", OTHER))
        assert ids(hand.take(10, QUEUE, OTHER)) == ["b", "c"]

    def test_a_follow_up_of_the_same_id_is_a_new_message(self, rig: Rig) -> None:
        rig.publish("a")
        hand = rig.hand()
        hand.requeue(hand.take_one(), "once")
        hand.ack(hand.take_one(), posting("a", due_at=rig.now + 10))
        rig.assert_at("a", Delayed(QUEUE, rig.now + 10))
        rig.manual.advance(10)
        delivery = hand.take_one()
        assert (delivery.redeliveries, delivery.redelivered) == (0, False)

    def test_a_follow_up_that_no_queue_takes_is_refused_and_nothing_applied(self, rig: Rig) -> None:
        rig.publish("a", "b")
        hand = rig.hand()
        first, second = hand.take()
        reply = hand.turn(
            Settlement(first.lease, How.ACK, (posting("x"), posting("y", "nowhere"))),
            Settlement(second.lease, How.ACK, (posting("z"),)),
        )
        assert [lease for lease, _ in reply.refused] == [first.lease]
        assert "nowhere" in reply.refused[0][1]
        assert reply.lost == frozenset()
        assert hand.held == {first.lease}
        stored = ["z"] if rig.driver.features.atomic_follow_ups else ["x", "z"]
        assert ids(hand.take()) == stored

    def test_a_refused_delivery_can_be_settled_otherwise(self, rig: Rig) -> None:
        rig.publish("a")
        hand = rig.hand()
        delivery = hand.take_one()
        hand.ack(delivery, posting("y", "nowhere"))
        reply = hand.ack(delivery, dead=Dead("no queue", "Unroutable"))
        assert (reply.lost, reply.refused) == (frozenset(), ())
        assert rig.stats().dead == 1


class RepetitionContract(DriverSuite):
    def test_a_repeated_turn_gives_the_same_reply_and_changes_nothing(self, rig: Rig) -> None:
        rig.publish("a", "b", "c", "d")
        hand = rig.hand()
        one, two = hand.take(2)
        settlements = (
            Settlement(one.lease, How.ACK, (posting("follow"),)),
            Settlement(two.lease, How.REQUEUE, note="again"),
        )
        first = hand.turn(*settlements, begin=3, limit=1)
        before = rig.driver.queues()
        assert hand.again(*settlements, begin=3, limit=1) == first
        assert hand.again(*settlements, begin=3, limit=1) == first
        assert rig.driver.queues() == before
        assert ids(hand.take()) == ["d", "follow", "b"]

    def test_a_repeated_turn_repeats_what_was_lost_and_refused(self, rig: Rig) -> None:
        rig.publish("a")
        hand = rig.hand()
        lease = hand.take_one().lease
        settlements = (
            Settlement(99, How.ACK),
            Settlement(lease, How.ACK, (posting("x", "nowhere"),)),
        )
        first = hand.turn(*settlements)
        assert first.lost == {99}
        assert len(first.refused) == 1
        assert hand.again(*settlements) == first
        assert hand.held == {lease}

    def test_a_repetition_through_another_driver_object_counts_as_one(self, rig: Rig) -> None:
        rig.publish("a", "b")
        hand = rig.hand()
        first = hand.turn(limit=1)
        hand.driver = rig.another()
        assert hand.again(limit=1) == first
        assert rig.stats().ready == 1

    def test_a_repeated_turn_that_hands_out_a_burial_gives_it_whole(self, rig: Rig) -> None:
        rig.publish("a")
        doomed = rig.hand(number=1, info=b"options")
        doomed.abandon(running=[doomed.take_one().lease], lost=Lost(Loss.PROCESS, "signal 9"))
        hand = rig.hand(number=2)
        first = hand.turn(limit=1)
        assert first.deliveries[0].lost == Lost(Loss.PROCESS, "signal 9", b"options")
        assert hand.again(limit=1) == first

    def test_a_turn_on_the_owners_behalf_takes_no_number_and_is_not_remembered(
        self, rig: Rig
    ) -> None:
        rig.publish("a", "b", "c")
        hand = rig.hand()
        first = hand.turn(limit=2)
        supervisor = rig.another()
        settlement = Settlement(1, How.ACK, (posting("follow"),))
        assert supervisor.turn(hand.name, 0, settlements=[settlement]).lost == frozenset()
        assert supervisor.turn(hand.name, 0, settlements=[settlement]).lost == {1}
        assert hand.again(limit=2) == first
        assert hand.held == {2}
        assert ids(hand.take()) == ["c", "follow"]

    def test_enlisting_again_keeps_the_leases_and_the_numbers(self, rig: Rig) -> None:
        rig.publish("a", "b")
        hand = rig.hand()
        first = hand.turn(limit=1)
        rig.driver.enlist("run", hand.name, b"new info")
        assert hand.again(limit=1) == first
        assert hand.held == {1}
        assert hand.take_one().lease == 2


class BegunContract(DriverSuite):
    def test_begun_marks_cover_all_leases_up_to_the_number(self, rig: Rig) -> None:
        rig.publish("a", "b", "c")
        hand = rig.hand()
        hand.take()
        hand.turn(begin=2)
        for lease, name in enumerate("abc", 1):
            rig.assert_at(name, Leased(QUEUE, hand.name, lease, begun=lease <= 2))

    def test_begun_marks_cover_leases_handed_out_later(self, rig: Rig) -> None:
        rig.publish("a", "b")
        hand = rig.hand()
        hand.turn(begin=1)
        hand.take()
        rig.assert_at("a", Leased(QUEUE, hand.name, 1, begun=True))
        rig.assert_at("b", Leased(QUEUE, hand.name, 2, begun=False))

    def test_the_mark_never_falls(self, rig: Rig) -> None:
        rig.publish("a", "b")
        hand = rig.hand()
        hand.take()
        hand.turn(begin=2)
        hand.turn(begin=1)
        hand.turn()
        rig.assert_at("b", Leased(QUEUE, hand.name, 2, begun=True))

    def test_the_mark_is_the_owners_alone(self, rig: Rig) -> None:
        rig.publish("a", "b")
        one, two = rig.hand(number=1), rig.hand(number=2)
        one.take(1)
        two.take(1)
        one.turn(begin=5)
        rig.assert_at("b", Leased(QUEUE, two.name, 1, begun=False))


class GivingBackContract(DriverSuite):
    def test_a_released_message_goes_to_its_old_place_uncounted(self, rig: Rig) -> None:
        rig.publish("a", "b", "c")
        hand = rig.hand()
        first, _ = hand.take(2)
        hand.release(first)
        delivery = hand.take_one()
        assert ids([delivery]) == ["a"]
        assert (delivery.redeliveries, delivery.redelivered) == (0, False)
        assert ids(hand.take()) == ["c"]

    def test_released_messages_go_back_in_their_order_however_they_are_named(
        self, rig: Rig
    ) -> None:
        names = [f"m{n}" for n in range(12)]
        rig.publish(*names)
        hand = rig.hand()
        leases = [delivery.lease for delivery in hand.take(10)]
        shuffled = leases[::2] + leases[::-2]
        hand.turn(*(Settlement(lease, How.RELEASE) for lease in shuffled))
        assert ids(hand.take()) == names

    def test_release_goes_back_behind_a_higher_priority(self, rig: Rig) -> None:
        if not rig.driver.features.priority:
            return
        rig.publish("a")
        hand = rig.hand()
        delivery = hand.take_one()
        rig.publish("urgent", priority=9)
        hand.release(delivery)
        assert ids(hand.take()) == ["urgent", "a"]

    def test_release_with_a_delay_is_due_after_it(self, rig: Rig) -> None:
        rig.publish("a")
        hand = rig.hand()
        hand.release(hand.take_one(), delay=5.0)
        rig.assert_at("a", Delayed(QUEUE, rig.now + 5.0))
        assert hand.take() == ()
        rig.manual.advance(5.0)
        delivery = hand.take_one()
        assert (delivery.redeliveries, delivery.redelivered) == (0, False)

    def test_release_can_say_that_the_task_had_begun(self, rig: Rig) -> None:
        rig.publish("a")
        hand = rig.hand()
        hand.release(hand.take_one(), redelivered=True)
        delivery = hand.take_one()
        assert (delivery.redeliveries, delivery.redelivered) == (0, True)

    def test_the_first_time_an_unknown_name_was_seen_is_kept(self, rig: Rig) -> None:
        rig.publish("a")
        hand = rig.hand()
        seen_at = rig.now
        hand.release(hand.take_one(), delay=1.0, unknown=True)
        rig.assert_at("a", Delayed(QUEUE, seen_at + 1.0, seen_at))
        rig.manual.advance(2.0)
        again = hand.take_one()
        assert again.unknown_since_at == seen_at
        hand.release(again, delay=1.0, unknown=True)
        rig.manual.advance(2.0)
        assert hand.take_one().unknown_since_at == seen_at

    def test_a_requeued_message_goes_to_the_back_and_is_counted(self, rig: Rig) -> None:
        rig.publish("a", "b")
        hand = rig.hand()
        hand.requeue(hand.take_one())
        first, second = hand.take()
        assert ids([first, second]) == ["b", "a"]
        assert (second.redeliveries, second.redelivered) == (1, True)
        hand.turn(Settlement(first.lease, How.ACK), Settlement(second.lease, How.REQUEUE))
        assert hand.take_one().redeliveries == 2

    def test_a_requeued_message_keeps_its_priority(self, rig: Rig) -> None:
        if not rig.driver.features.priority:
            return
        rig.publish("a")
        rig.publish("urgent", priority=9)
        hand = rig.hand()
        hand.requeue(hand.take_one())
        assert ids(hand.take()) == ["urgent", "a"]

    def test_a_release_after_a_requeue_keeps_the_count(self, rig: Rig) -> None:
        rig.publish("a")
        hand = rig.hand()
        hand.requeue(hand.take_one())
        hand.release(hand.take_one())
        delivery = hand.take_one()
        assert (delivery.redeliveries, delivery.redelivered) == (1, True)
