"""A hypothesis state machine that drives a broker and compares it with `Expected`.

Nothing is lost: after every step each message ever published is in exactly the one place where
the model has it. Nothing is settled twice under one lease. Held messages keep their order.

A driver's test subclasses it::

    class MyMachine(BrokerMachine):
        @staticmethod
        def connect(where: Path, options: BrokerOptions, clock: Clock) -> MyDriver:
            return MyDriver(str(where), options, clock=clock)

    TestMyMachine = MyMachine.TestCase

Needs hypothesis and pytest.
"""

from __future__ import annotations

import tempfile
from abc import abstractmethod
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from umbel.clock import Clock, ManualClock
from umbel.exceptions import RunLost, Unroutable
from umbel.exchanges import Binding
from umbel.message import Dead, Delivery, How, Loss, Lost, Posting, Settlement
from umbel.ports import (
    BrokerOptions,
    DeadLetter,
    Delayed,
    Leased,
    Ready,
    Revocation,
    SetAside,
    Turn,
)
from umbel.testing.contract.rig import OTHER, QUEUE, Driver, id_of, message
from umbel.testing.expected import Expected, Owner, Tracked, comes_before

QUEUES = (QUEUE, OTHER)
TOPICS = "topics"
"""An exchange that takes ``<queue>.…`` to that queue."""
RUNS = ("north", "south", "east")
some_queues = st.lists(st.sampled_from(QUEUES), min_size=1, max_size=2, unique=True)


