"""Contract of runs and owners: enlisting, heartbeats, outages, clocks that jump."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import pytest

from umbel.exceptions import RunLost
from umbel.ports import Beat, BrokerOptions, RunRecord
from umbel.testing.contract.rig import DriverSuite, Hand, Rig, ids

HOUR = 3600.0


class SharingContract(DriverSuite):
    def test_tending_changes_nothing_for_what_is_ours(self, rig: Rig) -> None:
        rig.publish("a", "b")
        hand = rig.hand()
        (first,) = hand.take(1)
        assert rig.driver.tend() > 0
        assert rig.driver.tend() > 0
        assert rig.driver.held(hand.name) == {first.lease}
        assert ids(hand.take()) == ["b"]

    def test_only_what_celerys_workers_could_run_is_handed_back(self, rig: Rig) -> None:
        rig.publish("waits")
        rig.publish("later", due_at=rig.now + HOUR)
        hand = rig.hand()
        handed = rig.driver.hand_back()
        shared = rig.driver.features.shared_with_celery
        assert (handed.delayed, handed.buried) == (int(shared), 0)
        assert ids(hand.take()) == ["waits", "later"][: 1 + shared]


class EnlistingContract(DriverSuite):
    def test_an_enlisted_run_is_alive(self, rig: Rig) -> None:
        rig.driver.enlist("one", None, b"first")
        rig.manual.advance(1.0)
        rig.driver.enlist("two", "two#1", b"second")
        assert rig.driver.runs() == (
            RunRecord("one", b"first", rig.now - 1.0),
            RunRecord("two", b"second", rig.now),
        )

    def test_enlisting_again_replaces_the_info(self, rig: Rig) -> None:
        rig.driver.enlist("one", "one#1", b"old")
        rig.driver.enlist("one", "one#2", b"new")
        assert [record.info for record in rig.driver.runs()] == [b"new"]

    def test_a_beat_renews_and_names_the_living_others(self, rig: Rig) -> None:
        rig.driver.enlist("one", None, b"1")
        rig.driver.enlist("two", None, b"2")
        rig.manual.advance(1.0)
        reply = rig.driver.beat("one")
        assert reply.alive
        assert [(peer.run, peer.info) for peer in reply.peers] == [("two", b"2")]
        assert {record.run: record.seen_at for record in rig.driver.runs()}["one"] == rig.now

    def test_a_beat_says_when_the_first_of_the_others_would_be_dead(self, rig: Rig) -> None:
        lease = rig.options.lease_time
        rig.driver.enlist("one", None, b"")
        assert rig.driver.beat("one").next_death_in is None
        rig.driver.enlist("two", None, b"")
        rig.manual.advance(0.25 * lease)
        rig.driver.enlist("three", None, b"")
        assert rig.driver.beat("one").next_death_in == pytest.approx(0.75 * lease)

    def test_a_run_that_never_enlisted_is_not_alive(self, rig: Rig) -> None:
        assert not rig.driver.beat("stranger").alive

    def test_an_unknown_owner_holds_nothing(self, rig: Rig) -> None:
        assert rig.driver.held("nobody#1") == frozenset()

    def test_held_are_the_leases_that_are_not_settled(self, rig: Rig) -> None:
        rig.publish("a", "b", "c")
        hand = rig.hand()
        _, second, _ = hand.take()
        hand.ack(second)
        assert hand.held == {1, 3}
        assert rig.another().held(hand.name) == {1, 3}

    def test_a_run_that_left_is_no_longer_alive(self, rig: Rig) -> None:
        rig.hand("one")
        rig.driver.leave("one")
        rig.driver.leave("one")
        rig.driver.leave("stranger")
        assert rig.driver.runs() == ()
        assert not rig.driver.beat("one").alive

    def test_a_dead_run_takes_no_new_owner_and_no_turn(self, rig: Rig) -> None:
        hand = rig.hand("one")
        rig.kill("one")
        rig.publish("a")
        with pytest.raises(RunLost):
            rig.driver.enlist("one", "one#2", b"")
        with pytest.raises(RunLost):
            rig.driver.enlist("one", hand.name, b"")
        with pytest.raises(RunLost):
            hand.take()
        assert hand.held == frozenset()
        assert rig.stats().ready == 1

    def test_an_abandoned_owner_takes_no_turn_and_cannot_come_back(self, rig: Rig) -> None:
        # Its leases would count from 1 again: a late settlement would end another's delivery.
        hand = rig.hand()
        hand.abandon()
        with pytest.raises(RunLost):
            hand.take()
        with pytest.raises(RunLost):
            rig.driver.enlist("run", hand.name, b"")
        assert rig.driver.beat("run").alive


class LivenessContract(DriverSuite):
    def test_a_living_run_keeps_its_leases_however_long_a_task_runs(self, rig: Rig) -> None:
        rig.publish("a")
        hand = rig.hand("one")
        delivery = hand.take_one()
        rig.driver.enlist("two", None, b"")
        for _ in range(200):
            rig.manual.advance(rig.options.heartbeat)
            assert rig.driver.beat("one").alive
            assert rig.driver.beat("two").reclaimed == 0
        assert hand.ack(delivery).lost == frozenset()

    def test_a_dead_run_is_reclaimed_after_one_lease_and_not_before(self, rig: Rig) -> None:
        rig.publish("a")
        rig.driver.enlist("alive", None, b"")
        rig.driver.beat("alive")
        hand = rig.hand("doomed")
        hand.take_one()
        rig.driver.beat("doomed")
        died_at = rig.now
        step = rig.options.heartbeat / 4
        while rig.driver.beat("alive").reclaimed == 0:
            assert rig.now - died_at <= rig.options.lease_time + step
            rig.manual.advance(step)
        assert rig.now - died_at > rig.options.lease_time
        assert ids(rig.hand("alive").take()) == ["a"]

    def test_a_run_alone_that_was_asleep_is_not_dead(self, rig: Rig) -> None:
        rig.publish("a")
        hand = rig.hand("one")
        delivery = hand.take_one()
        rig.driver.beat("one")
        rig.manual.advance(50 * rig.options.lease_time)
        assert rig.driver.beat("one").alive
        assert hand.ack(delivery).lost == frozenset()

    def test_a_new_run_after_an_outage_does_not_hide_it(self, rig: Rig) -> None:
        rig.publish("a")
        hand = rig.hand("old")
        delivery = hand.take_one()
        rig.driver.beat("old")
        rig.manual.advance(5 * rig.options.lease_time)
        rig.driver.enlist("new", "new#1", b"")
        assert rig.driver.beat("new").reclaimed == 0
        assert rig.driver.beat("old").alive
        assert hand.ack(delivery).lost == frozenset()

    @pytest.mark.parametrize("outage", [0.4, 0.5, 0.55, 0.6, 0.66, 0.9, 1.0, 1.1, 2, 5, 100])
    @pytest.mark.parametrize("phase", [0.0, 0.3, 0.6, 0.95])
    def test_an_outage_kills_nobody_and_the_dead_are_found_after_it(
        self, rig: Rig, outage: float, phase: float
    ) -> None:
        lease = rig.options.lease_time
        living = [f"run{n}" for n in range(4)]
        rig.publish("a", "b", "c", "d", "e")
        for run in (*living, "dies"):
            rig.hand(run).take_one()
        begins = rig.now + 2 * lease + phase * rig.options.heartbeat
        ends = begins + outage * lease
        # An outage that nobody can notice (shorter than a heartbeat and a half) is survived by
        # those who are back within a sixth of a lease; a longer one by all back-offs below half.
        patience = lease / 2.1 if outage > 0.5 else lease / 7
        for at, run in _beats(rig, living, begins, ends, patience):
            rig.manual.advance(max(0.0, at - rig.now))
            if at < begins and run == living[0]:
                rig.driver.beat("dies")
            assert rig.driver.beat(run).alive, f"{run} taken for dead at {at - ends:+.1f} s"
        assert {record.run for record in rig.driver.runs()} == set(living)
        assert ids(rig.hand(living[0], 2).take()) == ["e"]

    @pytest.mark.parametrize("jump", [2 * HOUR, -2 * HOUR])
    def test_a_clock_that_jumps_kills_nobody_and_the_dead_are_found_after_it(
        self, rig: Rig, jump: float
    ) -> None:
        living = [f"run{n}" for n in range(4)]
        rig.publish("a", "b", "c", "d", "e")
        for run in (*living, "dies"):
            rig.hand(run).take_one()
        for beat in range(24):
            if beat == 10:
                rig.manual.jump(jump)
            rig.manual.advance(rig.options.heartbeat / 4)
            assert rig.driver.beat(living[beat % 4]).alive
            if beat < 10:
                rig.driver.beat("dies")
        for beat in range(24):
            rig.manual.advance(rig.options.heartbeat / 4)
            assert rig.driver.beat(living[beat % 4]).alive
        assert {record.run for record in rig.driver.runs()} == set(living)
        assert ids(rig.hand(living[0], 2).take()) == ["e"]


class MixedLeasesContract(DriverSuite):
    """Runs of different lease times beside each other: each counts with its own."""

    LONG = 30.0
    SHORT = 3.0

    @staticmethod
    def enlist(rig: Rig, run: str, lease_time: float) -> Hand:
        driver = rig.another(BrokerOptions(lease_time=lease_time))
        return rig.hand(run, driver=driver)

    @staticmethod
    def beat(rig: Rig, hand: Hand) -> Beat:
        return hand.driver.beat(hand.name.partition("#")[0])

    def test_a_beat_tells_the_shortest_heartbeat_of_the_living(self, rig: Rig) -> None:
        long = self.enlist(rig, "long", self.LONG)
        assert self.beat(rig, long).heartbeat == pytest.approx(self.LONG / 3)
        short = self.enlist(rig, "short", self.SHORT)
        assert self.beat(rig, long).heartbeat == pytest.approx(self.SHORT / 3)
        assert self.beat(rig, short).heartbeat == pytest.approx(self.SHORT / 3)
        rig.driver.leave("short")
        assert self.beat(rig, long).heartbeat == pytest.approx(self.LONG / 3)

    def test_each_run_dies_by_its_own_lease(self, rig: Rig) -> None:
        short = self.enlist(rig, "short", self.SHORT)
        self.enlist(rig, "long", self.LONG)
        reply = self.beat(rig, short)
        assert reply.next_death_in == pytest.approx(self.LONG)
        died_at = rig.now
        while "long" in {peer.run for peer in self.beat(rig, short).peers}:
            assert rig.now - died_at <= self.LONG + 1
            rig.manual.advance(self.SHORT / 3)
        assert rig.now - died_at > self.LONG

    @pytest.mark.parametrize("late", [0.0, 0.2, 0.4, 0.8, 1.0])
    def test_a_dead_short_run_beside_a_long_one_is_found(self, rig: Rig, late: float) -> None:
        rig.publish("a")
        long = self.enlist(rig, "long", self.LONG)
        pause = self.beat(rig, long).heartbeat
        short = self.enlist(rig, "short", self.SHORT)
        short.take_one()
        self.beat(rig, short)
        died_at = rig.now
        rig.manual.advance(late * pause)
        while not (reply := self.beat(rig, long)).reclaimed:
            assert rig.now - died_at <= late * pause + self.SHORT + 2 * reply.heartbeat
            rig.manual.advance(reply.heartbeat)
        assert rig.now - died_at > self.SHORT
        assert ids(long.take()) == ["a"]

    @pytest.mark.parametrize("outage", [0.5, 1.0, 1.4, 1.6, 2, 2.9, 3.1, 9, 11, 14, 16, 29, 31, 99])
    @pytest.mark.parametrize("phase", [0.0, 0.3, 0.7])
    def test_an_outage_kills_nobody(self, rig: Rig, outage: float, phase: float) -> None:
        leases = {"long": self.LONG, "mid": 9.0, "short": self.SHORT, "idle": self.LONG}
        hands = {run: self.enlist(rig, run, lease) for run, lease in leases.items()}
        begins = rig.now + 2 * self.LONG + phase
        ends = begins + outage
        coming = [(rig.now, run) for run in hands]
        while coming[0][0] < ends + 2 * self.LONG:
            at, run = heapq.heappop(coming)
            rig.manual.advance(max(0.0, at - rig.now))
            pause = leases[run] / 18
            if not begins <= at < ends:
                reply = self.beat(rig, hands[run])
                assert reply.alive, f"{run} taken for dead at {at - ends:+.1f} s"
                pause = min(leases[run] / 3, reply.heartbeat)
            heapq.heappush(coming, (at + pause, run))
        assert {record.run for record in rig.driver.runs()} == set(hands)


def _beats(
    rig: Rig, runs: list[str], begins: float, ends: float, patience: float
) -> Iterator[tuple[float, str]]:
    """Every run's beats, in order of time: none within the outage, after it the first comes
    back at once and the last one `patience` seconds late."""
    heartbeat = rig.options.heartbeat
    last = ends + 3 * rig.options.lease_time
    coming = [(rig.now + n * heartbeat / len(runs), run) for n, run in enumerate(runs)]
    while coming:
        at, run = heapq.heappop(coming)
        if begins <= at < ends:
            heapq.heappush(coming, (ends + patience * runs.index(run) / (len(runs) - 1), run))
        elif at <= last:
            heapq.heappush(coming, (at + heartbeat, run))
            yield at, run
