"""Contract of waiting: what wakes a waiter, and that it takes nothing. Under real time."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from umbel.message import How, Settlement
from umbel.ports import Revocation
from umbel.testing.contract.rig import (
    OTHER,
    PATIENCE,
    QUEUE,
    Background,
    DriverSuite,
    Hand,
    Rig,
    id_of,
    ids,
    posting,
)

LONG = 60.0
"""A wait that a test must wake: longer than any test may last."""


class WaitingContract(DriverSuite):
    def test_nothing_comes_and_the_wait_ends_after_its_timeout(self, live: Rig) -> None:
        started = time.monotonic()
        assert live.driver.wait([QUEUE], 0.1) is False
        assert 0.09 <= time.monotonic() - started < PATIENCE

    def test_what_is_ready_ends_the_wait_at_once(self, live: Rig) -> None:
        live.publish("a")
        assert live.driver.wait([OTHER, QUEUE], LONG) is True

    def test_what_awaits_burial_ends_the_wait_at_once(self, live: Rig) -> None:
        live.publish("a")
        hand = live.hand()
        hand.abandon(running=[hand.take_one().lease])
        assert live.driver.wait([QUEUE], LONG) is True

    def test_waiting_takes_and_marks_nothing(self, live: Rig) -> None:
        live.publish("a")
        before = live.driver.queues()
        assert live.driver.wait([QUEUE], LONG)
        assert live.driver.wait([QUEUE], LONG)
        if not live.driver.features.wait_takes:
            assert live.driver.queues() == before
        delivery = live.hand().take_one()
        assert (id_of(delivery), delivery.redelivered) == ("a", False)

    def test_a_frozen_waiter_keeps_nothing(self, live: Rig) -> None:
        # Its wait is over, but it takes no turn: another must get the message.
        frozen = live.hand("frozen", driver=live.another())
        waiting = Background(lambda: frozen.driver.wait([QUEUE], LONG))
        live.publish("a")
        assert waiting.result() is True
        assert frozen.held == frozenset()
        if live.driver.features.wait_takes:
            frozen.driver.close()
        assert ids(live.hand("awake").take()) == ["a"]

    def test_a_message_that_falls_due_ends_the_wait(self, live: Rig) -> None:
        due_at = live.now + 0.15
        live.publish("a", due_at=due_at)
        assert live.driver.wait([QUEUE], LONG) is True
        assert live.now >= due_at - 0.01
        hand = live.hand()
        deadline = time.monotonic() + PATIENCE
        while not (taken := hand.take()):
            assert time.monotonic() < deadline
        assert ids(taken) == ["a"]

    def test_a_message_published_due_soon_ends_a_wait_that_runs(self, live: Rig) -> None:
        waiting = Background(lambda: live.driver.wait([QUEUE], LONG))
        assert waiting.running
        live.another().publish([posting("a", due_at=live.now + 0.1)])
        assert waiting.result() is True

    def _wakes(self, live: Rig, act: Callable[[], object]) -> bool:
        """Whether `act`, done from here, ends a wait on another driver object in a thread; what
        that wait said."""
        waiter = live.another()
        waiting = Background(lambda: waiter.wait([QUEUE], LONG))
        # Enough for the thread to be inside `wait`; were it not, the test would be weaker only.
        time.sleep(0.05)
        assert waiting.running, "the wait ended before anything happened"
        act()
        woken = waiting.result() is True
        waiter.close()  # with `wait_takes` it holds what it was pushed
        return woken

    def test_a_publish_by_another_wakes(self, live: Rig) -> None:
        assert self._wakes(live, lambda: live.publish("a"))

    def test_a_publish_to_another_queue_does_not_end_the_wait(self, live: Rig) -> None:
        waiting = Background(lambda: live.another().wait([QUEUE], 0.3))
        live.publish("a", queue=OTHER)
        assert waiting.result() is False

    def test_a_revocation_by_another_wakes(self, live: Rig) -> None:
        assert self._wakes(live, lambda: live.driver.revoke([Revocation("nobody-knows")]))

    @pytest.mark.parametrize("how", [How.REQUEUE, How.RELEASE])
    def test_what_another_gives_back_wakes(self, live: Rig, how: How) -> None:
        live.publish("a")
        hand = live.hand()
        lease = hand.take_one().lease
        assert self._wakes(live, lambda: hand.turn(Settlement(lease, how)))

    def test_a_follow_up_wakes(self, live: Rig) -> None:
        live.publish("a")
        hand = live.hand()
        delivery = hand.take_one()
        assert self._wakes(live, lambda: hand.ack(delivery, posting("b")))

    def test_what_a_dead_process_held_or_ran_wakes(self, live: Rig) -> None:
        live.publish("a", "b")
        one, two = live.hand(number=1), live.hand(number=2)
        one.take_one()
        lease = two.take_one().lease
        assert self._wakes(live, one.abandon)
        three = live.hand(number=3)
        three.take_one()
        assert self._wakes(live, lambda: two.abandon(running=[lease]))

    def test_a_requeued_dead_letter_wakes(self, live: Rig) -> None:
        live.publish("a")
        hand = live.hand()
        hand.bury_as_dead(hand.take_one())
        assert self._wakes(live, lambda: live.driver.dead_requeue("a", posting("a")))

    def test_interrupt_ends_a_wait_that_runs(self, live: Rig) -> None:
        waiting = Background(lambda: live.driver.wait([QUEUE], LONG))
        time.sleep(0.05)
        live.driver.interrupt()
        waiting.result()

    def test_interrupt_ends_the_next_wait_where_none_runs_and_only_that(self, live: Rig) -> None:
        live.driver.interrupt()
        live.driver.wait([QUEUE], LONG)
        started = time.monotonic()
        live.driver.wait([QUEUE], 0.1)
        assert time.monotonic() - started >= 0.09

    def test_interrupt_is_this_driver_objects_alone(self, live: Rig) -> None:
        waiting = Background(lambda: live.another().wait([QUEUE], 0.3))
        started = time.monotonic()
        live.driver.interrupt()
        waiting.result()
        assert time.monotonic() - started >= 0.25

    def test_closing_ends_a_wait(self, live: Rig) -> None:
        waiter = live.another()
        waiting = Background(lambda: waiter.wait([QUEUE], LONG))
        time.sleep(0.05)
        waiter.close()
        waiting.result()

    def test_a_turn_can_be_taken_while_a_thread_waits(self, live: Rig) -> None:
        waiting = Background(lambda: live.driver.wait([OTHER], LONG))
        hand: Hand = live.hand()
        live.publish("a")
        assert ids(hand.take()) == ["a"]
        live.driver.interrupt()
        waiting.result()
