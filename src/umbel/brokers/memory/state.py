"""What ``memory://`` keeps: one state per name, shared by all drivers of this process.

::

    MemoryState ─► queues: name ─► Queue   three heaps (ready, due, lost) and the dead letters
                ─► bindings: exchange ─► those of it
                ─► runs: id ─► Run ─► Owner ─► leases: number ─► Item
                ─► results, revocation log, subscribers
                ─► leases, buckets and counters by name

An item is in exactly one heap or under exactly one lease. Every method here is called with
`MemoryState.lock` held, which makes each operation of the driver one step.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from queue import SimpleQueue
from typing import Final

from msgspec.structs import replace

from umbel.brokers.memory.coordinating import Coordination
from umbel.exceptions import ImproperlyConfigured, RunLost
from umbel.exchanges import Binding, clash, has_own_name, taken, takers, unbound, undeclared
from umbel.message import Dead, How, Loss, Lost, Message, Posting, Result, Settlement, Unreadable
from umbel.ports import OUTAGE, BrokerOptions, DeadLetter, Revocation, Turn
from umbel.states import SUCCESS

FIRST: Final = -10
"""The rank before priority 9's: what was revoked while it waited."""

REVOCATION_KEPT: Final = 3 * 3600.0
HEARD_KEPT: Final = 3600.0


@dataclass(slots=True, eq=False)
class Item:
    """A message and what is counted beside it; `(rank, seq)` is its place in its queue."""

    message: Message | Unreadable
    queue: Queue
    priority: int
    rank: int
    seq: int
    redeliveries: int = 0
    redelivered: bool = False
    unknown_since_at: float | None = None
    lost: Lost | None = None
    history: tuple[tuple[float, str], ...] = ()


Place = tuple[float, int, Item]
"""An entry of a heap: rank (in `Queue.due` the due time), a number of its own, the item."""


@dataclass(slots=True, frozen=True)
class Grave:
    """A dead letter with its order of arrival and its size in bytes."""

    seq: int
    letter: DeadLetter
    size: int


@dataclass(slots=True, eq=False)
class Queue:
    name: str
    ready: list[Place] = field(default_factory=list)
    due: list[Place] = field(default_factory=list)
    lost: list[Place] = field(default_factory=list)
    dead: deque[Grave] = field(default_factory=deque)
    dead_bytes: int = 0
    run: str | None = None
    """Whose own it is, and ends with."""

    def drop(self, grave: Grave) -> None:
        """Forget the oldest dead letter, which is `grave`."""
        self.dead.popleft()
        self.dead_bytes -= grave.size

    def delete_dead(self, task_ids: frozenset[str] | None) -> int:
        """Forget the dead letters of these ids, or (None) all; how many there were."""
        kept = [] if task_ids is None else [g for g in self.dead if g.letter.id not in task_ids]
        deleted = len(self.dead) - len(kept)
        self.dead = deque(kept)
        self.dead_bytes = sum(grave.size for grave in kept)
        return deleted

    def retain(self, options: BrokerOptions, now: float) -> None:
        """Keep what count, age and bytes allow; the newest is kept however large it is."""
        while self.dead and self.dead[0].letter.died_at < now - options.dead_max_age:
            self.drop(self.dead[0])
        while len(self.dead) > 1 and self.dead_bytes > options.dead_max_bytes:
            self.drop(self.dead[0])
        while len(self.dead) > options.dead_max_count:
            self.drop(self.dead[0])


@dataclass(slots=True, eq=False)
class Owner:
    name: str
    run: Run
    number: int = 0
    reply: Turn = field(default_factory=Turn)
    begun: int = 0
    last: int = 0
    leases: dict[int, Item] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Run:
    id: str
    info: bytes
    seen_at: float
    lease_time: float
    owners: dict[str, Owner] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)


Listener = SimpleQueue[tuple[str, bytes] | None]


