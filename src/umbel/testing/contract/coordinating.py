"""Contract of the coordinator: the log of revocations, named leases, token buckets, counters."""

from __future__ import annotations

import multiprocessing
import time
from functools import partial
from pathlib import Path

import pytest

from umbel.clock import SYSTEM
from umbel.ports import BrokerOptions, Delayed, Ready, Revocation
from umbel.testing.contract.rig import (
    PATIENCE,
    QUEUE,
    Background,
    Connect,
    Driver,
    DriverSuite,
    Rig,
    id_of,
    ids,
    posting,
)

HOUR = 3600.0
CROWD = 4
EACH = 25
RATE, BURST = 200.0, 5.0


class RevocationContract(DriverSuite):
    def test_the_log_is_empty_at_first(self, rig: Rig) -> None:
        version, entries = rig.driver.revoked(0)
        assert entries == ()
        assert rig.driver.revoked(version) == (version, ())

    def test_entries_come_oldest_first_and_only_those_since(self, rig: Rig) -> None:
        one, two = Revocation("a"), Revocation("b", terminate=True, signal="SIGKILL")
        rig.driver.revoke([one])
        version, entries = rig.driver.revoked(0)
        assert entries == (one,)
        rig.driver.revoke([two, Revocation("c")])
        newer, since = rig.driver.revoked(version)
        assert since == (two, Revocation("c"))
        assert newer > version
        assert rig.driver.revoked(0) == (newer, (one, two, Revocation("c")))
        assert rig.driver.revoked(newer) == (newer, ())

    def test_an_id_revoked_again_is_seen_by_those_who_read_the_first(self, rig: Rig) -> None:
        rig.driver.revoke([Revocation("a")])
        version, _ = rig.driver.revoked(0)
        rig.driver.revoke([Revocation("a", terminate=True)])
        assert rig.driver.revoked(version)[1] == (Revocation("a", terminate=True),)

    def test_a_command_that_several_have_heard_is_written_once(self, rig: Rig) -> None:
        rig.publish("a")
        other, one, two = rig.another(), Revocation("a", terminate=True), Revocation("b")
        found = frozenset({"a"} if rig.driver.features.find else ())
        assert rig.driver.revoke([one, two], once="x") == found
        version, entries = rig.driver.revoked(0)
        assert entries == (one, two)
        assert other.revoke([one, two], once="x") == frozenset()
        assert other.revoked(0) == (version, entries)
        other.revoke([one], once="y")
        assert other.revoked(version)[1] == (one,)

    def test_turns_and_beats_give_the_version(self, rig: Rig) -> None:
        hand = rig.hand()
        before = hand.turn().revocations
        assert before == rig.driver.beat("run").revocations == rig.driver.revoked(0)[0]
        rig.another().revoke([Revocation("a")])
        after = hand.turn().revocations
        assert after > before
        assert after == rig.driver.beat("run").revocations == rig.driver.revoked(0)[0]

    def test_what_waits_is_found_and_comes_first(self, rig: Rig) -> None:
        rig.publish("a", "b", "c")
        rig.publish("urgent", priority=9)
        revoked = rig.driver.revoke([Revocation("c"), Revocation("nobody")])
        if not rig.driver.features.find:
            assert revoked == frozenset()
            assert set(rig.drain(QUEUE)) == {"a", "b", "c", "urgent"}
            return
        assert revoked == {"c"}
        rig.assert_at("c", Ready(QUEUE, 0))
        assert ids(rig.hand().take()) == ["c", "urgent", "a", "b"]

    def test_what_is_due_later_is_found_and_comes_first(self, rig: Rig) -> None:
        rig.publish("a")
        rig.publish("later", due_at=rig.now + 1000)
        revoked = rig.driver.revoke([Revocation("later")])
        if not rig.driver.features.find:
            assert revoked == frozenset()
            assert rig.drain(QUEUE) == ["a"]
            return
        assert revoked == {"later"}
        assert ids(rig.hand().take()) == ["later", "a"]

    def test_what_is_leased_is_not_found_and_stays(self, rig: Rig) -> None:
        rig.publish("a")
        hand = rig.hand()
        delivery = hand.take_one()
        assert rig.driver.revoke([Revocation("a", terminate=True)]) == frozenset()
        assert hand.held == {delivery.lease}

    def test_what_was_moved_forward_is_handed_out_once(self, rig: Rig) -> None:
        rig.publish("a", "b")
        rig.driver.revoke([Revocation("b")])
        rig.driver.revoke([Revocation("b")])
        assert rig.drain(QUEUE) == (["b", "a"] if rig.driver.features.find else ["a", "b"])

    def test_what_was_moved_forward_and_requeued_goes_to_the_back(self, rig: Rig) -> None:
        rig.publish("a", "b")
        rig.driver.revoke([Revocation("b")])
        hand = rig.hand()
        first = hand.take_one()
        hand.requeue(first)
        last = id_of(first)
        assert last == ("b" if rig.driver.features.find else "a")
        assert ids(hand.take())[-1] == last

    def test_an_entry_is_kept_three_hours(self, rig: Rig) -> None:
        rig.driver.enlist("run", None, b"")
        rig.driver.revoke([Revocation("a")])
        rig.manual.advance(3 * HOUR - 60)
        rig.driver.beat("run")
        assert rig.driver.revoked(0)[1] == (Revocation("a"),)
        version = rig.driver.revoked(0)[0]
        rig.manual.advance(120)
        rig.driver.beat("run")
        assert rig.driver.revoked(0)[1] == ()
        assert rig.driver.revoked(0)[0] >= version

    def test_an_entry_is_kept_as_long_as_its_message(self, rig: Rig) -> None:
        # Published after the revocation, so that it keeps its due time.
        rig.driver.revoke([Revocation("a"), Revocation("b"), Revocation("c")])
        rig.publish("a", due_at=rig.now + 10 * HOUR)
        rig.publish("b")
        hand = rig.hand()
        hand.take_one()
        rig.manual.advance(9 * HOUR)
        rig.driver.beat("run")
        assert rig.driver.revoked(0)[1] == (Revocation("a"), Revocation("b"))
        rig.assert_at("a", Delayed(QUEUE, rig.now + HOUR))

    def test_the_log_outlives_every_run(self, rig: Rig) -> None:
        rig.hand()
        rig.driver.revoke([Revocation("a")])
        rig.driver.leave("run")
        assert rig.another().revoked(0)[1] == (Revocation("a"),)

    def test_unrevoke_takes_ids_out_and_raises_the_version(self, rig: Rig) -> None:
        # A worker that keeps what it has read must learn that it is to read again.
        rig.driver.revoke([Revocation("a"), Revocation("b"), Revocation("a", terminate=True)])
        version = rig.driver.revoked(0)[0]
        rig.driver.unrevoke(["a", "nobody"])
        newer, entries = rig.driver.revoked(0)
        assert entries == (Revocation("b"),)
        assert newer > version

    def test_requeueing_a_dead_letter_takes_its_id_out(self, rig: Rig) -> None:
        rig.publish("a")
        hand = rig.hand()
        hand.bury_as_dead(hand.take_one())
        rig.driver.revoke([Revocation("a"), Revocation("b")])
        assert rig.driver.dead_requeue("a", posting("a"))
        assert rig.driver.revoked(0)[1] == (Revocation("b"),)


