"""``redis://``: broker, coordinator and inspector on one Redis server.

Every operation that changes something is one script (see ``lua/``), so it is atomic; what it says
is in `umbel.ports`. Here stands what is sent to the scripts, and what their replies mean. Time
comes from this driver's clock.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec
from redis.exceptions import RedisError

from umbel.arguments import is_unicode
from umbel.brokers.redis import forms, looking, routes
from umbel.brokers.redis.keys import Keys
from umbel.brokers.redis.link import Link, Reply, ReplyLost, address_of
from umbel.brokers.redis.routes import NO_ROUTES, Routes
from umbel.brokers.redis.scripts import Script, Scripts
from umbel.brokers.redis.waiting import LOOK_AGAIN, RedisSubscription, Waiter
from umbel.clock import SYSTEM, Clock
from umbel.codec import pack, unpack
from umbel.exceptions import (
    BrokerUnavailable,
    ImproperlyConfigured,
    PublishUnknown,
    RunLost,
    Unroutable,
)
from umbel.exchanges import Binding, clash, taken
from umbel.message import Lost, Message, Posting, Result, Settlement, Unreadable
from umbel.ports import (
    NOBODY,
    OUTAGE,
    Beat,
    BrokerOptions,
    DeadLetter,
    Features,
    Location,
    QueueStats,
    Revocation,
    RunRecord,
    Subscription,
    Turn,
)

REMEMBERED: Final = 7 * 86_400.0
"""Seconds for which a run that has ended is still told so."""
REVOCATION_KEPT: Final = 3 * 3600.0
"""Seconds that a revocation is kept at least."""
_LOOK_FOR_REVOKED: Final = 600.0
"""Seconds between two looks for the messages of old revocations."""
_ROUTED_AGAIN: Final = 20
"""Times that routes may change while something is stored, before we say that it can't be."""

_encode: Final = msgspec.msgpack.Encoder().encode

Found = TypeVar("Found")

Stored = tuple[str, int, str, bytes]
"""A posting as the scripts want it: queue, step, due time or empty, envelope."""


@dataclass(frozen=True, slots=True)
class ResultsBeside:
    """Where the result store of the same server keeps results, so that a settlement can store them:
    its database, and the beginning of the keys of task metas."""

    database: int
    prefix: str = "celery-task-meta-"


