"""Contract of result stores, and of a store that lies in its broker's database."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

import pytest

from umbel.clock import SYSTEM, Clock, ManualClock
from umbel.exceptions import RunLost
from umbel.message import How, Result, Settlement
from umbel.ports import ResultStore
from umbel.states import FAILURE, READY_STATES, RETRY, STARTED, SUCCESS
from umbel.stored import encode_meta
from umbel.testing.contract.rig import PATIENCE, Background, DriverSuite, Rig, posting

LONG = 60.0


def result(
    task_id: str, state: str = SUCCESS, value: object = None, expires_at: float | None = None
) -> Result:
    """With a real record, since a store may keep its parts in columns."""
    done = "2026-01-02T03:04:05+00:00" if state in READY_STATES else None
    meta = encode_meta(task_id, state, value, children=[], date_done=done)
    return Result(task_id, state, meta, expires_at)


class StoreSuite(ABC):
    """Base of what needs a store. The same `where` is the same storage."""

    @staticmethod
    @abstractmethod
    def connect_store(where: Path, clock: Clock) -> ResultStore:
        """A store on the storage that `where`, a path that may not exist yet, names."""

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest.fixture
    def store(self, tmp_path: Path, clock: ManualClock) -> Iterator[ResultStore]:
        store = self.connect_store(tmp_path / "storage", clock)
        store.open()
        yield store
        store.close()

    @pytest.fixture
    def live_stores(self, tmp_path: Path) -> Iterator[tuple[ResultStore, ResultStore]]:
        """Two store objects on one storage, under the machine's time."""
        stores = tuple(self.connect_store(tmp_path / "storage", SYSTEM) for _ in range(2))
        for store in stores:
            store.open()
        yield stores[0], stores[1]
        for store in stores:
            store.close()