class NamedLeaseContract(DriverSuite):
    def test_a_lease_has_one_holder_at_a_time(self, rig: Rig) -> None:
        other = rig.another()
        assert rig.driver.acquire("site", "a", 60.0)
        assert not other.acquire("site", "b", 60.0)
        assert other.acquire("another site", "b", 60.0)

    def test_a_lease_ends_when_its_time_is_over(self, rig: Rig) -> None:
        other = rig.another()
        assert rig.driver.acquire("site", "a", 60.0)
        rig.manual.advance(59.0)
        assert not other.acquire("site", "b", 60.0)
        rig.manual.advance(1.5)
        assert other.acquire("site", "b", 60.0)
        assert not rig.driver.acquire("site", "a", 60.0)

    def test_a_holder_renews_its_lease(self, rig: Rig) -> None:
        assert rig.driver.acquire("site", "a", 60.0)
        rig.manual.advance(50.0)
        assert rig.driver.acquire("site", "a", 60.0)
        rig.manual.advance(50.0)
        assert not rig.another().acquire("site", "b", 60.0)

    def test_a_holder_gives_its_lease_back(self, rig: Rig) -> None:
        assert rig.driver.acquire("site", "a", 60.0)
        assert not rig.another().release("site", "b")
        assert not rig.another().acquire("site", "b", 60.0)
        assert rig.driver.release("site", "a")
        assert not rig.driver.release("site", "a")
        assert rig.another().acquire("site", "b", 60.0)

    def test_a_lease_that_is_over_is_not_given_back(self, rig: Rig) -> None:
        assert rig.driver.acquire("site", "a", 60.0)
        rig.manual.advance(61.0)
        assert not rig.driver.release("site", "a")

    def test_a_clock_that_is_set_back_makes_no_lease_last(self, rig: Rig) -> None:
        assert rig.driver.acquire("site", "a", 60.0)
        rig.manual.jump(-HOUR)
        assert not rig.another().acquire("site", "b", 60.0)
        rig.manual.advance(61.0)
        assert rig.another().acquire("site", "b", 60.0)

    def test_a_slower_clock_of_another_machine_prolongs_no_lease(self, rig: Rig) -> None:
        assert rig.driver.acquire("site", "a", 60.0)
        rig.manual.jump(-5.0)
        assert not rig.another().acquire("site", "b", 60.0)
        rig.manual.advance(65.5)
        assert rig.another().acquire("site", "b", 60.0)

    def test_any_text_names_a_lease(self, rig: Rig) -> None:
        for name in ("käse \0 {x}", "%", "a:b"):
            assert rig.driver.acquire(name, "\0ä", 60.0)
            assert not rig.driver.acquire(name, "\0", 60.0)

    @pytest.mark.parametrize(
        ("name", "holder", "seconds", "sentence"),
        [
            ("", "a", 1.0, "name is ''; expected Unicode text"),
            ("\ud800", "a", 1.0, "name is .*; expected Unicode text"),
            ("site", "", 1.0, "holder is ''; expected Unicode text"),
            ("site", "a", 0.0, "0.0 seconds were asked for; expected a number above 0"),
            ("site", "a", float("inf"), "inf seconds were asked for"),
        ],
    )
    def test_a_lease_that_can_not_be_is_refused(
        self, rig: Rig, name: str, holder: str, seconds: float, sentence: str
    ) -> None:
        with pytest.raises(ValueError, match=sentence):
            rig.driver.acquire(name, holder, seconds)

    def test_release_refuses_what_is_no_name(self, rig: Rig) -> None:
        with pytest.raises(ValueError, match="expected Unicode text"):
            rig.driver.release("\ud800", "a")


