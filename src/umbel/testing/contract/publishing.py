"""Contract of publishing and handing out: order, priorities, due times, routing, broadcasts."""

from __future__ import annotations

import threading
from bisect import bisect_right

import pytest

from umbel.exceptions import Unroutable
from umbel.exchanges import Binding
from umbel.message import Message, Posting
from umbel.ports import Ready, Subscription
from umbel.testing.contract.rig import (
    OTHER,
    PATIENCE,
    QUEUE,
    DriverSuite,
    Rig,
    ids,
    message,
    posting,
)


class PublishingContract(DriverSuite):
    def test_messages_come_in_the_order_of_arrival(self, rig: Rig) -> None:
        names = [f"m{n}" for n in range(30)]
        for name in names:
            rig.publish(name)
        hand = rig.hand()
        assert ids(hand.take(7)) + ids(hand.take(50)) == names

    def test_the_order_of_arrival_holds_over_several_queues_taken_together(self, rig: Rig) -> None:
        for n in range(12):
            rig.publish(f"m{n}", queue=(QUEUE, OTHER)[n % 3 == 1])
        got = ids(rig.hand().take(50, OTHER, QUEUE))
        assert got == [f"m{n}" for n in range(12)]

    def test_only_the_queues_asked_for_are_served(self, rig: Rig) -> None:
        rig.publish("here")
        rig.publish("there", queue=OTHER)
        hand = rig.hand()
        deliveries = hand.take(10, OTHER)
        assert ids(deliveries) == ["there"]
        assert [d.queue for d in deliveries] == [OTHER]

    def test_at_most_limit_are_handed_out(self, rig: Rig) -> None:
        rig.publish("a", "b", "c")
        hand = rig.hand()
        assert hand.take(0) == ()
        assert ids(hand.take(2)) == ["a", "b"]

    def test_a_message_comes_back_byte_for_byte(self, rig: Rig) -> None:
        sent = Message(
            body=bytes(range(256)),
            content_encoding="binary",
            content_type="application/octet-stream",
            headers={"id": "x", "task": "t", "nested": {"ü": [1, None, 2.5]}, "eta": None},
            properties={"priority": 3, "reply_to": "somewhere"},
        )
        rig.driver.publish([Posting(sent, routing_key=QUEUE)])
        assert rig.hand().take_one().message == sent

    def test_a_first_delivery_says_so(self, rig: Rig) -> None:
        rig.publish("a")
        delivery = rig.hand().take_one()
        assert (delivery.redelivered, delivery.redeliveries) == (False, 0)
        assert delivery.unknown_since_at is None
        assert delivery.lost is None

    def test_priority_nine_is_served_before_zero(self, rig: Rig) -> None:
        if not rig.driver.features.priority:
            rig.publish("late", priority=0)
            rig.publish("early", priority=9)
            assert ids(rig.hand().take()) == ["late", "early"]
            return
        sent = (0, 5, 9, 3, 1, 9)
        for priority in sent:
            rig.publish(f"p{priority}", priority=priority)
        steps = rig.driver.features.priority_steps
        # Sorting keeps the order of arrival within a step.
        served = sorted(sent, key=lambda priority: -bisect_right(steps, priority))
        assert ids(rig.hand().take()) == [f"p{priority}" for priority in served]

    def test_priority_counts_over_several_queues_and_arrival_within_it(self, rig: Rig) -> None:
        if not rig.driver.features.priority:
            return
        rig.publish("a0", "b0")
        rig.publish("c9", priority=9, queue=OTHER)
        rig.publish("d9", priority=9)
        rig.publish("e0", queue=OTHER)
        assert ids(rig.hand().take(50, QUEUE, OTHER)) == ["c9", "d9", "a0", "b0", "e0"]

    def test_what_is_due_later_is_handed_out_when_its_time_has_come(self, rig: Rig) -> None:
        rig.publish("later", due_at=rig.now + 60)
        hand = rig.hand()
        assert hand.take() == ()
        rig.manual.advance(59.5)
        assert hand.take() == ()
        rig.manual.advance(0.5)
        assert ids(hand.take()) == ["later"]

    def test_what_was_due_in_the_past_is_ready(self, rig: Rig) -> None:
        rig.publish("past", due_at=rig.now - 5)
        assert ids(rig.hand().take()) == ["past"]

    def test_what_falls_due_comes_in_the_order_of_due_times(self, rig: Rig) -> None:
        for n in (1, 2, 2, 3, 30):
            rig.publish(f"d{n}", due_at=rig.now + n)
        rig.manual.advance(10)
        assert ids(rig.hand().take()) == ["d1", "d2", "d2", "d3"]

    def test_what_falls_due_keeps_its_priority(self, rig: Rig) -> None:
        if not rig.driver.features.priority:
            return
        rig.publish("plain")
        rig.publish("urgent", priority=9, due_at=rig.now + 1)
        rig.manual.advance(2)
        assert ids(rig.hand().take()) == ["urgent", "plain"]

    def test_a_clock_that_went_back_does_not_lose_what_is_due(self, rig: Rig) -> None:
        rig.publish("later", due_at=rig.now + 10)
        rig.manual.jump(-7200)
        hand = rig.hand()
        assert hand.take() == ()
        rig.manual.advance(7210)
        assert ids(hand.take()) == ["later"]

    def test_of_a_batch_with_an_unknown_queue_nothing_is_stored(self, rig: Rig) -> None:
        with pytest.raises(Unroutable, match="nowhere"):
            rig.driver.publish([posting("a"), posting("b", "nowhere"), posting("c")])
        assert rig.stats().ready == 0
        assert rig.hand().take() == ()

    def test_an_empty_batch_is_fine(self, rig: Rig) -> None:
        rig.driver.publish([])
        assert rig.stats().ready == 0

    def test_declaring_twice_keeps_what_is_there(self, rig: Rig) -> None:
        rig.publish("a")
        rig.driver.declare([QUEUE, "new"])
        rig.publish("b", queue="new")
        assert ids(rig.hand().take(10, QUEUE, "new")) == ["a", "b"]

    def test_a_second_driver_object_sees_the_same_messages(self, rig: Rig) -> None:
        rig.publish("a")
        second = rig.another()
        second.publish([posting("b")])
        assert ids(rig.hand("run2", driver=second).take()) == ["a", "b"]
        assert second.location == rig.driver.location

    def test_opening_and_closing_twice_is_fine(self, rig: Rig) -> None:
        second = rig.another()
        second.open()
        second.close()
        second.close()
        rig.publish("a")
        rig.assert_at("a", Ready(QUEUE, 0))