class RedisBroker:
    """Broker, Coordinator and Inspector on the Redis server of `url`.

    `keys` names the keys. `results`: where results that come with settlements are kept; None is
    in the broker's own database.
    """

    def __init__(
        self,
        url: str,
        options: BrokerOptions,
        *,
        clock: Clock = SYSTEM,
        keys: Keys | None = None,
        results: ResultsBeside | None = None,
    ) -> None:
        address = address_of(url)
        self._options = options
        self._clock = clock
        self._keys = keys or Keys()
        self._results = results or ResultsBeside(address.db)
        self._link = Link(address, BrokerUnavailable)
        self._scripts = Scripts(self._keys, address.db)
        limits = options.dead_max_count, options.dead_max_age, options.dead_max_bytes
        self._limits = limits
        self._packed_limits = _encode(limits)
        self._routes = NO_ROUTES
        self._last_version = 0
        self._declared: dict[str, None] = {}
        self._bound: dict[Binding, None] = {}
        self._replies: dict[str, tuple[int, Turn]] = {}
        self._waiters: list[Waiter] = []
        self._idle_waiters: list[Waiter] = []
        self._interrupts = 0
        self._answered = 0
        self._version = 0
        self._closed = True
        self.features = Features(
            processes=True,
            priority=True,
            atomic_follow_ups=True,
            lease_records=True,
            find=True,
            wait_takes=False,
            priority_steps=self._keys.steps,
        )

    @property
    def location(self) -> str:
        return self._link.address.location

    def open(self) -> None:
        self._link.open()
        if self._closed:
            self._closed = False
            self._version = self._revocations_version()

    def close(self) -> None:
        self._closed = True
        for waiter in list(self._waiters):
            waiter.ring()
        while self._idle_waiters:
            self._drop(self._idle_waiters.pop())
        self._link.close()

    # Broker: messages

    def declare(
        self, queues: Sequence[str], bindings: Sequence[Binding] = (), *, run: str | None = None
    ) -> None:
        names = list(dict.fromkeys([*queues, *(each.queue for each in bindings)]))
        members = [routes.member(self._keys, each) for each in bindings]
        kept = names if run is None else ()
        kombu = routes.kombu_entries(self._keys, kept, bindings)

        def attempt(known: Routes) -> Reply | None:
            types = {name: of_it[0].type for name, of_it in known.by_exchange.items()}
            if (reason := clash(bindings, types)) is not None:
                raise ImproperlyConfigured(reason)
            request = known.version, names, run, members, kombu
            reply = self._run(self._scripts.declare, _encode(request))
            return None if reply[0] == 1 else reply

        reply = self._routed(attempt)
        if reply[0] == 2:
            raise RunLost(f"run {run!r} is not known to this broker (any more)")
        if reply[0] == 3 and run is not None:
            raise ImproperlyConfigured(taken(reply[1].decode(), run))
        if run is None:
            self._declared.update(dict.fromkeys(names))
            self._bound.update(dict.fromkeys(bindings))

    def unbind(self, bindings: Sequence[Binding]) -> int:
        for each in bindings:
            self._bound.pop(each, None)
        if not bindings:
            return 0
        members = [routes.member(self._keys, each) for each in bindings]
        unbound: int = self._run(self._scripts.unbind, *members)
        return unbound

    def publish(self, postings: Sequence[Posting]) -> None:
        if not postings:
            return
        packed = [(posting, pack(posting.message)) for posting in postings]
        now = self._clock.wall()

        def attempt(known: Routes) -> bool | None:
            arguments: list[str | int | bytes] = [known.version]
            for posting, raw in packed:
                for stored in self._lead(known, posting, raw, now):
                    arguments += stored
            return self._link.run(self._scripts.publish, *arguments) == 1 or None

        try:
            self._routed(attempt)
        except ReplyLost as error:
            raise PublishUnknown(
                f"{self.location} was sent {len(postings)} message(s) and its answer was lost: "
                f"they may or may not be stored ({error.__cause__})"
            ) from error.__cause__

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
        if number and self._replies.get(owner, (0, None))[0] == number:
            return self._same_turn(owner)
        now = self._clock.wall()
        names = list(dict.fromkeys(queues))

        def attempt(known: Routes | None) -> Reply | None:
            settled, blobs = self._settlements(settlements, known, now)
            version = None if known is None else known.version
            request = (
                owner, number, names, settled, begin, limit, lost_only, repr(now), version,
                self._limits,
            )  # fmt: skip
            reply = self._run(self._scripts.turn, _encode(request), *blobs)
            return None if reply[0] == 2 else reply

        reply = self._perhaps_routed(settlements, attempt)
        if reply[0] == 1:
            self._replies.pop(owner, None)
            raise RunLost(f"owner {owner!r} is not known to {self.location} (any more)")
        if reply[0] == 3:
            raise ValueError(
                f"turn {number} of owner {owner!r} came after turn {reply[1]}; "
                "the number of each new turn must be higher than the last one's"
            )
        _, version, handed_out, lost, refused = reply
        turn = Turn(
            deliveries=tuple([forms.delivery(*each) for each in handed_out]),
            lost=frozenset(lost),
            refused=tuple([(lease, sentence.decode()) for lease, sentence in refused]),
            revocations=version,
        )
        if number:
            self._replies[owner] = number, turn
        self._version = version
        return turn

    def _same_turn(self, owner: str) -> Turn:
        """This driver's last reply, where it is asked for again. Another driver's is read from
        the server, without what was settled in between on the owner's behalf."""
        if not self._call("EXISTS", self._keys.own(f"owner:{owner}")):
            raise RunLost(f"owner {owner!r} is not known to {self.location} (any more)")
        return self._replies[owner][1]

    def wait(self, queues: Sequence[str], timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        interrupts = self._interrupts
        if interrupts > self._answered:
            self._answered = interrupts
            return False
        waiter = self._waiter()
        try:
            while not self._closed:
                if self._interrupts > interrupts:
                    self._answered = self._interrupts
                    break
                due_in = self._due_in(waiter, queues)
                left = deadline - time.monotonic()
                if due_in <= 0 or left <= 0:
                    self._idle_waiters.append(waiter)
                    return due_in <= 0
                waiter.sleep(min(left, due_in, LOOK_AGAIN))
        except (RedisError, OSError) as error:
            self._drop(waiter)
            raise self._link.refused(error) from error
        except BaseException:
            self._drop(waiter)
            raise
        if self._closed:
            self._drop(waiter)
        else:
            self._idle_waiters.append(waiter)
        return False

    @property
    def waiting(self) -> int:
        """How many threads wait now, for tests and tools."""
        return len(self._waiters) - len(self._idle_waiters)

    def _waiter(self) -> Waiter:
        try:
            return self._idle_waiters.pop()
        except IndexError:
            pass
        try:
            waiter = Waiter(self._link.address)
        except (RedisError, OSError) as error:
            raise self._link.refused(error) from error
        self._waiters.append(waiter)
        return waiter

    def _drop(self, waiter: Waiter) -> None:
        self._waiters.remove(waiter)
        waiter.close()

    def _due_in(self, waiter: Waiter, queues: Sequence[str]) -> float:
        """Seconds until a turn is worth it: 0 is now."""
        keys = self._keys
        lists = [keys.list(queue, step) for queue in queues for step in keys.steps]
        lists += [keys.side(queue, "lost") for queue in queues]
        looks: list[Sequence[str | int]] = [
            ("GET", keys.own("revocations:version")),
            ("ZRANGE", keys.own("due"), 0, 0, "WITHSCORES"),
        ]
        if lists:
            looks.append(("EXISTS", *lists))
        version, due, *ready = waiter.look(looks)
        if int(version or 0) != self._version or any(ready):
            return 0.0
        return max(0.0, float(due[1]) - self._clock.wall()) if due else LOOK_AGAIN

    def interrupt(self) -> None:
        self._interrupts += 1
        for waiter in list(self._waiters):
            waiter.ring()

    # Broker: runs

    def enlist(self, run: str, owner: str | None, info: bytes) -> None:
        lease_time = repr(float(self._options.lease_time))
        reply = self._run(self._scripts.enlist, run, owner or "", info, self._now, lease_time)
        if not reply:
            raise RunLost(f"{owner or run!r} was ended in {self.location}; start a new run")

    def beat(self, run: str) -> Beat:
        reply = self._run(
            self._scripts.beat, run, self._now, repr(OUTAGE), repr(REMEMBERED),
            repr(REVOCATION_KEPT), repr(_LOOK_FOR_REVOKED), self._packed_limits,
        )  # fmt: skip
        if len(reply) == 1:
            return Beat(alive=False, revocations=reply[0])
        version, heartbeat, peers, reclaimed, death, old = reply
        if old:
            self._forget_revoked(old)
        return Beat(
            alive=True,
            revocations=version,
            peers=tuple(_run_record(*peer) for peer in peers),
            reclaimed=reclaimed,
            next_death_in=float(death) if death else None,
            heartbeat=float(heartbeat),
        )

    def abandon(
        self,
        owner: str,
        *,
        decided: Sequence[Settlement] = (),
        running: Mapping[int, Lost] = NOBODY,
    ) -> None:
        now = self._clock.wall()
        lost = [(lease, str(why.loss), why.detail) for lease, why in running.items()]

        def attempt(known: Routes | None) -> bool | None:
            settled, blobs = self._settlements(decided, known, now)
            version = None if known is None else known.version
            request = owner, settled, lost, repr(now), version, self._limits
            return self._run(self._scripts.abandon, _encode(request), *blobs) == 1 or None

        self._perhaps_routed(decided, attempt)
        self._replies.pop(owner, None)

    def leave(self, run: str) -> None:
        self._run(self._scripts.leave, run, self._now, self._packed_limits)

    def held(self, owner: str) -> frozenset[int]:
        return frozenset(map(int, self._call("HKEYS", self._keys.own(f"leases:{owner}"))))

    # Broker: broadcasts

    def broadcast(self, channel: str, payload: bytes) -> None:
        self._call("PUBLISH", self._channel(channel), payload)

    def subscribe(self, channels: Sequence[str]) -> Subscription:
        names = {self._channel(channel): channel for channel in channels}
        return RedisSubscription(self._link.address, names)

    def _channel(self, channel: str) -> str:
        return self._keys.own(f"broadcast:{channel}")

    # Coordinator

    def revoke(self, revocations: Sequence[Revocation]) -> frozenset[str]:
        if not revocations:
            return frozenset()
        arguments: list[str | int] = []
        for each in revocations:
            arguments += [int(each.terminate), each.signal, each.task_id]
        self._run(self._scripts.revoke, self._now, *arguments)
        return self._expedite(frozenset(each.task_id for each in revocations))

    def _expedite(self, ids: frozenset[str]) -> frozenset[str]:
        """Put what waits or is due later first in its queue; the ids that were found."""
        seen = [
            each
            for queue in self._queue_names()
            for each in looking.waiting(self._link, self._keys, queue, ids)
        ]
        if not seen:
            return frozenset()
        arguments: list[str | int | bytes] = []
        for each in seen:
            arguments += [each.queue, "" if each.step is None else each.step, each.raw]
        moved = self._run(self._scripts.expedite, *arguments)
        return frozenset(
            each.task_id for each, is_moved in zip(seen, moved, strict=True) if is_moved
        )

    def revoked(self, since: int) -> tuple[int, tuple[Revocation, ...]]:
        _, _, _, (version, entries) = self._calls(
            ("MULTI",),
            ("GET", self._keys.own("revocations:version")),
            ("ZRANGEBYSCORE", self._keys.own("revocations"), f"({since}", "+inf"),
            ("EXEC",),
        )
        return int(version or 0), tuple(map(forms.revocation, entries))

    def unrevoke(self, task_ids: Sequence[str]) -> None:
        if ids := _askable(task_ids):
            self._run(self._scripts.unrevoke, *ids)

    def _forget_revoked(self, old: Sequence[bytes]) -> None:
        """Drop old revocations of which no message can be met any more."""
        ids = frozenset(forms.revocation(entry).task_id for entry in old)
        present = self._looked(
            lambda: looking.present(self._link, self._keys, self._queue_names(), ids)
        )
        gone = [entry for entry in old if forms.revocation(entry).task_id not in present]
        if gone:
            self._call("ZREM", self._keys.own("revocations"), *gone)

    def _revocations_version(self) -> int:
        return int(self._call("GET", self._keys.own("revocations:version")) or 0)

    # Inspector

    def queues(self) -> tuple[QueueStats, ...]:
        rows = self._run(self._scripts.stats, self._now)
        stats = [QueueStats(row[0].decode(), *row[1:]) for row in rows]
        return tuple(sorted(stats, key=lambda each: each.name))

    def bindings(self) -> tuple[Binding, ...]:
        known = self._looked(lambda: routes.read(self._link, self._keys)).bindings
        return tuple(sorted(known, key=lambda each: (each.exchange, each.queue)))

    def runs(self) -> tuple[RunRecord, ...]:
        runs = [run.decode() for run in self._call("ZRANGE", self._keys.own("runs"), 0, -1)]
        if not runs:
            return ()
        asked = [("HMGET", self._keys.own(f"run:{run}"), "info", "seen") for run in runs]
        return tuple(
            RunRecord(run, info, float(seen))
            for run, (info, seen) in zip(runs, self._calls(*asked), strict=True)
            if seen is not None
        )

    def peek(self, queue: str, limit: int) -> tuple[Message | Unreadable, ...]:
        if limit <= 0 or not is_unicode(queue):
            return ()
        self._promote()
        asked = [("LRANGE", self._keys.list(queue, step), -limit, -1) for step in self._keys.serve]
        elements = [element for of_step in self._calls(*asked) for element in of_step[::-1]]
        return tuple(unpack(forms.split(element)[1]) for element in elements[:limit])

    def find(self, task_id: str) -> tuple[Location, ...]:
        self._promote()
        names = self._queue_names()
        places = self._looked(lambda: looking.places(self._link, self._keys, names, task_id))
        return (*places, *self._letters_of(task_id))

    def purge(self, queues: Sequence[str]) -> int:
        names = _askable(queues)
        purged: int = self._run(self._scripts.purge, *names) if names else 0
        return purged

    def dead(self, queue: str | None = None, limit: int | None = None) -> tuple[DeadLetter, ...]:
        names = self._queue_names() if queue is None else _askable([queue])
        if not names:
            return ()
        last = -1 if limit is None else limit - 1
        if limit == 0:
            return ()
        numbers = self._calls(
            *(("ZRANGE", self._keys.side(name, "dead"), 0, last) for name in names)
        )
        found = sorted(
            (int(n), name) for name, of_it in zip(names, numbers, strict=True) for n in of_it
        )[:limit]
        return tuple(letter for letter in self._letters(found) if letter is not None)

    def dead_find(self, task_id: str) -> DeadLetter | None:
        return next(iter(self._letters_of(task_id)), None)

    def _letters_of(self, task_id: str) -> list[DeadLetter]:
        """The dead letters of an id, newest first."""
        if not is_unicode(task_id):
            return []
        lower, upper = task_id.encode() + b"\0", task_id.encode() + b"\1"
        found = self._call("ZRANGEBYLEX", self._keys.own("dead-ids"), b"[" + lower, b"(" + upper)
        places = []
        for member in found:
            n, _, queue = member[len(lower) :].partition(b"\0")
            places.append((int(n), queue.decode()))
        places.sort(reverse=True)
        return [letter for letter in self._letters(places) if letter is not None]

    def _letters(self, places: Sequence[tuple[int, str]]) -> list[DeadLetter | None]:
        if not places:
            return []
        asked = [("HGET", self._keys.side(queue, "letters"), n) for n, queue in places]
        return [
            None if stored is None else forms.letter(queue, stored)
            for (_, queue), stored in zip(places, self._calls(*asked), strict=True)
        ]

    def dead_requeue(self, task_id: str, posting: Posting) -> bool:
        if not task_id or self.dead_find(task_id) is None:
            return False
        raw, now = pack(posting.message), self._clock.wall()

        def attempt(known: Routes) -> int | None:
            arguments: list[str | int | bytes] = [task_id, known.version]
            for stored in self._lead(known, posting, raw, now):
                arguments += stored
            reply: int = self._run(self._scripts.dead_requeue, *arguments)
            return None if reply == 2 else reply

        return self._routed(attempt) == 1

    def dead_delete(self, task_ids: Sequence[str] | None, queue: str | None = None) -> int:
        ids = None if task_ids is None else _askable(task_ids)
        if queue is not None and not is_unicode(queue):
            return 0
        deleted: int = self._run(self._scripts.dead_delete, _encode((ids, queue)))
        return deleted

    def dead_prune(self) -> int:
        dropped: int = self._run(self._scripts.dead_prune, self._now, self._packed_limits)
        return dropped

    # What the scripts are given

    @property
    def _now(self) -> str:
        return repr(self._clock.wall())

    def _lead(self, known: Routes, posting: Posting, raw: bytes, now: float) -> list[Stored]:
        """A posting as it is stored in each of its queues. Raises `Unroutable`."""
        beyond: Sequence[Binding] = ()
        if posting.exchange:
            beyond = self._looked(
                lambda: routes.strangers(self._link, self._keys, known, posting.exchange)
            )
        queues = known.lead(posting, beyond)
        if not queues:
            raise Unroutable(known.why_not(posting))
        due_at = posting.due_at
        due = "" if due_at is None or due_at <= now else repr(float(due_at))
        step = self._keys.step(posting.priority)
        return [(queue, step, due, raw) for queue in queues]

    def _settlements(
        self, settlements: Sequence[Settlement], known: Routes | None, now: float
    ) -> tuple[list[object], list[bytes]]:
        """(as lua/settling.lua wants them, the script's arguments from the second on)."""
        blobs: list[bytes] = []
        return [self._settlement(each, known, now, blobs) for each in settlements], blobs

    def _settlement(
        self, each: Settlement, known: Routes | None, now: float, blobs: list[bytes]
    ) -> object:
        """Where a follow-up has no queue, with the sentence."""
        postings: list[tuple[str, int, str, int]] = []
        refusal = None
        if each.follow_ups and known is not None:
            try:
                for posting in each.follow_ups:
                    raw = pack(posting.message)
                    for queue, step, due, _ in self._lead(known, posting, raw, now):
                        postings.append((queue, step, due, _add(blobs, raw)))
            except Unroutable as error:
                refusal = str(error)
        results = [self._result(result, now, blobs) for result in each.results]
        if not (postings or refusal or results or each.how > 1 or each.dead is not None):
            return each.lease
        return (
            each.lease,
            int(each.how),
            postings or None,
            None if each.dead is None else (each.dead.reason, each.dead.error),
            results or None,
            each.note,
            repr(now + each.delay) if each.delay > 0 else None,
            each.unknown,
            each.redelivered,
            refusal,
        )

    def _result(self, result: Result, now: float, blobs: list[bytes]) -> tuple[object, ...]:
        left = 0
        if result.expires_at is not None:
            # What is over already goes at once, but is told.
            left = max(1, math.ceil((result.expires_at - now) * 1000))
        key = self._results.prefix + result.task_id
        return self._results.database, key, _add(blobs, result.meta), left

    # Routes

    def _routed(self, attempt: Callable[[Routes], Found | None]) -> Found:
        """What `attempt` gives; it is given the routes as they are known here and, where it gives
        None since they have changed, those that are there now."""
        for _ in range(_ROUTED_AGAIN):
            known = self._routes
            if is_fresh := known is NO_ROUTES:
                known = self._read_routes()
            try:
                reply = attempt(known)
            except (Unroutable, ImproperlyConfigured):
                if is_fresh:
                    raise
                reply = None
            if reply is not None:
                return reply
            self._routes = NO_ROUTES
        raise BrokerUnavailable(
            f"the queues of {self.location} changed {_ROUTED_AGAIN} times while something was to "
            "be stored; nothing was done. Look for a program that declares queues again and again"
        )

    def _perhaps_routed(
        self,
        settlements: Sequence[Settlement],
        attempt: Callable[[Routes | None], Found | None],
    ) -> Found:
        """The same; without follow-ups no route matters."""
        if any(each.follow_ups for each in settlements):
            return self._routed(attempt)
        reply = attempt(None)
        assert reply is not None
        return reply

    def _read_routes(self) -> Routes:
        known = self._looked(lambda: routes.read(self._link, self._keys))
        if int(known.version) < self._last_version and self._declared:
            # The server has lost its data: what this process had made exist is made again.
            queues, bindings = tuple(self._declared), tuple(self._bound)
            self._last_version, self._routes = 0, known
            self.declare(queues, bindings)
            known = self._looked(lambda: routes.read(self._link, self._keys))
        self._last_version = int(known.version)
        self._routes = known
        return known

    # Calls

    def _run(self, script: Script, *arguments: str | int | float | bytes) -> Reply:
        return self._looked(lambda: self._link.run(script, *arguments))

    def _call(self, *command: str | int | float | bytes) -> Reply:
        return self._looked(lambda: self._link.call(*command))

    def _calls(self, *commands: Sequence[str | int | float | bytes]) -> list[Reply]:
        replies: list[Reply] = self._looked(lambda: self._link.calls(commands))
        return replies

    def _looked(self, call: Callable[[], Found]) -> Found:
        """A call that may be repeated, so that a lost reply is but unavailability."""
        try:
            return call()
        except ReplyLost as error:
            raise self._link.lost(error) from error.__cause__

    def _promote(self) -> None:
        """Let what has fallen due wait, so that it is seen where it is."""
        due = self._call("ZRANGEBYSCORE", self._keys.own("due"), "-inf", self._now, "LIMIT", 0, 1)
        if due:
            self._run(self._scripts.promote, self._now)

    def _queue_names(self) -> list[str]:
        return sorted(name.decode() for name in self._call("HKEYS", self._keys.own("queues")))


def _run_record(run: bytes, info: bytes, seen: bytes) -> RunRecord:
    return RunRecord(run.decode(), info, float(seen))


def _askable(names: Iterable[str]) -> list[str]:
    """Each once, but for what isn't Unicode: the server can't be asked for it, and has none."""
    return [name for name in dict.fromkeys(names) if is_unicode(name)]


def _add(blobs: list[bytes], blob: bytes) -> int:
    """The number that the script knows it by: the first argument is the request."""
    blobs.append(blob)
    return len(blobs) + 1