class TokenBucketContract(DriverSuite):
    def test_a_bucket_is_full_at_first(self, rig: Rig) -> None:
        assert [rig.driver.take("calls", 1, 0.5, 3) for _ in range(4)] == [0, 0, 0, 2.0]
        assert rig.driver.take("others", 3, 0.5, 3) == 0.0

    def test_a_bucket_fills_at_its_rate_and_no_further(self, rig: Rig) -> None:
        assert rig.driver.take("calls", 3, 0.5, 3) == 0.0
        rig.manual.advance(4.0)
        assert rig.another().take("calls", 2, 0.5, 3) == 0.0
        assert rig.driver.take("calls", 1, 0.5, 3) == pytest.approx(2.0)
        rig.manual.advance(HOUR)
        assert rig.driver.take("calls", 3, 0.5, 3) == 0.0
        assert rig.driver.take("calls", 3, 0.5, 3) == pytest.approx(6.0)

    def test_all_tokens_or_none_are_taken(self, rig: Rig) -> None:
        assert rig.driver.take("calls", 2, 0.5, 3) == 0.0
        assert rig.driver.take("calls", 2, 0.5, 3) == pytest.approx(2.0)
        assert rig.driver.take("calls", 1, 0.5, 3) == 0.0

    def test_what_a_bucket_says_to_wait_is_enough_and_keeps_the_rate(self, rig: Rig) -> None:
        """However the arithmetic rounds."""
        start = rig.now
        assert rig.driver.take("calls", 1, 7.3, 1) == 0.0
        for _ in range(73):
            wait = rig.driver.take("calls", 1, 7.3, 1)
            assert wait > 0
            rig.manual.advance(wait)
            assert rig.driver.take("calls", 1, 7.3, 1) == 0.0
        assert rig.now - start == pytest.approx(10.0)

    def test_a_clock_that_is_set_back_gives_no_tokens_away_and_ends(self, rig: Rig) -> None:
        assert rig.driver.take("calls", 3, 0.5, 3) == 0.0
        rig.manual.jump(-HOUR)
        assert rig.driver.take("calls", 1, 0.5, 3) == pytest.approx(2.0)
        rig.manual.advance(2.0)
        assert rig.driver.take("calls", 1, 0.5, 3) == 0.0
        assert rig.driver.take("calls", 1, 0.5, 3) == pytest.approx(2.0)

    def test_clocks_that_differ_give_no_tokens_away(self, rig: Rig) -> None:
        """The slower one's calls don't let the faster one's time pass twice."""
        assert rig.driver.take("calls", 3, 0.5, 3) == 0.0
        for _ in range(10):
            rig.manual.jump(-5.0)
            assert rig.another().take("calls", 1, 0.5, 3) == pytest.approx(7.0)
            rig.manual.jump(5.0)
            assert rig.driver.take("calls", 1, 0.5, 3) == pytest.approx(2.0)

    @pytest.mark.parametrize(
        ("bucket", "amount", "rate", "burst", "sentence"),
        [
            ("", 1.0, 1.0, 1.0, "name is ''; expected Unicode text"),
            ("calls", 0.0, 1.0, 1.0, "0.0 tokens were asked of bucket 'calls'"),
            ("calls", 3.0, 1.0, 2.0, "3.0 tokens were asked .* which holds 2.0 at most"),
            ("calls", float("nan"), 1.0, 2.0, "nan tokens were asked"),
            ("calls", 1.0, 0.0, 1.0, "has rate 0.0; expected a number of tokens above 0"),
            ("calls", 1.0, 1.0, float("inf"), "has burst inf; expected a number"),
        ],
    )
    def test_a_bucket_that_can_not_be_is_refused(
        self, rig: Rig, bucket: str, amount: float, rate: float, burst: float, sentence: str
    ) -> None:
        with pytest.raises(ValueError, match=sentence):
            rig.driver.take(bucket, amount, rate, burst)


