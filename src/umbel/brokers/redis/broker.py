"""``redis://``: broker, coordinator and inspector on one Redis server.

Every operation that changes something is one script (see ``lua/``), so it is atomic; what it says
is in `umbel.ports`. What is sent to the scripts, and what their replies mean, stands in the module
of its subject, the subjects' meeting here. Time comes from this driver's clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Final

from umbel.brokers.redis import (
    answering,
    coordinating,
    dead,
    forms,
    inspecting,
    relaying,
    revoking,
    sharing,
)
from umbel.brokers.redis.answering import RedisListener
from umbel.brokers.redis.keys import Keys
from umbel.brokers.redis.link import Link, Pool, ReplyLost, servers_at
from umbel.brokers.redis.routes import Routes
from umbel.brokers.redis.routing import Router
from umbel.brokers.redis.server import Server, encode
from umbel.brokers.redis.settling import ResultsBeside, Settling, perhaps_routed
from umbel.brokers.redis.waiting import Waiters
from umbel.clock import SYSTEM, Clock
from umbel.codec import pack
from umbel.coordination import check_count, check_holder, check_lease, check_take
from umbel.exceptions import BrokerUnavailable, PublishUnknown, RunLost, Unroutable
from umbel.exchanges import Binding
from umbel.message import Lost, Message, Posting, Settlement, Unreadable
from umbel.ports import (
    NOBODY,
    OUTAGE,
    Beat,
    BrokerOptions,
    DeadLetter,
    Features,
    HandedBack,
    Location,
    QueueStats,
    Relay,
    Revocation,
    RunRecord,
    Stored,
    Subscription,
    Turn,
)
from umbel.redisconnecting import Reply
from umbel.redisurl import Cluster, Servers

REMEMBERED: Final = 7 * 86_400.0
"""Seconds for which a run that has ended is still told so."""


class RedisBroker:
    """Broker, Coordinator and Inspector on a Redis server, or on the one of several that is meant.

    `keys` names the keys. `results`: where results that come with settlements are kept; None is
    in the broker's own database. `replicas`: how many must have what is stored before it counts.
    """

    def __init__(
        self,
        servers: str | Servers,
        options: BrokerOptions,
        *,
        clock: Clock = SYSTEM,
        keys: Keys | None = None,
        results: ResultsBeside | None = None,
        pool: Pool | None = None,
        replicas: int = 0,
    ) -> None:
        if isinstance(servers, str):
            servers = servers_at(servers)
        self._link = Link(servers, BrokerUnavailable, pool, replicas)
        self._options = options
        self._keys = keys or Keys()
        self._results = results or ResultsBeside(self._link.place.options.db)
        self._database = self._link.place.options.db
        self._server = Server(self._link, self._keys, clock)
        self._scripts = self._server.scripts
        self._router = Router(self._server)
        self._waiters = Waiters(self._server)
        self._restorer = sharing.Restorer(self._server, self._router)
        limits = options.dead_max_count, options.dead_max_age, options.dead_max_bytes
        self._limits = limits
        self._packed_limits = encode(limits)
        self._replies: dict[str, tuple[int, Turn]] = {}
        self._closed = True
        self.features = Features(
            processes=True,
            priority=True,
            atomic_follow_ups=True,
            lease_records=True,
            find=True,
            wait_takes=False,
            shared_with_celery=not isinstance(servers, Cluster),
            priority_steps=self._keys.steps,
        )

    @property
    def location(self) -> str:
        return self._server.location

    def open(self) -> None:
        self._link.open()
        self._waiters.open()
        if self._closed:
            self._closed = False
            self._waiters.version = revoking.version(self._server)

    def close(self) -> None:
        self._closed = True
        self._waiters.close()
        self._link.close()

    # Broker: messages

    def declare(
        self, queues: Sequence[str], bindings: Sequence[Binding] = (), *, run: str | None = None
    ) -> None:
        self._router.declare(queues, bindings, run)

    def unbind(self, bindings: Sequence[Binding]) -> int:
        return self._router.unbind(bindings)

    def publish(self, postings: Sequence[Posting]) -> None:
        if not postings:
            return
        packed = [(posting, pack(posting.message)) for posting in postings]
        now = self._server.clock.wall()

        def attempt(known: Routes) -> bool | None:
            arguments = self._router.arguments(known, packed, now)
            reply = self._link.run(self._scripts.publish, known.version, *arguments)
            if reply < 0:
                raise Unroutable(self._router.unheard(known, packed, now, -reply))
            return reply == 1 or None

        try:
            self._router.routed(attempt)
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
        now = self._server.clock.wall()
        names = list(dict.fromkeys(queues))

        def attempt(known: Routes | None) -> Reply | None:
            settling = Settling(self._router, self._results, known, now)
            request = (
                owner, number, names, settling.all(settlements), begin, limit, lost_only,
                repr(now), settling.version, self._limits,
            )  # fmt: skip
            reply = self._server.run(self._scripts.turn, encode(request), *settling.blobs)
            return None if reply[0] == 2 else reply

        reply = perhaps_routed(self._router, settlements, attempt)
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
        self._waiters.version = version
        return turn

    def _same_turn(self, owner: str) -> Turn:
        """This driver's last reply, where it is asked for again. Another driver's is read from
        the server, without what was settled in between on the owner's behalf."""
        if not self._server.call("EXISTS", self._keys.own(f"owner:{owner}")):
            raise RunLost(f"owner {owner!r} is not known to {self.location} (any more)")
        return self._replies[owner][1]

    def wait(self, queues: Sequence[str], timeout: float) -> bool:
        return self._waiters.wait(queues, timeout)

    @property
    def waiting(self) -> int:
        """How many threads wait now, for tests and tools."""
        return self._waiters.busy

    def interrupt(self) -> None:
        self._waiters.interrupt()

    # Broker: runs

    def enlist(self, run: str, owner: str | None, info: bytes) -> None:
        lease_time = repr(float(self._options.lease_time))
        reply = self._server.run(
            self._scripts.enlist, run, owner or "", info, self._server.now, lease_time
        )
        if not reply:
            raise RunLost(f"{owner or run!r} was ended in {self.location}; start a new run")

    def beat(self, run: str) -> Beat:
        reply = self._server.run(
            self._scripts.beat, run, self._server.now, repr(OUTAGE), repr(REMEMBERED),
            repr(revoking.KEPT), repr(revoking.LOOK_FOR_OLD), self._packed_limits,
        )  # fmt: skip
        if len(reply) == 1:
            return Beat(alive=False, revocations=reply[0])
        version, heartbeat, peers, reclaimed, death, old = reply
        if old:
            revoking.forget(self._server, old)
        return Beat(
            alive=True,
            revocations=version,
            peers=tuple(RunRecord(run.decode(), info, float(seen)) for run, info, seen in peers),
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
        now = self._server.clock.wall()
        lost = [(lease, str(why.loss), why.detail) for lease, why in running.items()]

        def attempt(known: Routes | None) -> bool | None:
            settling = Settling(self._router, self._results, known, now)
            settled = settling.all(decided)
            request = owner, settled, lost, repr(now), settling.version, self._limits
            reply = self._server.run(self._scripts.abandon, encode(request), *settling.blobs)
            return reply == 1 or None

        perhaps_routed(self._router, decided, attempt)
        self._replies.pop(owner, None)

    def leave(self, run: str) -> None:
        self._server.run(self._scripts.leave, run, self._server.now, self._packed_limits)

    def held(self, owner: str) -> frozenset[int]:
        return frozenset(map(int, self._server.call("HKEYS", self._keys.own(f"leases:{owner}"))))

    def tend(self) -> float:
        if not self.features.shared_with_celery:
            return inf
        self._restorer.restore()
        return sharing.LOOK

    def hand_back(self) -> HandedBack:
        if not self.features.shared_with_celery:
            return HandedBack()
        delayed = sharing.hand_back_delayed(self._server)
        buried = self._server.run(self._scripts.bury_lost, self._server.now, self._packed_limits)
        return HandedBack(delayed, buried)

    # Broker: broadcasts

    def broadcast(self, channel: str, payload: bytes) -> None:
        self._server.call("PUBLISH", self._keys.channel(self._database, channel), payload)

    def subscribe(self, channels: Sequence[str]) -> Subscription:
        return relaying.subscription(self._server, channels)

    def relay(self, queues: Sequence[str]) -> Relay | None:
        return relaying.relay(self._server, self._router, queues)

    def listen(self, exchange: str, routing_key: str) -> Subscription:
        return RedisListener(self._server, self._waiters, exchange, routing_key)

    def answer(self, exchange: str, routing_key: str, payload: bytes) -> None:
        answering.answer(self._server, exchange, routing_key, payload)

    # Coordinator

    def revoke(self, revocations: Sequence[Revocation], *, once: str = "") -> frozenset[str]:
        return revoking.revoke(self._server, revocations, once)

    def revoked(self, since: int) -> tuple[int, tuple[Revocation, ...]]:
        return revoking.since(self._server, since)

    def unrevoke(self, task_ids: Sequence[str]) -> None:
        revoking.unrevoke(self._server, task_ids)

    def acquire(self, name: str, holder: str, seconds: float) -> bool:
        check_lease(name, holder, seconds)
        return coordinating.acquire(self._server, name, holder, seconds)

    def release(self, name: str, holder: str) -> bool:
        check_holder(name, holder)
        return coordinating.release(self._server, name, holder)

    def take(self, bucket: str, amount: float, rate: float, burst: float) -> float:
        check_take(bucket, amount, rate, burst)
        return coordinating.take(self._server, bucket, amount, rate, burst)

    def count(self, name: str, by: int, seconds: float) -> int:
        check_count(name, by, seconds)
        return coordinating.count(self._server, name, by, seconds)

    # Inspector

    def queues(self) -> tuple[QueueStats, ...]:
        return inspecting.queues(self._server)

    def bindings(self) -> tuple[Binding, ...]:
        return self._router.bindings()

    def runs(self) -> tuple[RunRecord, ...]:
        return inspecting.runs(self._server)

    def peek(self, queue: str, limit: int) -> tuple[Message | Unreadable, ...]:
        return inspecting.peek(self._server, queue, limit)

    def find(self, task_id: str) -> tuple[Location, ...]:
        return tuple(each.place for each in self.stored(task_id))

    def stored(self, task_id: str) -> tuple[Stored, ...]:
        return inspecting.stored(self._server, task_id)

    def purge(self, queues: Sequence[str]) -> int:
        return inspecting.purge(self._server, queues)

    def dead(self, queue: str | None = None, limit: int | None = None) -> tuple[DeadLetter, ...]:
        return dead.letters(self._server, queue, limit)

    def dead_find(self, task_id: str) -> DeadLetter | None:
        return next(iter(dead.of_id(self._server, task_id)), None)

    def dead_requeue(self, task_id: str, posting: Posting) -> bool:
        return dead.requeue(self._server, self._router, task_id, posting)

    def dead_delete(self, task_ids: Sequence[str] | None, queue: str | None = None) -> int:
        return dead.delete(self._server, task_ids, queue)

    def dead_prune(self) -> int:
        dropped: int = self._server.run(
            self._scripts.dead_prune, self._server.now, self._packed_limits
        )
        return dropped