class MemoryState:
    """Everything that the drivers of one name share."""

    def __init__(self) -> None:
        # Re-entrant, so that `interrupt` may be called from a signal handler.
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.stored = threading.Condition(self.lock)
        self.waiters = 0
        self.result_waiters = 0
        self.seq = 0
        self.queues: dict[str, Queue] = {}
        self.ended: dict[str, Queue] = {}
        """Queues of runs that are over, as long as they have dead letters or something leased."""
        self.bindings: dict[str, dict[Binding, None]] = {}
        """By exchange, in the order of declaration."""
        self.runs: dict[str, Run] = {}
        self.owners: dict[str, Owner] = {}
        self.gone: set[str] = set()
        self.last_beat_at: float | None = None
        self.version = 0
        self.log: list[tuple[int, float, Revocation]] = []
        self.heard: dict[str, float] = {}
        self.coordination = Coordination()
        self.listeners: dict[str, list[Listener]] = {}
        self.results: dict[str, Result] = {}

    # Queues and bindings

    def declare(self, names: Iterable[str], bindings: Sequence[Binding], run: str | None) -> None:
        """See `Broker.declare`."""
        names = dict.fromkeys([*names, *(each.queue for each in bindings)])
        if run is not None:
            if run not in self.runs:
                raise RunLost(f"run {run!r} is not known to this broker (any more)")
            for name in names:
                if name in self.queues and self.queues[name].run != run:
                    raise ImproperlyConfigured(taken(name, run))
        types = {name: next(iter(known)).type for name, known in self.bindings.items()}
        if (reason := clash(bindings, types)) is not None:
            raise ImproperlyConfigured(reason)
        for name in names:
            if name in self.ended and run is not None:
                self.queues[name] = self.ended.pop(name)
                self.queues[name].run = run
            elif name not in self.ended:
                self.queues.setdefault(name, Queue(name, run=run))
        for binding in bindings:
            self.bindings.setdefault(binding.exchange, {})[binding] = None

    def unbind(self, bindings: Iterable[Binding]) -> int:
        """Forget bindings; how many there were."""
        forgotten = 0
        for binding in bindings:
            known = self.bindings.get(binding.exchange, {})
            if binding in known:
                del known[binding]
                forgotten += 1
                if not known:
                    del self.bindings[binding.exchange]
        return forgotten

    def takers(self, posting: Posting) -> tuple[str, ...]:
        """The queues that a posting to an exchange is stored in."""
        exchange, key = posting.exchange, posting.routing_key
        bindings = tuple(self.bindings.get(exchange, ()))
        found = takers(bindings, key, posting.message.headers)
        if key == exchange and key in self.queues and has_own_name(bindings):
            return found if key in found else (*found, key)
        return found

    def end_queues(self, run: str, now: float, options: BrokerOptions) -> None:
        """End the queues that are a run's own; it holds nothing any more."""
        own = {name for name, queue in self.queues.items() if queue.run == run}
        if not own:
            return
        everything = [binding for known in self.bindings.values() for binding in known]
        self.unbind(binding for binding in everything if binding.queue in own)
        for name in own:
            self.ended[name] = self.queues.pop(name)
        self.sweep(now, options)

    def sweep(self, now: float, options: BrokerOptions) -> None:
        """Drop what waits in queues that have ended, bury what had begun in them, and forget
        those that hold nothing any more."""
        if not self.ended:
            return
        leased = {i.queue.name for owner in self.owners.values() for i in owner.leases.values()}
        for name, queue in list(self.ended.items()):
            for _, _, item in sorted(queue.lost, key=lambda place: place[:2]):
                if item.lost is not None:
                    self._bury(item, Dead(item.lost.detail, "WorkerLostError"), now)
            queue.ready, queue.due, queue.lost = [], [], []
            queue.retain(options, now)
            if not queue.dead and name not in leased:
                del self.ended[name]

    @property
    def all_queues(self) -> tuple[Queue, ...]:
        """Also those that have ended."""
        return (*self.queues.values(), *self.ended.values())

    # Messages

    def unroutable(self, posting: Posting) -> str | None:
        """Why no queue would take the posting; None where one does."""
        exchange, key = posting.exchange, posting.routing_key
        if exchange:
            if self.takers(posting):
                return None
            return unbound(exchange, key, tuple(self.bindings.get(exchange, ())))
        if key in self.queues:
            return None
        return undeclared(key, self.queues)

    def store(self, posting: Posting, now: float) -> None:
        """Keep a posting that is routable, in each of the queues that it is for."""
        if posting.exchange:
            for name in self.takers(posting):
                self.store(replace(posting, exchange="", routing_key=name), now)
            return
        self.seq += 1
        queue = self.queues[posting.routing_key]
        rank = -posting.priority
        item = Item(posting.message, queue, posting.priority, rank, self.seq)
        due_at = posting.due_at
        if due_at is None or due_at <= now:
            heappush(queue.ready, (rank, self.seq, item))
        else:
            heappush(queue.due, (due_at, self.seq, item))
        if self.waiters:
            self.changed.notify_all()

    def put_back(self, item: Item, due_at: float | None = None) -> None:
        """To its old place, or until `due_at`; what awaits burial goes on awaiting it."""
        if item.lost is not None:
            heappush(item.queue.lost, (item.rank, item.seq, item))
        elif due_at is not None:
            heappush(item.queue.due, (due_at, item.seq, item))
        else:
            heappush(item.queue.ready, (item.rank, item.seq, item))
        if self.waiters:
            self.changed.notify_all()

    def set_aside(self, item: Item, lost: Lost) -> None:
        """For burial. A burier that died does not replace what killed the task."""
        if item.lost is None:
            item.lost = lost
        self.put_back(item)

    def ripen(self, queue: Queue, now: float) -> None:
        """Move what has fallen due to the back of the queue, in the order of due times."""
        due = queue.due
        while due and due[0][0] <= now:
            item = heappop(due)[2]
            self.seq += 1
            item.seq = self.seq
            heappush(queue.ready, (item.rank, item.seq, item))

    def items(self) -> Iterator[Item]:
        """Every message that is neither settled nor dead."""
        for queue in self.queues.values():
            for heap in (queue.ready, queue.due, queue.lost):
                for place in heap:
                    yield place[2]
        for owner in self.owners.values():
            yield from owner.leases.values()

    def expedite(self, queue: Queue, task_ids: frozenset[str]) -> set[str]:
        """Put what waits or is due later under these ids first in the queue; the ids found."""
        found: set[str] = set()
        for heap in (queue.ready, queue.due):
            moved = [place[2] for place in heap if task_id(place[2].message) in task_ids]
            if not moved:
                continue
            heap[:] = [place for place in heap if task_id(place[2].message) not in task_ids]
            heapify(heap)
            for item in moved:
                item.rank = FIRST
                found.add(task_id(item.message))
                self.put_back(item)
        return found

    # Settling

    def settle(
        self, owner: Owner, settlement: Settlement, options: BrokerOptions, now: float
    ) -> str | None:
        """Apply to a lease that `owner` holds; why not, where a follow-up is unroutable."""
        for posting in settlement.follow_ups:
            if (reason := self.unroutable(posting)) is not None:
                return reason
        item = owner.leases.pop(settlement.lease)
        for posting in settlement.follow_ups:
            self.store(posting, now)
        if settlement.result is not None:
            self.keep(settlement.result, now)
        for result in settlement.others:
            self.keep(result, now)
        if settlement.how is How.REQUEUE:
            self._requeue(item, settlement, now)
        elif settlement.how is How.RELEASE:
            self._release(item, settlement, now)
        elif settlement.dead is not None:
            self._bury(item, settlement.dead, now)
            item.queue.retain(options, now)
        return None

    def _requeue(self, item: Item, settlement: Settlement, now: float) -> None:
        self.seq += 1
        item.seq = self.seq
        item.rank = -item.priority
        item.redeliveries += 1
        item.redelivered = True
        item.lost = None
        item.history += ((now, settlement.note or "delivered again"),)
        self.put_back(item, now + settlement.delay if settlement.delay > 0 else None)

    def _release(self, item: Item, settlement: Settlement, now: float) -> None:
        if settlement.redelivered:
            item.redelivered = True
            # A burial that decides "run it again, uncounted" ends here. A burial that is only
            # given back doesn't say `redelivered`, and stays one.
            item.lost = None
        if settlement.unknown and item.unknown_since_at is None:
            item.unknown_since_at = now
        self.put_back(item, now + settlement.delay if settlement.delay > 0 else None)

    def _bury(self, item: Item, dead: Dead, now: float) -> None:
        self.seq += 1
        letter = DeadLetter(
            id=task_id(item.message),
            queue=item.queue.name,
            message=item.message,
            reason=dead.reason,
            error=dead.error,
            died_at=now,
            redeliveries=item.redeliveries,
            history=(*item.history, (now, dead.reason)),
        )
        grave = Grave(self.seq, letter, size(item.message))
        item.queue.dead.append(grave)
        item.queue.dead_bytes += grave.size

    def keep(self, result: Result, now: float) -> None:
        """Store a result, unless a SUCCESS is there that has not expired."""
        old = self.results.get(result.task_id)
        if old is None or old.state != SUCCESS or expired(old, now):
            self.results.pop(result.task_id, None)  # the newest stand last
            self.results[result.task_id] = result
            if self.result_waiters:
                self.stored.notify_all()

    # Ends of owners and runs

    def end_owner(self, owner: Owner, running: Mapping[int, Lost]) -> int:
        """Set `running` aside, put the rest back; how many there were."""
        del self.owners[owner.name]
        del owner.run.owners[owner.name]
        owner.run.gone.add(owner.name)
        for lease, item in owner.leases.items():
            item.redelivered = True
            if lease in running:
                self.set_aside(item, replace(running[lease], info=owner.run.info))
            else:
                self.put_back(item)
        return len(owner.leases)

    def end_run(self, run: Run, detail: str, options: BrokerOptions, now: float) -> int:
        """End a run that can't say any more what was running: what was begun counts as that."""
        lost = Lost(Loss.WORKER, detail)
        del self.runs[run.id]
        self.gone.add(run.id)
        ended = sum(
            self.end_owner(owner, {n: lost for n in owner.leases if n <= owner.begun})
            for owner in list(run.owners.values())
        )
        self.end_queues(run.id, now, options)
        return ended

    def heartbeat(self) -> float:
        """The shortest of the living runs'; there is one."""
        shortest = min(run.lease_time for run in self.runs.values())
        return BrokerOptions(lease_time=shortest).heartbeat

    def reclaim(self, run: Run, options: BrokerOptions, now: float) -> int:
        """Renew `run` and end the dead ones; how many deliveries those held."""
        last = self.last_beat_at
        if last is None or now < last or now - last > OUTAGE * self.heartbeat():
            for other in self.runs.values():
                other.seen_at = now
        self.last_beat_at = run.seen_at = now
        dead = [other for other in self.runs.values() if now - other.seen_at > other.lease_time]
        return sum(
            self.end_run(
                other,
                f"worker run {other.id} gave no sign of life for {now - other.seen_at:.0f} s",
                options,
                now,
            )
            for other in dead
        )

    def prune(self, options: BrokerOptions, now: float) -> None:
        """Drop dead letters, revocations and what else there is whose time is over."""
        self.coordination.prune(now)
        self.sweep(now, options)
        for queue in self.queues.values():
            queue.retain(options, now)
        if self.log and self.log[0][1] < now - REVOCATION_KEPT:
            present = {task_id(item.message) for item in self.items()}
            self.log = [
                entry
                for entry in self.log
                if entry[1] >= now - REVOCATION_KEPT or entry[2].task_id in present
            ]

    def is_first(self, once: str, now: float) -> bool:
        """Whether nobody has come with this name within the time that it is kept."""
        self.heard = {name: at for name, at in self.heard.items() if at > now - HEARD_KEPT}
        is_first = once not in self.heard
        self.heard.setdefault(once, now)
        return is_first

    def unrevoke(self, task_ids: frozenset[str]) -> None:
        """Take ids out of the log. The version rises, so that readers of it read again."""
        left = [entry for entry in self.log if entry[2].task_id not in task_ids]
        if len(left) < len(self.log):
            self.log = left
            self.version += 1


def task_id(message: Message | Unreadable) -> str:
    return message.id if isinstance(message, Message) else ""


def size(message: Message | Unreadable) -> int:
    """Bytes that a dead letter counts with."""
    if isinstance(message, Unreadable):
        return len(message.raw)
    return len(message.body) + len(repr(message.headers)) + len(repr(message.properties))


def expired(result: Result, now: float) -> bool:
    return result.expires_at is not None and result.expires_at <= now


_registry: dict[str, MemoryState] = {}
_registry_lock = threading.Lock()


def shared(name: str) -> MemoryState:
    """The state of this name, made when it is first asked for."""
    with _registry_lock:
        return _registry.setdefault(name, MemoryState())


def reset(name: str | None = None) -> None:
    """Forget the state of one name, or (None) all. Drivers that are open keep what they had."""
    with _registry_lock:
        if name is None:
            _registry.clear()
        else:
            _registry.pop(name, None)