class CounterContract(DriverSuite):
    def test_a_counter_goes_up_and_down(self, rig: Rig) -> None:
        other = rig.another()
        assert [rig.driver.count("open", by, 60.0) for by in (0, 1, 2)] == [0, 1, 3]
        assert other.count("open", -4, 60.0) == -1
        assert rig.driver.count("open", 0, 60.0) == -1
        assert rig.driver.count("open", 1, 60.0) == 0
        assert rig.driver.count("another", 0, 60.0) == 0

    def test_a_counter_is_exact(self, rig: Rig) -> None:
        most = 2**31 - 1
        assert [rig.driver.count("bytes", most, 60.0) for _ in range(3)][-1] == 3 * most
        assert rig.driver.count("bytes", -most, 60.0) == 2 * most

    def test_a_counter_goes_some_time_after_its_last_change(self, rig: Rig) -> None:
        assert rig.driver.count("open", 2, 60.0) == 2
        rig.manual.advance(50.0)
        assert rig.driver.count("open", 1, 60.0) == 3
        rig.manual.advance(50.0)
        assert rig.driver.count("open", 0, 60.0) == 3
        rig.manual.advance(10.5)
        assert rig.driver.count("open", 0, 60.0) == 0
        assert rig.driver.count("open", 1, 60.0) == 1

    @pytest.mark.parametrize(
        ("name", "by", "seconds", "sentence"),
        [
            ("", 1, 1.0, "name is ''; expected Unicode text"),
            ("open", 2**31, 1.0, "changed by 2147483648; expected at most 2147483647"),
            ("open", 1, -1.0, "-1.0 seconds were asked for"),
        ],
    )
    def test_a_counter_that_can_not_be_is_refused(
        self, rig: Rig, name: str, by: int, seconds: float, sentence: str
    ) -> None:
        with pytest.raises(ValueError, match=sentence):
            rig.driver.count(name, by, seconds)


