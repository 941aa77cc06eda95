"""Contract of the coordinator: the log of revocations."""

from __future__ import annotations

from umbel.ports import Delayed, Ready, Revocation
from umbel.testing.contract.rig import QUEUE, DriverSuite, Rig, id_of, ids, posting

HOUR = 3600.0


class CoordinatorContract(DriverSuite):
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
