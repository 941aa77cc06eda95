"""The tiny model that `BrokerMachine` compares a driver with: where each message must be.

Where the contract leaves the place in a queue open (what fell due, what a revocation moved to the
front), `Tracked.seq` is None and only priorities are compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from umbel.message import How, Loss, Lost, Posting, Settlement
from umbel.ports import BrokerOptions, QueueStats

Where = Literal["waiting", "leased", "lost", "dead", "gone"]
FIRST = -10


@dataclass(eq=False)
class Tracked:
    """One message, wherever it is."""

    id: str
    queue: str
    priority: int
    rank: int
    seq: int | None
    where: Where = "waiting"
    due_at: float | None = None
    owner: str = ""
    lease: int = 0
    redeliveries: int = 0
    redelivered: bool = False
    unknown_since_at: float | None = None
    lost: Lost | None = None


@dataclass(eq=False)
class Owner:
    name: str
    run: str
    number: int = 0
    begun: int = 0
    last: int = 0
    leases: dict[int, Tracked] = field(default_factory=dict)


class Expected:
    """A broker in plain Python: slow, obvious, and without storage."""

    def __init__(self, queues: Sequence[str], options: BrokerOptions) -> None:
        self.queues = tuple(queues)
        self.options = options
        self.messages: list[Tracked] = []
        self.owners: dict[str, Owner] = {}
        self.runs: dict[str, float] = {}
        self.infos: dict[str, bytes] = {}
        self.last_beat_at: float | None = None
        self._seq = 0

    def store(self, posting: Posting) -> None:
        self._seq += 1
        due_at = posting.due_at
        self.messages.append(
            Tracked(
                posting.message.id,
                target(posting),
                posting.priority,
                -posting.priority,
                self._seq if due_at is None else None,
                due_at=due_at,
            )
        )

    def routable(self, postings: Iterable[Posting]) -> bool:
        return all(target(posting) in self.queues for posting in postings)

    def settle(self, owner: Owner, settlement: Settlement, now: float) -> str:
        """Apply one settlement: "applied", "lost" or "refused"."""
        if settlement.lease not in owner.leases:
            return "lost"
        if not self.routable(settlement.follow_ups):
            return "refused"
        tracked = owner.leases.pop(settlement.lease)
        for posting in settlement.follow_ups:
            self.store(posting)
        match settlement.how:
            case How.REQUEUE:
                self._seq += 1
                tracked.where, tracked.lost, tracked.due_at = "waiting", None, None
                tracked.rank, tracked.seq = -tracked.priority, self._seq
                tracked.redeliveries += 1
                tracked.redelivered = True
            case How.RELEASE:
                self._release(tracked, settlement, now)
            case _:
                tracked.where = "gone" if settlement.dead is None else "dead"
        return "applied"

    def _release(self, tracked: Tracked, settlement: Settlement, now: float) -> None:
        if settlement.redelivered:
            tracked.redelivered, tracked.lost = True, None
        if settlement.unknown and tracked.unknown_since_at is None:
            tracked.unknown_since_at = now
        self._back(tracked)
        if settlement.delay > 0:
            tracked.due_at, tracked.seq = now + settlement.delay, None

    @staticmethod
    def _back(tracked: Tracked) -> None:
        tracked.where = "waiting" if tracked.lost is None else "lost"
        tracked.due_at = None

    def end_owner(self, owner: Owner, running: Mapping[int, Lost]) -> int:
        """What was running awaits burial, the rest goes back; how many there were."""
        for lease, tracked in owner.leases.items():
            tracked.redelivered = True
            if tracked.lost is None:
                tracked.lost = running.get(lease)
            self._back(tracked)
        del self.owners[owner.name]
        return len(owner.leases)

    def end_run(self, run: str) -> int:
        lost = Lost(Loss.WORKER, "", self.infos[run])
        del self.runs[run]
        return sum(
            self.end_owner(owner, {n: lost for n in owner.leases if n <= owner.begun})
            for owner in list(self.owners.values())
            if owner.run == run
        )

    def beat(self, run: str, now: float) -> int:
        """The rule of `umbel.ports.Broker.beat`; how many deliveries were reclaimed."""
        last, self.last_beat_at = self.last_beat_at, now
        if last is None or now < last or now - last > 2 * self.options.heartbeat:
            self.runs = dict.fromkeys(self.runs, now)
        self.runs[run] = now
        dead = [other for other, at in self.runs.items() if now - at > self.options.lease_time]
        return sum(self.end_run(other) for other in dead)

    def revoke(self, task_ids: Sequence[str]) -> frozenset[str]:
        found = [m for m in self.messages if m.where == "waiting" and m.id in task_ids]
        for tracked in found:
            tracked.rank, tracked.seq, tracked.due_at = FIRST, None, None
        return frozenset(tracked.id for tracked in found)

    def ready(self, queues: Sequence[str], now: float) -> list[Tracked]:
        return [
            m
            for m in self.messages
            if m.where == "waiting" and m.queue in queues and not (m.due_at or 0.0) > now
        ]

    def burials(self, queues: Sequence[str]) -> list[Tracked]:
        return [m for m in self.messages if m.where == "lost" and m.queue in queues]

    def lease(self, owner: Owner, tracked: Tracked) -> int:
        owner.last += 1
        owner.leases[owner.last] = tracked
        tracked.where, tracked.owner, tracked.lease = "leased", owner.name, owner.last
        return owner.last

    def stats(self, now: float) -> tuple[QueueStats, ...]:
        return tuple(
            QueueStats(
                queue,
                ready=len(self.ready([queue], now)),
                delayed=self._count(queue, "waiting") - len(self.ready([queue], now)),
                leased=self._count(queue, "leased"),
                lost=self._count(queue, "lost"),
                dead=self._count(queue, "dead"),
            )
            for queue in sorted(self.queues)
        )

    def _count(self, queue: str, where: Where) -> int:
        return sum(m.queue == queue and m.where == where for m in self.messages)


def target(posting: Posting) -> str:
    """The queue that a posting is for; through an exchange it is the first word of its key."""
    return posting.routing_key.partition(".")[0] if posting.exchange else posting.routing_key


def comes_before(one: Tracked, other: Tracked) -> bool:
    """Whether `one` must be handed out before `other`; False also where that is open."""
    if one.rank != other.rank:
        return one.rank < other.rank
    return one.seq is not None and other.seq is not None and one.seq < other.seq