class BrokerMachine(RuleBasedStateMachine):
    """Publish, turns, deaths of processes and runs, heartbeats, clocks, revocations, requeues."""

    @staticmethod
    @abstractmethod
    def connect(where: Path, options: BrokerOptions, clock: Clock) -> Driver:
        """As in `umbel.testing.contract`."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.clock = ManualClock()
        self.options = BrokerOptions()
        self.driver = self.connect(Path(self.folder.name) / "storage", self.options, self.clock)
        self.driver.open()
        topics = [Binding(queue, TOPICS, "topic", f"{queue}.#") for queue in QUEUES]
        self.driver.declare(QUEUES, topics)
        self.model = Expected(QUEUES, self.options)
        self.gone: list[str] = []
        self.last: dict[str, tuple[dict[str, object], Turn]] = {}
        self.published = 0
        self.owners = 0
        self.generation = 0

    def teardown(self) -> None:
        self.driver.close()
        self.folder.cleanup()

    @property
    def now(self) -> float:
        return self.clock.wall()

    def new_posting(self, data: st.DataObject, *, lost_queue: bool = False) -> Posting:
        self.published += 1
        delay = data.draw(st.sampled_from([None, None, None, 5.0, 40.0]))
        exchange = data.draw(st.sampled_from(["", TOPICS]))
        key = "nowhere" if lost_queue else data.draw(st.sampled_from(QUEUES))
        return Posting(
            message(f"m{self.published}"),
            routing_key=f"{key}.a.word" if exchange else key,
            exchange=exchange,
            priority=data.draw(st.sampled_from([0, 0, 5, 9])),
            due_at=None if delay is None else self.now + delay,
        )

    @rule(data=st.data(), count=st.integers(1, 8), unroutable=st.sampled_from([0, 0, 0, 1]))
    def a_caller_publishes(self, data: st.DataObject, count: int, unroutable: int) -> None:
        self.publish(data, count, unroutable)

    def publish(self, data: st.DataObject, count: int, unroutable: int) -> None:
        batch = [self.new_posting(data) for _ in range(count)]
        if unroutable:
            with pytest.raises(Unroutable):
                self.driver.publish([*batch, self.new_posting(data, lost_queue=True)])
            for posting in batch:
                assert self.driver.find(posting.message.id) == ()
            return
        self.driver.publish(batch)
        for posting in batch:
            self.model.store(posting)

    # Runs and owners

    @initialize(data=st.data())
    def begin_with_two_runs_and_some_messages(self, data: st.DataObject) -> None:
        for run in (RUNS[0], RUNS[1], RUNS[0]):
            self.enlist(run)
        self.publish(data, 6, 0)

    @rule(run=st.sampled_from(RUNS))
    def a_process_starts(self, run: str) -> None:
        self.enlist(run)

    def enlist(self, run: str) -> None:
        name = f"{run}{self.generation}"
        if name in self.gone:
            with pytest.raises(RunLost):
                self.driver.enlist(name, f"{name}#{self.owners + 1}", b"")
            self.generation += 1
            name = f"{run}{self.generation}"
        self.enlist_owner(name)

    def enlist_owner(self, run: str) -> None:
        self.owners += 1
        owner = f"{run}#{self.owners}"
        info = f"options of {run}".encode()
        self.driver.enlist(run, owner, info)
        self.model.runs[run] = self.now
        self.model.infos[run] = info
        self.model.owners[owner] = Owner(owner, run)

    @precondition(lambda self: self.model.runs)
    @rule(data=st.data())
    def one_beats(self, data: st.DataObject) -> None:
        self._beat(data.draw(st.sampled_from(sorted(self.model.runs))))

    @rule(rounds=st.integers(1, 4))
    def all_beat(self, rounds: int) -> None:
        """Time passes as it should: nobody dies."""
        for _ in range(rounds):
            self.clock.advance(self.options.heartbeat)
            for run in list(self.model.runs):
                if run in self.model.runs:
                    self._beat(run)

    def _beat(self, run: str) -> None:
        before = set(self.model.runs)
        reclaimed = self.model.beat(run, self.now)
        reply = self.driver.beat(run)
        assert reply.alive
        assert reply.reclaimed == reclaimed
        assert {peer.run for peer in reply.peers} == set(self.model.runs) - {run}
        self.gone += sorted(before - set(self.model.runs))

    @rule()
    def the_dead_stay_dead(self) -> None:
        for run in self.gone:
            assert not self.driver.beat(run).alive

    @precondition(lambda self: len(self.model.runs) > 1)
    @rule(data=st.data())
    def a_run_leaves(self, data: st.DataObject) -> None:
        run = data.draw(st.sampled_from(sorted(self.model.runs)))
        self.driver.leave(run)
        self.model.end_run(run)
        self.gone.append(run)

    @rule(leases=st.sampled_from([0.01, 0.1, 0.3, 0.34, 0.5, 0.9, 1.0, 1.1, 2.0, 5.0, 100.0]))
    def time_passes(self, leases: float) -> None:
        self.clock.advance(leases * self.options.lease_time)

    @rule(seconds=st.sampled_from([7200.0, -7200.0, 60.0, -60.0]))
    def clock_jumps(self, seconds: float) -> None:
        # Whether what was due and isn't any more has already moved is a driver's own affair.
        after = self.now + seconds
        if not any(after < (m.due_at or 0.0) <= self.now for m in self.model.messages):
            self.clock.jump(seconds)

    # Turns

    def settlements(self, data: st.DataObject, owner: Owner) -> list[Settlement]:
        leases = data.draw(st.permutations(sorted(owner.leases)))
        if data.draw(st.booleans()):
            leases = leases[len(leases) // 2 :]
        return [self.settlement(data, lease, owner.leases[lease]) for lease in leases]

    def settlement(self, data: st.DataObject, lease: int, tracked: Tracked) -> Settlement:
        how = data.draw(st.sampled_from(How))
        releasing = how is How.RELEASE
        delayed = releasing and tracked.lost is None
        return Settlement(
            lease,
            how,
            tuple(
                self.new_posting(data, lost_queue=nowhere)
                for nowhere in data.draw(st.sampled_from([(), (), (False,), (False, True)]))
            ),
            dead=Dead("it failed", "ValueError")
            if not releasing and how is not How.REQUEUE and data.draw(st.booleans())
            else None,
            note="again",
            delay=data.draw(st.sampled_from([0.0, 5.0])) if delayed else 0.0,
            unknown=delayed and data.draw(st.booleans()),
            redelivered=releasing and data.draw(st.booleans()),
        )

    @precondition(lambda self: self.model.owners)
    @rule(
        data=st.data(),
        queues=some_queues,
        limit=st.sampled_from([6, 4, 2, 1, 0]),
        lost_only=st.sampled_from([False, False, False, True]),
        stale=st.sampled_from([False, False, True]),
    )
    def some_turns(
        self, data: st.DataObject, queues: list[str], limit: int, lost_only: bool, stale: bool
    ) -> None:
        for name in data.draw(
            st.lists(st.sampled_from(sorted(self.model.owners)), min_size=1, max_size=4)
        ):
            self.turn(data, self.model.owners[name], queues, limit, lost_only, stale)

    def turn(
        self,
        data: st.DataObject,
        owner: Owner,
        queues: list[str],
        limit: int,
        lost_only: bool,
        stale: bool,
    ) -> None:
        owner.number += 1
        settlements = self.settlements(data, owner)
        if stale:
            # Settled before, or never handed out: lost, whatever it says.
            unknown = [n for n in range(1, owner.last + 2) if n not in owner.leases]
            settlements.append(Settlement(unknown[-1], How.ACK, (self.new_posting(data),)))
        begin = max(0, owner.last + data.draw(st.integers(-2, 3)))
        request: dict[str, object] = {
            "queues": queues,
            "settlements": settlements,
            "begin": begin,
            "limit": limit,
            "lost_only": lost_only,
        }
        reply = self._driver_turn(owner, request)
        self.last[owner.name] = (request, reply)
        ends = {s.lease: self.model.settle(owner, s, self.now) for s in settlements}
        assert reply.lost == {lease for lease, end in ends.items() if end == "lost"}
        assert {lease for lease, _ in reply.refused} == {
            lease for lease, end in ends.items() if end == "refused"
        }
        owner.begun = max(owner.begun, begin)
        self._check_handed_out(owner, queues, limit, lost_only, reply.deliveries)

    def _driver_turn(self, owner: Owner, request: dict[str, object]) -> Turn:
        return self.driver.turn(owner.name, owner.number, **request)  # type: ignore[arg-type]

    def _check_handed_out(
        self,
        owner: Owner,
        queues: list[str],
        limit: int,
        lost_only: bool,
        deliveries: tuple[Delivery, ...],
    ) -> None:
        burials = self.model.burials(queues)
        ready = [] if lost_only else self.model.ready(queues, self.now)
        assert len(deliveries) == min(limit, len(burials) + len(ready))
        waiting = {tracked.id: tracked for tracked in burials + ready}
        for count, delivery in enumerate(deliveries):
            tracked = waiting.pop(id_of(delivery))
            if count < len(burials):
                assert tracked.lost is not None, "a burial was waiting"
            else:
                late = [other.id for other in waiting.values() if comes_before(other, tracked)]
                assert not late, f"{tracked.id} was handed out before {late}"
            assert delivery.lease == self.model.lease(owner, tracked)
            assert delivery.queue == tracked.queue
            assert delivery.redeliveries == tracked.redeliveries
            assert delivery.redelivered == tracked.redelivered
            assert delivery.unknown_since_at == tracked.unknown_since_at
            _assert_same_loss(delivery.lost, tracked.lost)

    @precondition(lambda self: self.model.owners)
    @rule(data=st.data())
    def repeat_the_last_turn(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.model.owners)))
        if name in self.last:
            request, reply = self.last[name]
            again = self._driver_turn(self.model.owners[name], request)
            assert (again.deliveries, again.lost, again.refused) == (
                reply.deliveries,
                reply.lost,
                reply.refused,
            )

    @precondition(lambda self: any(owner.leases for owner in self.model.owners.values()))
    @rule(data=st.data(), decide=st.booleans())
    def a_process_dies(self, data: st.DataObject, decide: bool) -> None:
        busy = sorted(name for name, owner in self.model.owners.items() if owner.leases)
        owner = self.model.owners[data.draw(st.sampled_from(busy))]
        decided = self.settlements(data, owner) if decide else []
        left = sorted(set(owner.leases) - {s.lease for s in decided})
        running = left[: data.draw(st.integers(0, len(left)))]
        lost = Lost(data.draw(st.sampled_from(Loss)), "signal 9")
        self.driver.abandon(owner.name, decided=decided, running=dict.fromkeys(running, lost))
        refused = [s.lease for s in decided if self.model.settle(owner, s, self.now) == "refused"]
        info = self.model.infos[owner.run]
        aside = {**dict.fromkeys(running, lost.loss), **dict.fromkeys(refused, Loss.PROCESS)}
        self.model.end_owner(owner, {lease: Lost(loss, "", info) for lease, loss in aside.items()})
        with pytest.raises(RunLost):
            self.driver.turn(owner.name, owner.number + 1, queues=QUEUES, limit=1)
        self.enlist_owner(owner.run)

    # Coordinator and inspector

    @precondition(lambda self: self.model.messages)
    @rule(data=st.data())
    def revoke(self, data: st.DataObject) -> None:
        ids = data.draw(st.lists(st.sampled_from([m.id for m in self.model.messages]), max_size=3))
        before = self.driver.revoked(0)[0]
        found = self.driver.revoke([Revocation(task_id) for task_id in ids])
        assert found == self.model.revoke(ids)
        version, entries = self.driver.revoked(before)
        assert [entry.task_id for entry in entries] == ids
        assert version >= before

    @precondition(lambda self: any(m.where == "dead" for m in self.model.messages))
    @rule(data=st.data())
    def requeue_a_dead_letter(self, data: st.DataObject) -> None:
        dead = [m for m in self.model.messages if m.where == "dead"]
        tracked = data.draw(st.sampled_from(dead))
        posting = Posting(message(tracked.id), routing_key=tracked.queue)
        assert self.driver.dead_requeue(tracked.id, posting)
        self.model.messages.remove(tracked)
        self.model.store(posting)

    @precondition(lambda self: len(self.model.ready(QUEUES, self.now)) > 20)
    @rule(queues=some_queues)
    def purge(self, queues: list[str]) -> None:
        waiting = [m for m in self.model.messages if m.where == "waiting" and m.queue in queues]
        assert self.driver.purge(queues) == len(waiting)
        for tracked in waiting:
            tracked.where = "gone"

    # What always holds

    @invariant()
    def every_message_is_in_its_one_place(self) -> None:
        for tracked in self.model.messages:
            found = self.driver.find(tracked.id)
            if tracked.where == "gone":
                assert found == ()
                continue
            assert len(found) == 1, f"{tracked.id} is in {len(found)} places: {found}"
            place = found[0]
            assert place.queue == tracked.queue
            match place:
                case Ready():
                    assert tracked.where == "waiting"
                    assert (tracked.due_at or 0.0) <= self.now
                case Delayed():
                    assert tracked.where == "waiting"
                    assert place.due_at == tracked.due_at
                    assert place.unknown_since_at == tracked.unknown_since_at
                case Leased():
                    assert tracked.where == "leased"
                    assert (place.owner, place.lease) == (tracked.owner, tracked.lease)
                    owner = self.model.owners[tracked.owner]
                    assert place.begun == (tracked.lease <= owner.begun)
                case SetAside():
                    assert tracked.where == "lost"
                    assert tracked.lost is not None
                    assert place.loss == str(tracked.lost.loss)
                case DeadLetter():
                    assert tracked.where == "dead"
                    assert place.redeliveries == tracked.redeliveries

    @invariant()
    def the_counts_agree(self) -> None:
        assert self.driver.queues() == self.model.stats(self.now)
        assert {record.run for record in self.driver.runs()} == set(self.model.runs)

    @invariant()
    def the_leases_agree(self) -> None:
        for owner in self.model.owners.values():
            assert self.driver.held(owner.name) == frozenset(owner.leases)


def _assert_same_loss(got: Lost | None, expected: Lost | None) -> None:
    assert (got is None) == (expected is None)
    if got is not None and expected is not None:
        assert (got.loss, got.info) == (expected.loss, expected.info)
