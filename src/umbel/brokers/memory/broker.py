"""The driver of ``memory://``: every operation is one step under the state's lock."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heappop, nsmallest
from math import inf
from operator import attrgetter, itemgetter
from queue import Empty, SimpleQueue

from umbel.brokers.memory.state import (
    Item,
    Listener,
    MemoryState,
    Owner,
    Place,
    Run,
    shared,
    task_id,
)
from umbel.clock import SYSTEM, Clock
from umbel.codec import pack
from umbel.coordination import check_count, check_holder, check_lease, check_take
from umbel.exceptions import RunLost, Unroutable
from umbel.exchanges import Binding
from umbel.message import Delivery, Loss, Lost, Message, Posting, Settlement, Unreadable
from umbel.ports import (
    NOBODY,
    Beat,
    BrokerOptions,
    DeadLetter,
    Delayed,
    Features,
    HandedBack,
    Leased,
    Location,
    QueueStats,
    Ready,
    Revocation,
    RunRecord,
    SetAside,
    Stored,
    Subscription,
    Turn,
)


class MemorySubscription:
    """A listener to some channels; see `umbel.ports.Subscription`."""

    def __init__(self, state: MemoryState, channels: Sequence[str]) -> None:
        self._state = state
        self._channels = frozenset(channels)
        self._inbox: Listener = SimpleQueue()
        with state.lock:
            for channel in self._channels:
                state.listeners.setdefault(channel, []).append(self._inbox)

    def get(self, timeout: float) -> tuple[str, bytes] | None:
        try:
            return self._inbox.get(timeout=timeout) if timeout > 0 else self._inbox.get_nowait()
        except Empty:
            return None

    def close(self) -> None:
        with self._state.lock:
            for channel in self._channels:
                listeners = self._state.listeners.get(channel, [])
                if self._inbox in listeners:
                    listeners.remove(self._inbox)
        self._inbox.put(None)


class MemoryBroker:
    """Broker, Coordinator and Inspector of one process; drivers of one name share a state."""

    features = Features(
        processes=False,
        priority=True,
        atomic_follow_ups=True,
        lease_records=True,
        find=True,
        wait_takes=False,
    )

    def __init__(self, name: str, options: BrokerOptions, *, clock: Clock = SYSTEM) -> None:
        self._name = name
        self._options = options
        self._clock = clock
        self._state = shared(name)
        self._interrupts = 0
        self._answered = 0
        self._closed = False

    @property
    def location(self) -> str:
        return f"memory://{self._name}"

    def open(self) -> None:
        self._closed = False

    def close(self) -> None:
        with self._state.lock:
            self._closed = True
            self._state.changed.notify_all()

    # Broker: messages

    def declare(
        self, queues: Sequence[str], bindings: Sequence[Binding] = (), *, run: str | None = None
    ) -> None:
        with self._state.lock:
            self._state.declare(queues, bindings, run)

    def unbind(self, bindings: Sequence[Binding]) -> int:
        with self._state.lock:
            return self._state.unbind(bindings)

    def publish(self, postings: Sequence[Posting]) -> None:
        state = self._state
        now = self._clock.wall()
        with state.lock:
            for posting in postings:
                if posting.exchange or posting.routing_key not in state.queues:
                    _raise_unroutable(state.unroutable(posting))
            for posting in postings:
                state.store(posting, now)

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
        state = self._state
        now = self._clock.wall()
        with state.lock:
            holder = state.owners.get(owner)
            if holder is None:
                raise RunLost(f"owner {owner!r} is not known to {self.location} (any more)")
            if 0 < number <= holder.number:
                return _repeated(holder, number)
            lost: frozenset[int] = frozenset()
            refused: tuple[tuple[int, str], ...] = ()
            if settlements:
                lost, refused = self._settle(holder, settlements, now)
            holder.begun = max(holder.begun, begin)
            items = self._next(queues, limit, lost_only, now) if limit > 0 else ()
            deliveries = tuple([_lease(holder, item) for item in items])
            reply = Turn(deliveries, lost, refused, state.version)
            if number:
                holder.number = number
                holder.reply = reply
            return reply

    def _settle(
        self, owner: Owner, settlements: Sequence[Settlement], now: float
    ) -> tuple[frozenset[int], tuple[tuple[int, str], ...]]:
        lost: list[int] = []
        refused: list[tuple[int, str]] = []
        for settlement in settlements:
            if settlement.lease not in owner.leases:
                lost.append(settlement.lease)
                continue
            reason = self._state.settle(owner, settlement, self._options, now)
            if reason is not None:
                refused.append((settlement.lease, reason))
        return frozenset(lost), tuple(refused)

    def _next(
        self, names: Sequence[str], limit: int, lost_only: bool, now: float
    ) -> Iterable[Item]:
        state = self._state
        queues = [state.queues[name] for name in dict.fromkeys(names) if name in state.queues]
        items = _take([queue.lost for queue in queues], limit)
        if lost_only:
            return items
        for queue in queues:
            if queue.due:
                state.ripen(queue, now)
        items += _take([queue.ready for queue in queues], limit - len(items))
        return items

    def wait(self, queues: Sequence[str], timeout: float) -> bool:
        state = self._state
        deadline = time.monotonic() + timeout
        with state.lock:
            if self._interrupts > self._answered:
                self._answered = self._interrupts
                return False
            interrupts, version = self._interrupts, state.version
            while not self._closed:
                if self._interrupts > interrupts:
                    self._answered = self._interrupts
                    return False
                due_in = self._due_in(queues)
                if due_in <= 0 or state.version != version:
                    return True
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                state.waiters += 1
                try:
                    state.changed.wait(min(left, due_in))
                finally:
                    state.waiters -= 1
            return False

    def _due_in(self, names: Sequence[str]) -> float:
        """Seconds until something is ready in the queues: 0 is now, `inf` is never."""
        due_at = inf
        for name in names:
            queue = self._state.queues.get(name)
            if queue is None:
                continue
            if queue.ready or queue.lost:
                return 0.0
            if queue.due:
                due_at = min(due_at, queue.due[0][0])
        return max(0.0, due_at - self._clock.wall())

    def interrupt(self) -> None:
        with self._state.lock:
            self._interrupts += 1
            self._state.changed.notify_all()

    # Broker: runs

    def enlist(self, run: str, owner: str | None, info: bytes) -> None:
        state = self._state
        now, lease_time = self._clock.wall(), self._options.lease_time
        with state.lock:
            known = state.runs.get(run)
            if run in state.gone or (known is not None and owner in known.gone):
                raise RunLost(f"{owner or run!r} was ended in {self.location}; start a new run")
            if known is None:
                known = state.runs[run] = Run(run, info, now, lease_time)
            known.info, known.seen_at, known.lease_time = info, now, lease_time
            if owner is not None and owner not in known.owners:
                known.owners[owner] = state.owners[owner] = Owner(owner, known)

    def beat(self, run: str) -> Beat:
        state = self._state
        now = self._clock.wall()
        with state.lock:
            known = state.runs.get(run)
            if known is None:
                return Beat(alive=False, revocations=state.version)
            reclaimed = state.reclaim(known, self._options, now)
            state.prune(self._options, now)
            others = [other for other in state.runs.values() if other is not known]
            peers = tuple(map(_record, others))
            next_death_in = min((o.seen_at + o.lease_time - now for o in others), default=None)
            return Beat(True, state.version, peers, reclaimed, next_death_in, state.heartbeat())

    def abandon(
        self,
        owner: str,
        *,
        decided: Sequence[Settlement] = (),
        running: Mapping[int, Lost] = NOBODY,
    ) -> None:
        now = self._clock.wall()
        with self._state.lock:
            holder = self._state.owners.get(owner)
            if holder is None:
                return
            _, refused = self._settle(holder, decided, now)
            aside = {**running, **{lease: Lost(Loss.PROCESS, why) for lease, why in refused}}
            self._state.end_owner(holder, aside)

    def leave(self, run: str) -> None:
        with self._state.lock:
            known = self._state.runs.get(run)
            if known is not None:
                self._state.end_run(
                    known,
                    f"worker run {run} ended without settling this",
                    self._options,
                    self._clock.wall(),
                )

    def held(self, owner: str) -> frozenset[int]:
        with self._state.lock:
            holder = self._state.owners.get(owner)
            return frozenset() if holder is None else frozenset(holder.leases)

    def tend(self) -> float:
        return inf

    def hand_back(self) -> HandedBack:
        return HandedBack()

    # Broker: broadcasts

    def broadcast(self, channel: str, payload: bytes) -> None:
        with self._state.lock:
            for listener in self._state.listeners.get(channel, ()):
                listener.put((channel, payload))

    def subscribe(self, channels: Sequence[str]) -> Subscription:
        return MemorySubscription(self._state, channels)

    def relay(self, queues: Sequence[str]) -> None:
        return None

    def listen(self, exchange: str, routing_key: str) -> Subscription:
        return self.subscribe([f"{exchange}/{routing_key}"])

    def answer(self, exchange: str, routing_key: str, payload: bytes) -> None:
        self.broadcast(f"{exchange}/{routing_key}", payload)

    # Coordinator

    def revoke(self, revocations: Sequence[Revocation], *, once: str = "") -> frozenset[str]:
        state = self._state
        now = self._clock.wall()
        with state.lock:
            if once and not state.is_first(once, now):
                return frozenset()
            for revocation in revocations:
                state.version += 1
                state.log.append((state.version, now, revocation))
            ids = frozenset(revocation.task_id for revocation in revocations)
            found: set[str] = set()
            for queue in state.queues.values():
                found |= state.expedite(queue, ids)
            state.changed.notify_all()
            return frozenset(found)

    def revoked(self, since: int) -> tuple[int, tuple[Revocation, ...]]:
        with self._state.lock:
            entries = (entry for version, _, entry in self._state.log if version > since)
            return self._state.version, tuple(entries)

    def unrevoke(self, task_ids: Sequence[str]) -> None:
        with self._state.lock:
            self._state.unrevoke(frozenset(task_ids))

    def acquire(self, name: str, holder: str, seconds: float) -> bool:
        check_lease(name, holder, seconds)
        now = self._clock.wall()
        with self._state.lock:
            return self._state.coordination.acquire(name, holder, seconds, now)

    def release(self, name: str, holder: str) -> bool:
        check_holder(name, holder)
        now = self._clock.wall()
        with self._state.lock:
            return self._state.coordination.release(name, holder, now)

    def take(self, bucket: str, amount: float, rate: float, burst: float) -> float:
        check_take(bucket, amount, rate, burst)
        now = self._clock.wall()
        with self._state.lock:
            return self._state.coordination.take(bucket, amount, rate, burst, now)

    def count(self, name: str, by: int, seconds: float) -> int:
        check_count(name, by, seconds)
        now = self._clock.wall()
        with self._state.lock:
            return self._state.coordination.count(name, by, seconds, now)

    # Inspector

    def queues(self) -> tuple[QueueStats, ...]:
        state = self._state
        now = self._clock.wall()
        with state.lock:
            leased: Counter[str] = Counter(
                item.queue.name for owner in state.owners.values() for item in owner.leases.values()
            )
            for queue in state.queues.values():
                state.ripen(queue, now)
            return tuple(
                QueueStats(
                    queue.name,
                    ready=len(queue.ready),
                    delayed=len(queue.due),
                    leased=leased[queue.name],
                    lost=len(queue.lost),
                    dead=len(queue.dead),
                )
                for queue in sorted(state.all_queues, key=attrgetter("name"))
            )

    def bindings(self) -> tuple[Binding, ...]:
        with self._state.lock:
            known = [each for of_one in self._state.bindings.values() for each in of_one]
        return tuple(sorted(known, key=lambda each: (each.exchange, each.queue)))

    def runs(self) -> tuple[RunRecord, ...]:
        with self._state.lock:
            return tuple(_record(run) for run in self._state.runs.values())

    def peek(self, queue: str, limit: int) -> tuple[Message | Unreadable, ...]:
        now = self._clock.wall()
        with self._state.lock:
            known = self._state.queues.get(queue)
            if known is None:
                return ()
            self._state.ripen(known, now)
            return tuple(place[2].message for place in nsmallest(limit, known.ready))

    def find(self, task_id: str) -> tuple[Location, ...]:
        with self._state.lock:
            return tuple(place for place, _ in self._found(task_id))

    def stored(self, task_id: str) -> tuple[Stored, ...]:
        with self._state.lock:
            return tuple(
                Stored(
                    place, pack(message) if isinstance(message, Message) else message.raw, message
                )
                for place, message in self._found(task_id)
            )

    def _found(self, sought: str) -> Iterator[tuple[Location, Message | Unreadable]]:
        now = self._clock.wall()
        for queue in self._state.queues.values():
            self._state.ripen(queue, now)
        for queue in self._state.all_queues:
            name = queue.name
            for place in queue.ready:
                if task_id(place[2].message) == sought:
                    yield Ready(name, sum(other < place for other in queue.ready)), place[2].message
            for due_at, _, item in queue.due:
                if task_id(item.message) == sought:
                    yield Delayed(name, due_at, item.unknown_since_at), item.message
            for _, _, item in queue.lost:
                if item.lost is not None and task_id(item.message) == sought:
                    yield SetAside(name, str(item.lost.loss), item.lost.detail), item.message
            letters = (grave.letter for grave in queue.dead if grave.letter.id == sought)
            yield from ((letter, letter.message) for letter in letters)
        for owner in self._state.owners.values():
            for lease, item in owner.leases.items():
                if task_id(item.message) == sought:
                    held = Leased(item.queue.name, owner.name, lease, lease <= owner.begun)
                    yield held, item.message

    def purge(self, queues: Sequence[str]) -> int:
        with self._state.lock:
            known = [self._state.queues[name] for name in queues if name in self._state.queues]
            purged = sum(len(queue.ready) + len(queue.due) for queue in known)
            for queue in known:
                queue.ready.clear()
                queue.due.clear()
            return purged

    def dead(self, queue: str | None = None, limit: int | None = None) -> tuple[DeadLetter, ...]:
        with self._state.lock:
            graves = [
                grave
                for known in self._state.all_queues
                if queue is None or queue == known.name
                for grave in known.dead
            ]
        graves.sort(key=lambda grave: grave.seq)
        return tuple(grave.letter for grave in graves[:limit])

    def dead_find(self, task_id: str) -> DeadLetter | None:
        letters = [letter for letter in self.dead() if letter.id == task_id]
        return letters[-1] if letters else None

    def dead_requeue(self, task_id: str, posting: Posting) -> bool:
        state = self._state
        with state.lock:
            if not task_id or self.dead_find(task_id) is None:
                return False
            if (reason := state.unroutable(posting)) is not None:
                raise Unroutable(reason)
            self.dead_delete([task_id])
            state.unrevoke(frozenset([task_id]))
            state.store(posting, self._clock.wall())
            return True

    def dead_delete(self, task_ids: Sequence[str] | None, queue: str | None = None) -> int:
        ids = None if task_ids is None else frozenset(task_ids)
        with self._state.lock:
            return sum(
                known.delete_dead(ids)
                for known in self._state.all_queues
                if queue is None or queue == known.name
            )

    def dead_prune(self) -> int:
        now = self._clock.wall()
        with self._state.lock:
            queues = self._state.all_queues
            before = sum(len(queue.dead) for queue in queues)
            for queue in queues:
                queue.retain(self._options, now)
            return before - sum(len(queue.dead) for queue in queues)


def _raise_unroutable(reason: str | None) -> None:
    if reason is not None:
        raise Unroutable(reason)


def _repeated(owner: Owner, number: int) -> Turn:
    if number == owner.number:
        return owner.reply
    raise ValueError(
        f"turn {number} of owner {owner.name!r} came after turn {owner.number}; "
        "the number of each new turn must be higher than the last one's"
    )


def _take(heaps: list[list[Place]], limit: int) -> list[Item]:
    """Up to `limit` items in the order of the heaps taken together."""
    heaps = [heap for heap in heaps if heap]
    items: list[Item] = []
    while heaps and len(items) < limit:
        heap = heaps[0] if len(heaps) == 1 else min(heaps, key=itemgetter(0))
        items.append(heappop(heap)[2])
        if not heap:
            heaps.remove(heap)
    return items


def _lease(owner: Owner, item: Item) -> Delivery:
    owner.last += 1
    owner.leases[owner.last] = item
    return Delivery(
        owner.last,
        item.queue.name,
        item.message,
        item.redeliveries,
        item.redelivered,
        item.unknown_since_at,
        item.lost,
    )


def _record(run: Run) -> RunRecord:
    return RunRecord(run.id, run.info, run.seen_at)
