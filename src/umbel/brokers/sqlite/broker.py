"""``sqlite:///path``: broker, coordinator and inspector in one file.

Every operation is one transaction; what it says is in `umbel.ports`. SQL lives in the module of
its subject, the order of events (lock, change, commit, ring) here.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import Final

from umbel.brokers.sqlite import coordinating, dead, inspecting, revoking, routing, runs, turning
from umbel.brokers.sqlite.broadcasting import SqliteSubscription, tell
from umbel.brokers.sqlite.connection import Database, Synchronous
from umbel.brokers.sqlite.doorbell import ANY, Doorbells, result_tag
from umbel.brokers.sqlite.work import Rings, Work, pack_all
from umbel.clock import SYSTEM, Clock
from umbel.coordination import check_count, check_holder, check_lease, check_take
from umbel.exceptions import BrokerUnavailable, NoWorkerYet, RunLost
from umbel.exchanges import Binding
from umbel.message import Lost, Message, Posting, Settlement, Unreadable
from umbel.ports import (
    NOBODY,
    Beat,
    BrokerOptions,
    DeadLetter,
    Features,
    HandedBack,
    Location,
    QueueStats,
    Revocation,
    RunRecord,
    Stored,
    Subscription,
    Turn,
)
from umbel.warning import warn

_HAD_A_RUN: Final = "SELECT 1 FROM sqlite_sequence WHERE name = 'run'"
_HELD: Final = (
    "SELECT l.lease FROM lease l JOIN owner o ON o.n = l.owner WHERE o.name = ? AND o.gone = 0"
)
_NEXT_DUE: Final = "SELECT min(due_at) FROM delayed"
_LOOK_AGAIN: Final = 1.0
"""Seconds after which a waiter looks without having been rung, should a ring be lost."""


class SqliteBroker:
    """Broker, Coordinator and Inspector in the file `path`, shared by processes of one machine.

    `synchronous` "normal" survives the death of any process, "full" also a power loss.
    """

    features = Features(
        processes=True,
        priority=True,
        atomic_follow_ups=True,
        lease_records=True,
        find=True,
        wait_takes=False,
        exclusive_turns=True,
    )

    def __init__(
        self,
        path: str | os.PathLike[str],
        options: BrokerOptions,
        *,
        clock: Clock = SYSTEM,
        synchronous: Synchronous = "normal",
    ) -> None:
        self._options = options
        self._clock = clock
        self._database = Database(path, unavailable=BrokerUnavailable, synchronous=synchronous)
        self._bells = Doorbells(self._database.path)
        self._worker_was_here = False
        self._replies: dict[str, tuple[int, Turn]] = {}
        self._interrupts = 0
        self._answered = 0
        self._version = 0
        self._closed = True

    @property
    def location(self) -> str:
        return f"sqlite:{self._database.path}"

    @property
    def database(self) -> Database:
        """The open file, for tests and tools that look at its statements."""
        return self._database

    def open(self) -> None:
        self._database.open()
        if self._closed:
            self._closed = False
            with self._database.read() as tx:
                self._version = revoking.version(tx)

    def close(self) -> None:
        self._closed = True
        self._bells.close()
        self._database.close()

    # Broker: messages

    def declare(
        self, queues: Sequence[str], bindings: Sequence[Binding] = (), *, run: str | None = None
    ) -> None:
        with self._database.write() as tx:
            routing.declare(tx, queues, bindings, run)
        if run is None:
            self._database.declared.update(queues, (each.queue for each in bindings))
            self._database.bound.update(map(routing.row, bindings))

    def unbind(self, bindings: Sequence[Binding]) -> int:
        with self._database.write() as tx:
            unbound = routing.unbind(tx, bindings)
        self._database.bound.difference_update(map(routing.row, bindings))
        return unbound

    def publish(self, postings: Sequence[Posting]) -> None:
        if not postings:
            return
        packed = pack_all(postings)
        if not self._worker_was_here:
            self._warn_of_a_file_without_workers()
        with self._work() as work:
            work.store(packed)

    def _warn_of_a_file_without_workers(self) -> None:
        with self._database.read() as tx:
            had_a_run = tx.execute(_HAD_A_RUN).fetchone() is not None
        self._worker_was_here = True
        if not had_a_run:
            warn(
                f"no worker has ever opened {self._database.path}; what is sent there waits "
                "until one does. Start `umbel worker` with the same file, or check the path",
                NoWorkerYet,
            )

    def turn(
        self,
        owner: str,
        number: int,
        *,
        queues: Sequence[str] = (),
        settlements: Sequence[Settlement] = (),
        begin: int = 0,
        limit: int = 0,
        lost_only: bool = False,
    ) -> Turn:
        request = turning.Request(owner, number, queues, settlements, begin, limit, lost_only)
        try:
            reply = self._same_turn(request) or self._idle_turn(request)
            reply = reply or self._whole_turn(request)
        except turning.OwnerUnknown:
            raise RunLost(f"owner {owner!r} is not known to {self.location} (any more)") from None
        if number:
            self._replies[owner] = number, reply
        self._version = reply.revocations
        return reply

    def _same_turn(self, request: turning.Request) -> Turn | None:
        """This driver's last reply, where it is asked for again. Another driver's is read from
        the file, without what was settled in between on the owner's behalf."""
        number, reply = self._replies.get(request.owner, (0, None))
        if reply is None or request.number != number:
            return None
        with self._database.read() as tx:
            turning.check_owner(tx, request)
        return reply

    def _idle_turn(self, request: turning.Request) -> Turn | None:
        if request.settlements:
            return None
        with self._database.read() as tx:
            return turning.idle(tx, self._database.queue_ids, request, self._clock.wall())

    def _whole_turn(self, request: turning.Request) -> Turn:
        with self._work() as work:
            reply = turning.turn(work, request, self._options)
        return reply.turn()

    def wait(self, queues: Sequence[str], timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        interrupts = self._interrupts
        if interrupts > self._answered:
            self._answered = interrupts
            return False
        due_in = self._due_in(queues)
        if due_in <= 0 or timeout <= 0:
            return due_in <= 0
        with self._bells.waiting("w", self._tag(queues)) as bell:
            while not self._closed:
                if self._interrupts > interrupts:
                    self._answered = self._interrupts
                    return False
                due_in = self._due_in(queues)
                left = deadline - time.monotonic()
                if due_in <= 0 or left <= 0:
                    return due_in <= 0
                bell.sleep(min(left, due_in, _LOOK_AGAIN))
        return False

    def _tag(self, queues: Sequence[str]) -> str:
        if len(queues) != 1:
            return ANY
        return str(self._database.queue_ids.get(queues[0], ANY))

    def _due_in(self, queues: Sequence[str]) -> float:
        """Seconds until a turn is worth it: 0 is now."""
        with self._database.read() as tx:
            if revoking.version(tx) != self._version:
                return 0.0
            if turning.is_ready(tx, self._database.queue_ids, queues):
                return 0.0
            due_at = tx.execute(_NEXT_DUE).fetchone()[0]
        return _LOOK_AGAIN if due_at is None else max(0.0, due_at - self._clock.wall())

    def interrupt(self) -> None:
        self._interrupts += 1
        self._bells.ring_own()

    # Broker: runs

    def enlist(self, run: str, owner: str | None, info: bytes) -> None:
        with self._work() as work:
            runs.enlist(work, run, owner, info, self._options)

    def beat(self, run: str) -> Beat:
        with self._work() as work:
            beat = runs.beat(work, run, revoking.version(work.tx), self._options)
            dead.retain_all(work, self._options)
            revoking.prune(work)
            coordinating.prune(work)
        return beat

    def abandon(
        self,
        owner: str,
        *,
        decided: Sequence[Settlement] = (),
        running: Mapping[int, Lost] = NOBODY,
    ) -> None:
        with self._work() as work:
            runs.abandon(work, owner, decided, running, self._options)

    def leave(self, run: str) -> None:
        with self._work() as work:
            runs.leave(work, run, self._options)

    def held(self, owner: str) -> frozenset[int]:
        with self._database.read() as tx:
            return frozenset(row[0] for row in tx.execute(_HELD, (owner,)))

    def tend(self) -> float:
        return inf

    def hand_back(self) -> HandedBack:
        return HandedBack()

    # Broker: broadcasts

    def broadcast(self, channel: str, payload: bytes) -> None:
        with self._database.write() as tx:
            tell(tx, channel, payload, self._clock.wall())
        self._bells.ring({"s": None})

    def subscribe(self, channels: Sequence[str]) -> Subscription:
        return SqliteSubscription(self._database, self._bells, channels)

    def relay(self, queues: Sequence[str]) -> None:
        return None

    def listen(self, exchange: str, routing_key: str) -> Subscription:
        return self.subscribe([f"{exchange}/{routing_key}"])

    def answer(self, exchange: str, routing_key: str, payload: bytes) -> None:
        self.broadcast(f"{exchange}/{routing_key}", payload)

    # Coordinator

    def revoke(self, revocations: Sequence[Revocation], *, once: str = "") -> frozenset[str]:
        with self._work() as work:
            return revoking.revoke(work, revocations, once)

    def revoked(self, since: int) -> tuple[int, tuple[Revocation, ...]]:
        with self._database.read() as tx:
            self._version = revoking.version(tx)
            return self._version, revoking.since(tx, since)

    def unrevoke(self, task_ids: Sequence[str]) -> None:
        with self._work() as work:
            revoking.unrevoke(work, task_ids)

    def acquire(self, name: str, holder: str, seconds: float) -> bool:
        check_lease(name, holder, seconds)
        with self._work() as work:
            return coordinating.acquire(work, name, holder, seconds)

    def release(self, name: str, holder: str) -> bool:
        check_holder(name, holder)
        with self._work() as work:
            return coordinating.release(work, name, holder)

    def take(self, bucket: str, amount: float, rate: float, burst: float) -> float:
        check_take(bucket, amount, rate, burst)
        with self._work() as work:
            return coordinating.take(work, bucket, amount, rate, burst)

    def count(self, name: str, by: int, seconds: float) -> int:
        check_count(name, by, seconds)
        with self._work() as work:
            return coordinating.count(work, name, by, seconds)

    # Inspector

    def queues(self) -> tuple[QueueStats, ...]:
        self._promote()
        with self._database.read() as tx:
            return inspecting.queues(tx)

    def bindings(self) -> tuple[Binding, ...]:
        with self._database.read() as tx:
            return routing.bindings(tx)

    def runs(self) -> tuple[RunRecord, ...]:
        with self._database.read() as tx:
            return runs.alive(tx)

    def peek(self, queue: str, limit: int) -> tuple[Message | Unreadable, ...]:
        self._promote()
        with self._database.read() as tx:
            return inspecting.peek(tx, queue, limit)

    def find(self, task_id: str) -> tuple[Location, ...]:
        self._promote()
        with self._database.read() as tx:
            return tuple(inspecting.find(tx, task_id))

    def stored(self, task_id: str) -> tuple[Stored, ...]:
        self._promote()
        with self._database.read() as tx:
            return tuple(inspecting.stored(tx, task_id))

    def purge(self, queues: Sequence[str]) -> int:
        with self._work() as work:
            ids = [work.queue_id(name) for name in dict.fromkeys(queues)]
            return sum(inspecting.purge(work.tx, queue) for queue in ids if queue is not None)

    def dead(self, queue: str | None = None, limit: int | None = None) -> tuple[DeadLetter, ...]:
        with self._database.read() as tx:
            return dead.letters(tx, queue, limit)

    def dead_find(self, task_id: str) -> DeadLetter | None:
        with self._database.read() as tx:
            return next(dead.of_id(tx, task_id), None)

    def dead_requeue(self, task_id: str, posting: Posting) -> bool:
        (packed,) = pack_all([posting])
        with self._work() as work:
            if not dead.requeue(work, task_id, packed):
                return False
            revoking.unrevoke(work, [task_id])
        return True

    def dead_delete(self, task_ids: Sequence[str] | None, queue: str | None = None) -> int:
        with self._database.write() as tx:
            return dead.delete(tx, task_ids, queue)

    def dead_prune(self) -> int:
        with self._work() as work:
            return dead.retain_all(work, self._options)

    # Transactions

    @contextlib.contextmanager
    def _work(self) -> Iterator[Work]:
        """A write transaction; once it is committed, who waits for its effect is woken."""
        with self._database.write() as tx:
            work = Work(tx, self._database.queue_ids, self._clock.wall())
            yield work
        self._ring(work.rings)

    def _ring(self, rings: Rings) -> None:
        wanted: dict[str, set[str] | None] = {}
        if rings.everyone:
            wanted["w"] = None
        elif rings.queues:
            wanted["w"] = {str(queue) for queue in rings.queues}
        if rings.results:
            wanted["r"] = {result_tag(task_id) for task_id in rings.results}
        if wanted:
            self._bells.ring(wanted)

    def _promote(self) -> None:
        """Let what has fallen due wait, so that it is seen where it is."""
        with self._database.read() as tx:
            if not turning.is_due(tx, self._clock.wall()):
                return
        with self._work() as work:
            turning.promote(work)