class ResultStoreContract(StoreSuite):
    def test_what_was_put_is_got_in_the_order_asked_for(self, store: ResultStore) -> None:
        a, b = result("a", value={"n": [1, None]}), result("b", FAILURE, "\0é\U0001f300" * 50_000)
        store.put([a, b])
        assert store.get(["b", "nobody", "a", "b"]) == [b, None, a, b]
        assert store.get([]) == []

    def test_another_store_object_sees_it(
        self, live_stores: tuple[ResultStore, ResultStore]
    ) -> None:
        one, two = live_stores
        one.put([result("a")])
        assert two.get(["a"]) == [result("a")]
        assert one.location == two.location

    def test_a_newer_record_replaces_an_older_one(self, store: ResultStore) -> None:
        for state in (STARTED, RETRY, FAILURE, SUCCESS):
            store.put([result("a", state)])
            assert store.get(["a"]) == [result("a", state)]

    def test_a_success_is_never_overwritten(self, store: ResultStore) -> None:
        store.put([result("a", value="first")])
        for state in (STARTED, RETRY, FAILURE, SUCCESS):
            store.put([result("a", state, "second")])
            assert store.get(["a"]) == [result("a", value="first")]

    def test_the_rule_holds_within_one_batch(self, store: ResultStore) -> None:
        store.put([result("a", STARTED), result("a", SUCCESS), result("a", FAILURE)])
        assert store.get(["a"]) == [result("a", SUCCESS)]

    def test_a_failure_may_become_a_success(self, store: ResultStore) -> None:
        store.put([result("a", FAILURE)])
        store.put([result("a", SUCCESS)])
        assert store.get(["a"]) == [result("a", SUCCESS)]

    def test_an_expired_record_is_not_got(self, store: ResultStore, clock: ManualClock) -> None:
        store.put([result("a", expires_at=clock.wall() + 10), result("b")])
        clock.advance(9)
        assert store.get(["a"])[0] is not None
        clock.advance(2)
        assert store.get(["a", "b"]) == [None, result("b")]

    def test_an_expired_success_gives_way(self, store: ResultStore, clock: ManualClock) -> None:
        store.put([result("a", expires_at=clock.wall() + 10)])
        clock.advance(11)
        store.put([result("a", FAILURE)])
        assert store.get(["a"]) == [result("a", FAILURE)]

    def test_prune_deletes_what_has_expired_and_counts_it(
        self, store: ResultStore, clock: ManualClock
    ) -> None:
        store.put([result(f"m{n}", expires_at=clock.wall() + n) for n in range(1, 6)])
        store.put([result("forever")])
        clock.advance(3.5)
        assert store.prune() == 3
        assert store.prune() == 0
        got = store.get(["m3", "m4", "forever"])
        assert [record is not None for record in got] == [False, True, True]

    def test_prune_keeps_the_newest_successes(self, store: ResultStore, clock: ManualClock) -> None:
        for n in range(6):
            done = f"2026-01-02T03:04:{n:02}+00:00"
            meta = encode_meta(f"m{n}", SUCCESS, n, children=[], date_done=done)
            store.put([Result(f"m{n}", SUCCESS, meta, clock.wall() + 1000)])
            clock.advance(1)
        others = [result("failed", FAILURE), result("runs", STARTED)]
        store.put(others)
        assert store.prune(6) == 0
        assert store.prune(2) == 4
        got = store.get([f"m{n}" for n in range(6)])
        assert [record is not None for record in got] == [False] * 4 + [True] * 2
        assert store.get(["failed", "runs"]) == others
        assert store.prune(0) == 2

    def test_forgetting_deletes_whatever_the_state(self, store: ResultStore) -> None:
        store.put([result("a"), result("b", STARTED), result("c")])
        store.forget(["a", "b", "nobody"])
        assert store.get(["a", "b", "c"]) == [None, None, result("c")]
        store.put([result("a", FAILURE)])
        assert store.get(["a"]) == [result("a", FAILURE)]

    def test_of_an_id_that_is_not_unicode_there_is_nothing(self, store: ResultStore) -> None:
        store.put([result("a")])
        half = "a\udcff"
        assert store.get([half, "a", half]) == [None, result("a"), None]
        store.wait([half], 0.01)
        store.forget([half])
        assert store.get(["a"]) == [result("a")]

    def test_a_ready_record_ends_a_wait_at_once(
        self, live_stores: tuple[ResultStore, ResultStore]
    ) -> None:
        store, _ = live_stores
        store.put([result("a", STARTED), result("b", FAILURE)])
        Background(lambda: store.wait(["a", "b"], LONG)).result()

    def test_a_change_by_another_ends_a_wait(
        self, live_stores: tuple[ResultStore, ResultStore]
    ) -> None:
        store, other = live_stores
        store.put([result("a", STARTED)])
        waiting = Background(lambda: store.wait(["a", "b"], LONG))
        time.sleep(0.05)
        assert waiting.running
        other.put([result("b", SUCCESS)])
        waiting.result()

    def test_a_wait_ends_after_its_timeout(
        self, live_stores: tuple[ResultStore, ResultStore]
    ) -> None:
        store, _ = live_stores
        started = time.monotonic()
        store.wait(["a"], 0.05)
        assert time.monotonic() - started < PATIENCE

    def test_an_interrupt_ends_waits_in_all_threads(
        self, live_stores: tuple[ResultStore, ResultStore]
    ) -> None:
        store, _ = live_stores
        waiting = [
            Background(lambda: store.wait(["a"], LONG)),
            Background(lambda: store.wait(["a", "b"], LONG)),
        ]
        time.sleep(0.05)
        assert all(each.running for each in waiting)
        store.interrupt()
        for each in waiting:
            each.result()

    def test_an_interrupt_before_a_wait_ends_it_at_once(
        self, live_stores: tuple[ResultStore, ResultStore]
    ) -> None:
        store, _ = live_stores

        def wait_three_times() -> None:
            store.wait(["a"], 0.01)
            store.interrupt()
            started = time.monotonic()
            store.wait(["a"], LONG)
            assert time.monotonic() - started < PATIENCE
            store.wait(["a"], 0.05)
            assert time.monotonic() - started >= 0.05, "one interrupt, and two waits ended early"

        Background(wait_three_times).result()

    def test_opening_and_closing_twice_is_fine(
        self, live_stores: tuple[ResultStore, ResultStore]
    ) -> None:
        one, two = live_stores
        two.open()
        two.close()
        two.close()
        one.put([result("a")])
        assert one.get(["a"]) == [result("a")]


