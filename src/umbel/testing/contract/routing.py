"""Contract of routing: exchanges, bindings, and queues that end with a run."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from umbel.exceptions import ImproperlyConfigured, RunLost, Unroutable
from umbel.exchanges import Binding
from umbel.message import Dead, How, Posting, Settlement
from umbel.ports import DeadLetter, Delayed, Ready
from umbel.testing.contract.rig import OTHER, QUEUE, DriverSuite, Rig, ids, message, posting

TOPIC = (
    Binding(QUEUE, "news", "topic", "sport.#"),
    Binding(QUEUE, "news", "topic", "*.goal"),
    Binding(OTHER, "news", "topic", "#.goal"),
)


def to(
    exchange: str, key: str = "", task_id: str = "m", *, priority: int = 0, **headers: object
) -> Posting:
    """A message to an exchange."""
    sent = message(task_id)
    sent = replace(sent, headers={**sent.headers, **headers})
    return Posting(sent, routing_key=key, exchange=exchange, priority=priority)


class ExchangeContract(DriverSuite):
    def reached(self, rig: Rig, *postings: Posting) -> tuple[list[str], list[str]]:
        """What is in the two queues after these were published."""
        rig.driver.publish(postings)
        return rig.drain(QUEUE), rig.drain(OTHER)

    def test_a_direct_exchange_reaches_each_queue_bound_by_the_key(self, rig: Rig) -> None:
        rig.driver.declare(
            [],
            [Binding(QUEUE, "pets", "direct", "cat"), Binding(OTHER, "pets", "direct", "dog")],
        )
        assert self.reached(rig, to("pets", "cat")) == (["m"], [])
        rig.driver.declare([], [Binding(OTHER, "pets", "direct", "cat")])
        assert self.reached(rig, to("pets", "cat")) == (["m"], ["m"])

    @pytest.mark.parametrize(
        ("key", "work", "other"),
        [
            ("sport", True, False),
            ("sport.goal", True, True),
            ("sport.ball.goal", True, True),
            ("art.goal", True, True),
            ("goal", False, True),
            ("art.deep.goal", False, True),
        ],
    )
    def test_a_topic_exchange_matches_words(
        self, rig: Rig, key: str, work: bool, other: bool
    ) -> None:
        rig.driver.declare([], TOPIC)
        expected = (["m"] if work else [], ["m"] if other else [])
        assert self.reached(rig, to("news", key)) == expected

    def test_a_fanout_exchange_reaches_all_whatever_the_key(self, rig: Rig) -> None:
        rig.driver.declare([], [Binding(QUEUE, "all", "fanout"), Binding(OTHER, "all", "fanout")])
        assert self.reached(rig, to("all", "whatever")) == (["m"], ["m"])

    def test_a_headers_exchange_looks_at_headers(self, rig: Rig) -> None:
        both = (("kind", "pdf"), ("size", 3), ("x-match", "all"))
        either = (("kind", "pdf"), ("size", 3), ("x-match", "any"))
        rig.driver.declare(
            [],
            [
                Binding(QUEUE, "files", "headers", "", both),
                Binding(OTHER, "files", "headers", "", either),
            ],
        )
        assert self.reached(rig, to("files", kind="pdf", size=3)) == (["m"], ["m"])
        assert self.reached(rig, to("files", kind="pdf")) == ([], ["m"])
        with pytest.raises(Unroutable):
            rig.driver.publish([to("files", kind="png", size=True)])

    def test_the_copies_are_alike_and_have_nothing_to_do_with_each_other(self, rig: Rig) -> None:
        rig.driver.declare([], TOPIC)
        sent = to("news", "sport.goal")
        rig.driver.publish([sent])
        rig.assert_at("m", Ready(QUEUE, 0), Ready(OTHER, 0))
        hand = rig.hand()
        first = hand.take_one(QUEUE)
        second = hand.take_one(OTHER)
        assert first.message == second.message == sent.message
        hand.requeue(second)
        hand.ack(first)
        assert rig.drain(OTHER) == ["m"]
        assert rig.drain(QUEUE) == []

    def test_priority_and_due_time_hold_for_each_copy(self, rig: Rig) -> None:
        rig.driver.declare([], TOPIC)
        later = replace(to("news", "sport.goal", "later"), due_at=rig.now + 5)
        rig.publish("plain", queue=OTHER)
        rig.driver.publish([later, to("news", "sport.goal", "urgent", priority=9)])
        rig.assert_at("later", Delayed(QUEUE, rig.now + 5), Delayed(OTHER, rig.now + 5))
        urgent = ["urgent", "plain"] if rig.driver.features.priority else ["plain", "urgent"]
        assert rig.drain(OTHER) == urgent
        rig.manual.advance(5)
        assert rig.drain(QUEUE, OTHER) == ["urgent", "later", "later"]

    def test_a_key_that_no_binding_takes_is_unroutable(self, rig: Rig) -> None:
        rig.driver.declare([], TOPIC)
        with pytest.raises(Unroutable, match=r"topic exchange 'news' takes routing key 'art'"):
            rig.driver.publish([posting("a"), to("news", "art")])
        assert rig.drain(QUEUE) == [], "of the batch, something was stored"

    def test_an_exchange_without_bindings_is_unroutable(self, rig: Rig) -> None:
        with pytest.raises(Unroutable, match=r"exchange 'news'.*has no queue bound"):
            rig.driver.publish([to("news", "sport")])

    def test_a_queue_is_bound_to_the_direct_exchange_of_its_name(self, rig: Rig) -> None:
        assert self.reached(rig, to(QUEUE, QUEUE)) == (["m"], [])
        with pytest.raises(Unroutable):
            rig.driver.publish([to(QUEUE, OTHER)])
        rig.driver.declare([], [Binding(OTHER, QUEUE, "direct", QUEUE)])
        assert self.reached(rig, to(QUEUE, QUEUE)) == (["m"], ["m"])
        rig.driver.declare([], [Binding(QUEUE, OTHER, "topic", "x")])
        with pytest.raises(Unroutable):
            rig.driver.publish([to(OTHER, OTHER)])

    def test_a_binding_makes_its_queue(self, rig: Rig) -> None:
        rig.driver.declare([], [Binding("new", "x", "fanout")])
        rig.driver.publish([to("x"), posting("n", "new")])
        assert rig.drain("new") == ["m", "n"]

    def test_declaring_again_changes_nothing_and_other_drivers_see_it(self, rig: Rig) -> None:
        second = rig.another()
        rig.driver.declare([QUEUE], TOPIC)
        second.declare([QUEUE], TOPIC)
        expected = sorted(TOPIC, key=lambda each: each.queue)
        assert sorted(second.bindings(), key=lambda each: each.queue) == expected
        second.publish([to("news", "sport.goal")])
        assert rig.drain(QUEUE) == ["m"]

    def test_a_binding_to_an_exchange_of_another_type_is_refused(self, rig: Rig) -> None:
        rig.driver.declare([], TOPIC)
        with pytest.raises(ImproperlyConfigured, match=r"of type 'topic'.*one of type 'fanout'"):
            rig.driver.declare(["new"], [Binding("new", "news", "fanout")])
        with pytest.raises(ImproperlyConfigured, match="of type 'direct'"):
            rig.driver.declare([], [Binding("a", "z", "direct"), Binding("b", "z", "headers")])
        assert [stats.name for stats in rig.driver.queues()] == sorted([QUEUE, OTHER])

    def test_unbinding(self, rig: Rig) -> None:
        rig.driver.declare([], TOPIC)
        assert rig.driver.unbind(TOPIC[:2]) == 2
        assert rig.driver.unbind(TOPIC[:2]) == 0
        assert self.reached(rig, to("news", "sport.goal")) == ([], ["m"])
        assert rig.driver.unbind(TOPIC) == 1
        assert rig.driver.bindings() == ()
        rig.driver.declare([], [Binding(QUEUE, "news", "fanout")])
        assert self.reached(rig, to("news")) == (["m"], [])

    def test_a_follow_up_through_an_exchange_is_stored_with_the_settlement(self, rig: Rig) -> None:
        rig.driver.declare([], TOPIC)
        rig.publish("first")
        hand = rig.hand()
        assert hand.ack(hand.take_one(), to("news", "sport.goal", "then")).refused == ()
        assert (rig.drain(QUEUE), rig.drain(OTHER)) == (["then"], ["then"])

    def test_a_follow_up_that_no_binding_takes_is_refused(self, rig: Rig) -> None:
        rig.driver.declare([], TOPIC)
        rig.publish("first")
        hand = rig.hand()
        delivery = hand.take_one()
        (refused,) = hand.ack(delivery, to("news", "art", "then")).refused
        assert refused[0] == delivery.lease
        assert "'art'" in refused[1]
        assert hand.held == {delivery.lease}

    def test_a_dead_letter_can_go_back_through_an_exchange(self, rig: Rig) -> None:
        rig.driver.declare([], TOPIC)
        rig.publish("m")
        hand = rig.hand()
        hand.bury_as_dead(hand.take_one())
        with pytest.raises(Unroutable):
            rig.driver.dead_requeue("m", to("news", "art"))
        assert rig.driver.dead_find("m") is not None
        assert rig.driver.dead_requeue("m", to("news", "sport.goal"))
        assert rig.driver.dead_find("m") is None
        assert (rig.drain(QUEUE), rig.drain(OTHER)) == (["m"], ["m"])


OWN = "bcast.all.run"
BCAST = Binding(OWN, "all", "fanout")


class OwnQueueContract(DriverSuite):
    """Queues that a run declares as its own."""

    def own(self, rig: Rig, run: str = "run", queue: str = OWN) -> None:
        rig.driver.declare([queue], [Binding(queue, "all", "fanout")], run=run)

    def names(self, rig: Rig) -> list[str]:
        return [stats.name for stats in rig.driver.queues()]

    def assert_gone(self, rig: Rig) -> None:
        assert rig.driver.bindings() == ()
        assert self.names(rig) == sorted([QUEUE, OTHER])
        with pytest.raises(Unroutable):
            rig.driver.publish([to("all")])
        with pytest.raises(Unroutable):
            rig.driver.publish([posting("m", OWN)])
        assert rig.hand("later").take(10, OWN) == ()

    def test_each_run_gets_its_copy(self, rig: Rig) -> None:
        hands = [rig.hand(run) for run in ("run", "run2")]
        for hand in hands:
            self.own(rig, hand.name.partition("#")[0], f"of {hand.name}")
        rig.driver.publish([to("all")])
        assert [ids(hand.take(5, f"of {hand.name}")) for hand in hands] == [["m"], ["m"]]

    def test_it_goes_when_the_run_leaves_with_all_that_waits(self, rig: Rig) -> None:
        hand = rig.hand()
        self.own(rig)
        soon = replace(to("all", "", "soon"), due_at=rig.now + 9)
        rig.driver.publish([to("all"), to("all", "", "n"), soon, posting("kept")])
        assert ids(hand.take(1, OWN)) == ["m"]
        rig.driver.leave("run")
        self.assert_gone(rig)
        rig.assert_at("n")
        rig.manual.advance(10)
        assert rig.drain(QUEUE, OWN) == ["kept"]

    def test_it_goes_when_the_run_is_reclaimed(self, rig: Rig) -> None:
        rig.hand()
        self.own(rig)
        rig.driver.publish([to("all")])
        rig.kill("run")
        self.assert_gone(rig)

    def test_what_had_begun_becomes_a_dead_letter(self, rig: Rig) -> None:
        hand = rig.hand()
        self.own(rig)
        rig.driver.publish([to("all"), to("all", "", "n")])
        hand.take(2, OWN, begin=1)
        rig.driver.leave("run")
        begun = ["m"] if rig.driver.features.lease_records else []
        letters = rig.driver.dead()
        assert [(letter.id, letter.queue) for letter in letters] == [(each, OWN) for each in begun]
        for letter in letters:
            assert "ended without settling" in letter.reason
            assert letter.error == "WorkerLostError"

    def test_its_dead_letters_outlive_it(self, rig: Rig) -> None:
        hand = rig.hand()
        self.own(rig)
        rig.driver.publish([to("all")])
        hand.bury_as_dead(hand.take_one(OWN))
        rig.driver.leave("run")
        (letter,) = rig.driver.dead(OWN)
        assert isinstance(rig.driver.dead_find("m"), DeadLetter)
        assert letter.queue == OWN
        assert OWN in self.names(rig)
        with pytest.raises(Unroutable):
            rig.driver.dead_requeue("m", posting("m", OWN))
        rig.driver.declare([OWN])
        with pytest.raises(Unroutable):
            rig.driver.publish([posting("x", OWN)])
        rig.driver.dead_delete(["m"])
        rig.driver.enlist("survivor", None, b"")
        rig.driver.beat("survivor")
        self.assert_gone(rig)

    def test_what_another_run_holds_of_it_can_still_be_settled(self, rig: Rig) -> None:
        rig.hand()
        self.own(rig)
        rig.driver.publish([to("all"), to("all", "", "n")])
        other = rig.hand("run2")
        first, second = other.take(2, OWN)
        rig.driver.leave("run")
        assert OWN in self.names(rig)
        dead = Settlement(first.lease, How.ACK, dead=Dead("failed", "ValueError"))
        assert other.turn(dead).lost == frozenset()
        assert other.release(second).lost == frozenset()
        assert [letter.id for letter in rig.driver.dead()] == ["m"]
        rig.driver.dead_delete(None)
        rig.driver.beat("run2")
        self.assert_gone(rig)

    def test_declaring_it_again_keeps_it_the_runs_own(self, rig: Rig) -> None:
        rig.hand()
        self.own(rig)
        self.own(rig)
        rig.driver.declare([OWN])
        rig.driver.publish([to("all")])
        rig.driver.leave("run")
        self.assert_gone(rig)

    def test_a_name_can_be_used_again(self, rig: Rig) -> None:
        second = rig.another()
        for number in range(3):
            run = f"run{number}"
            hand = rig.hand(run, driver=second)
            self.own(rig, run)
            rig.driver.declare([f"kept{number}"])
            second.publish([to("all"), posting("k", f"kept{number}")])
            assert ids(hand.take(5, OWN)) == ["m"]
            assert ids(hand.take(5, f"kept{number}")) == ["k"]
            rig.driver.leave(run)
        assert [stats.ready + stats.leased for stats in rig.driver.queues()] == [1, 1, 1, 0, 0]

    def test_a_run_that_is_not_enlisted_has_no_queues(self, rig: Rig) -> None:
        for gone in (False, True):
            if gone:
                rig.hand()
                rig.driver.leave("run")
            with pytest.raises(RunLost):
                self.own(rig)
            assert self.names(rig) == sorted([QUEUE, OTHER])

    def test_a_queue_of_all_cannot_become_a_runs_own(self, rig: Rig) -> None:
        rig.hand()
        rig.hand("run2")
        with pytest.raises(ImproperlyConfigured, match=f"'{QUEUE}' exists"):
            rig.driver.declare([QUEUE], run="run")
        self.own(rig)
        with pytest.raises(ImproperlyConfigured, match=f"'{OWN}' exists"):
            self.own(rig, "run2")