class CoordinatingCrowdContract(DriverSuite):
    def test_heartbeats_clear_away_only_what_is_over(self, rig: Rig) -> None:
        rig.driver.enlist("run", None, b"")
        for name, seconds in (("short", 5.0), ("long", 600.0)):
            rig.driver.acquire(name, "a", seconds)
            rig.driver.count(name, 1, seconds)
            rig.driver.take(name, 1, 1 / seconds, 1)
        rig.manual.advance(20.0)
        rig.driver.beat("run")
        for name, seconds, there in (("short", 5.0, False), ("long", 600.0, True)):
            assert rig.driver.release(name, "a") is there
            assert rig.driver.count(name, 0, 1.0) == there
            assert (rig.driver.take(name, 1, 1 / seconds, 1) > 0) is there

    def test_a_crowd_has_one_holder_and_keeps_the_rate(self, live: Rig) -> None:
        started = time.monotonic()
        if live.driver.features.processes:
            with multiprocessing.get_context("spawn").Pool(CROWD) as pool:
                calls = [
                    pool.apply_async(_coordinate_elsewhere, (self.connect, live.where, f"{n}"))
                    for n in range(CROWD)
                ]
                taken = [call.get(6 * PATIENCE) for call in calls]
        else:
            crowd = [Background(partial(_coordinate, live.another(), f"{n}")) for n in range(CROWD)]
            taken = [_integer(each.result(3 * PATIENCE)) for each in crowd]
        most = BURST + RATE * (time.monotonic() - started)
        assert 0 < sum(taken) <= most
        assert live.driver.count("all", 0, HOUR) == CROWD * EACH
        assert live.driver.count("inside", 0, HOUR) == 0


def _coordinate(driver: Driver, holder: str) -> int:
    """Hold a lease `EACH` times, alone each time; how many tokens were there along the way."""
    taken = 0
    deadline = time.monotonic() + 3 * PATIENCE
    for _ in range(EACH):
        while not driver.acquire("site", holder, HOUR):
            taken += not driver.take("calls", 1, RATE, BURST)
            assert time.monotonic() < deadline, "the lease never came"
        assert driver.count("inside", 1, HOUR) == 1
        driver.count("all", 1, HOUR)
        taken += not driver.take("calls", 1, RATE, BURST)
        assert driver.count("inside", -1, HOUR) == 0
        assert driver.release("site", holder)
    return taken


def _coordinate_elsewhere(connect: Connect, where: Path, holder: str) -> int:
    driver = connect(where, BrokerOptions(), SYSTEM)
    driver.open()
    try:
        return _coordinate(driver, holder)
    finally:
        driver.close()


def _integer(value: object) -> int:
    assert isinstance(value, int)
    return value


class CoordinatorContract(
    RevocationContract,
    NamedLeaseContract,
    TokenBucketContract,
    CounterContract,
    CoordinatingCrowdContract,
):
    """Everything that `umbel.ports.Coordinator` promises."""