class SharedDatabaseContract(DriverSuite, StoreSuite):
    """For a store whose location is its broker's: results are stored by the settlement."""

    @pytest.fixture
    def beside(self, rig: Rig) -> Iterator[ResultStore]:
        """The store in the database of `rig`."""
        store = self.connect_store(rig.where, rig.clock)
        store.open()
        yield store
        store.close()

    def test_they_share_a_location(self, rig: Rig, beside: ResultStore) -> None:
        assert rig.driver.location == beside.location

    def test_a_settlement_stores_its_result(self, rig: Rig, beside: ResultStore) -> None:
        rig.publish("a")
        hand = rig.hand()
        hand.ack(hand.take_one(), result=result("a", value=[42]))
        assert beside.get(["a"]) == [result("a", value=[42])]

    def test_a_settlement_stores_the_results_of_others(self, rig: Rig, beside: ResultStore) -> None:
        """Of tasks that end with this one; a SUCCESS stays there, too."""
        beside.put([result("done")])
        rig.publish("a")
        hand = rig.hand()
        others = tuple(result(each, FAILURE) for each in ("b", "c", "done"))
        lease = hand.take_one().lease
        hand.turn(Settlement(lease, How.ACK, result=result("a", FAILURE), others=others))
        assert beside.get(["a", "b", "c", "done"]) == [
            result("a", FAILURE),
            *others[:2],
            result("done"),
        ]

    def test_others_alone(self, rig: Rig, beside: ResultStore) -> None:
        rig.publish("a")
        hand = rig.hand()
        lease = hand.take_one().lease
        hand.turn(Settlement(lease, How.ACK, others=(result("b", FAILURE),)))
        assert beside.get(["a", "b"]) == [None, result("b", FAILURE)]

    def test_a_refused_or_lost_settlement_stores_none_of_others(
        self, rig: Rig, beside: ResultStore
    ) -> None:
        rig.publish("a")
        hand = rig.hand()
        lease, others = hand.take_one().lease, (result("b", FAILURE),)
        refused = Settlement(lease, How.ACK, (posting("x", "nowhere"),), others=others)
        assert hand.turn(refused).refused
        hand.turn(Settlement(lease, How.RELEASE))
        assert hand.turn(Settlement(lease, How.ACK, others=others)).lost == {lease}
        assert beside.get(["b"]) == [None]

    def test_a_requeue_may_store_a_state_as_well(self, rig: Rig, beside: ResultStore) -> None:
        rig.publish("a")
        hand = rig.hand()
        lease = hand.take_one().lease
        hand.turn(Settlement(lease, How.REQUEUE, result=result("a", RETRY)))
        assert beside.get(["a"]) == [result("a", RETRY)]

    def test_a_lost_settlement_stores_nothing(self, rig: Rig, beside: ResultStore) -> None:
        rig.publish("a")
        hand = rig.hand()
        delivery = hand.take_one()
        hand.release(delivery)
        assert hand.ack(delivery, result=result("a")).lost == {delivery.lease}
        assert beside.get(["a"]) == [None]

    def test_a_run_taken_for_dead_stores_nothing(self, rig: Rig, beside: ResultStore) -> None:
        rig.publish("a")
        late = rig.hand("late")
        delivery = late.take_one()
        rig.kill("late")
        with pytest.raises(RunLost):
            late.ack(delivery, result=result("a"))
        assert beside.get(["a"]) == [None]

    def test_a_refused_settlement_stores_nothing(self, rig: Rig, beside: ResultStore) -> None:
        rig.publish("a")
        hand = rig.hand()
        hand.ack(hand.take_one(), posting("x", "nowhere"), result=result("a"))
        assert beside.get(["a"]) == [None]

    def test_a_settlement_does_not_overwrite_a_success(self, rig: Rig, beside: ResultStore) -> None:
        beside.put([result("a")])
        rig.publish("a")
        hand = rig.hand()
        hand.ack(hand.take_one(), result=result("a", FAILURE))
        assert beside.get(["a"]) == [result("a")]

    def test_what_was_decided_before_a_death_is_stored(self, rig: Rig, beside: ResultStore) -> None:
        rig.publish("a")
        hand = rig.hand()
        lease = hand.take_one().lease
        hand.abandon(decided=[Settlement(lease, How.ACK, result=result("a"))])
        assert beside.get(["a"]) == [result("a")]

    def test_others_decided_before_a_death_are_stored(self, rig: Rig, beside: ResultStore) -> None:
        rig.publish("a")
        hand = rig.hand()
        lease = hand.take_one().lease
        hand.abandon(decided=[Settlement(lease, How.ACK, others=(result("b", FAILURE),))])
        assert beside.get(["b"]) == [result("b", FAILURE)]

    def test_a_settlement_ends_a_wait_for_its_result(self, live: Rig) -> None:
        store = self.connect_store(live.where, SYSTEM)
        store.open()
        live.publish("a")
        hand = live.hand()
        delivery = hand.take_one()
        waiting = Background(lambda: store.wait(["a"], LONG))
        time.sleep(0.05)
        assert waiting.running
        hand.ack(delivery, result=result("a"))
        waiting.result()
        store.close()