class BroadcastContract(DriverSuite):
    def test_every_present_subscriber_of_the_channel_hears_it(self, live: Rig) -> None:
        second = live.another()
        listeners = [live.driver.subscribe(["control"]), second.subscribe(["control", "x"])]
        deaf = second.subscribe(["elsewhere"])
        live.driver.broadcast("control", b"shutdown")
        for listener in listeners:
            assert listener.get(10.0) == ("control", b"shutdown")
        assert deaf.get(0.05) is None
        for listener in (*listeners, deaf):
            listener.close()

    def test_broadcasts_come_in_order(self, live: Rig) -> None:
        listener = live.driver.subscribe(["a", "b"])
        sent = [("ab"[n % 2], bytes([n])) for n in range(10)]
        for channel, payload in sent:
            live.driver.broadcast(channel, payload)
        assert [listener.get(10.0) for _ in sent] == sent
        listener.close()

    def test_nothing_is_kept_for_later_subscribers(self, live: Rig) -> None:
        live.driver.broadcast("control", b"before")
        listener = live.driver.subscribe(["control"])
        assert listener.get(0.05) is None
        live.driver.broadcast("control", b"after")
        assert listener.get(10.0) == ("control", b"after")
        listener.close()

    def test_a_closed_subscription_hears_nothing_more(self, live: Rig) -> None:
        listener = live.driver.subscribe(["control"])
        listener.close()
        live.driver.broadcast("control", b"x")
        assert listener.get(0.0) is None


def heard(listener: Subscription) -> bytes:
    """What the listener hears next."""
    found = listener.get(PATIENCE)
    assert found is not None
    return found[1]


class RelayContract(DriverSuite):
    def test_there_is_nothing_to_relay_into_a_queue_without_a_fanout_exchange(
        self, rig: Rig
    ) -> None:
        rig.driver.declare([], [Binding(OTHER, "topics", "topic", "#")])
        assert rig.driver.relay([QUEUE, OTHER]) is None

    def test_what_is_published_here_isnt_relayed_once_more(self, live: Rig) -> None:
        live.driver.declare([], [Binding(QUEUE, "all", "fanout")])
        relay = live.driver.relay([QUEUE])
        live.driver.publish([Posting(message("a"), "", "all")])
        if relay is not None:
            relay.carry(0.1)
            relay.close()
        assert ids(live.hand().take(10)) == ["a"]


class AnswerContract(DriverSuite):
    def test_the_listener_of_the_key_hears_the_answer(self, live: Rig) -> None:
        second = live.another()
        listener, deaf = live.driver.listen("answers", "a"), second.listen("answers", "b")
        second.answer("answers", "a", b"one")
        live.driver.answer("answers", "a", b"two")
        assert [heard(listener), heard(listener)] == [b"one", b"two"]
        assert deaf.get(0.05) is None
        for each in (listener, deaf):
            each.close()

    def test_an_answer_wakes_its_listener(self, live: Rig) -> None:
        listener = live.driver.listen("answers", "a")
        answers: list[bytes] = []
        waiting = threading.Thread(target=lambda: answers.append(heard(listener)))
        waiting.start()
        live.another().answer("answers", "a", b"x")
        waiting.join(PATIENCE)
        assert answers == [b"x"]
        listener.close()

    def test_an_answer_that_nobody_listens_to_is_none(self, live: Rig) -> None:
        live.driver.answer("answers", "a", b"early")
        listener = live.driver.listen("answers", "a")
        assert listener.get(0.0) is None
        listener.close()
        live.driver.answer("answers", "a", b"late")
        assert listener.get(0.0) is None
        again = live.driver.listen("answers", "a")
        assert again.get(0.0) is None
        live.driver.answer("answers", "a", b"unheard")
        again.close()
        again.close()
        last = live.driver.listen("answers", "a")
        assert last.get(0.0) is None
        last.close()
