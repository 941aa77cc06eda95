"""What Umbel asks of a broker and a result store: four small protocols and their contract.

Drivers store bytes and know no tasks. All operations are synchronous and thread-safe; batches
are their unit. `umbel.testing.contract` holds one suite per port, which every driver passes.

How a message moves::

      publish ─► ready ◄─────── due ◄── publish with due_at, release with delay
                   │  ▲
              turn │  │ release (uncounted), requeue (counted), abandon, reclaim
                   ▼  │
                 leased ──► ack: gone       reject or ack with `dead`: dead letter
                   │
                   └──► begun by a dead owner: set aside (lost), handed out again for burial

Words: a *run* is one start of one worker; an *owner* is ``<run>#<n>``, one pool process of it.
Leases belong to owners and live as long as the run does. A driver is opened in the process that
uses it, never carried through a fork.

Errors: `BrokerUnavailable` (nothing was done; repeat it), `PublishUnknown` (the reply was lost),
`Unroutable` (nothing was stored). No client library's exception leaves a driver.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from types import MappingProxyType
from typing import Final, Protocol, runtime_checkable

from msgspec import Struct

from umbel.exchanges import Binding
from umbel.message import Delivery, Lost, Message, Posting, Result, Settlement, Unreadable

NOBODY: Final[Mapping[int, Lost]] = MappingProxyType({})
OUTAGE: Final = 1.5
"""Heartbeats after which nobody's having beaten is an outage. With 2, a run that had beaten just
before an outage of nearly two heartbeats, and reconnects last, would be a whole lease old."""


class Features(Struct, frozen=True):
    """What a driver can do. Where a flag is off, the suites assert what is said here.

    That messages due later wait in the broker is no flag: every driver must.
    """

    processes: bool
    """Several processes can use one broker. Else (memory://) no worker starts with it."""
    priority: bool
    """9 is served before 0. Else all come in the order of arrival."""
    atomic_follow_ups: bool
    """A settlement and its follow-ups are one step. Else each follow-up is stored, and confirmed,
    before the settlement: a crash in between repeats but never loses, and a settlement that is
    refused may leave those of its follow-ups that had a queue."""
    lease_records: bool
    """The broker knows which leases an owner holds and which were begun. Else the driver itself
    numbers what it hands out, and `begin` marks nothing: all that a dead run held goes back as
    redelivered, and only `abandon` sets anything aside."""
    find: bool
    """A message can be found by its id. Else `find` gives nothing, `revoke` finds and moves
    nothing, and `why` says that it can't look; dead letters are found all the same."""
    wait_takes: bool
    """`wait` may take messages, since the server pushes them. They are nobody else's until this
    driver's next turn hands them out, or it closes. Else it takes nothing."""
    exclusive_turns: bool = False
    """A turn keeps all other processes out until it has ended, and needs this process's
    interpreter for that; so no task is started meanwhile, since it might not let go of it."""
    shared_with_celery: bool = False
    """Celery's workers may use the same queues, and obey the same commands; the broker doesn't know
    who they are. `tend` gives back what dead ones of them held, and `hand_back` lets them have
    what our own keys hold. Else neither does anything."""
    priority_steps: tuple[int, ...] = tuple(range(10))
    """The priorities that are told apart, ascending from 0: each other one counts as the largest
    of these that isn't above it."""


class BrokerOptions(Struct, frozen=True):
    """What every driver is opened with. Times in seconds, sizes in bytes."""

    lease_time: float = 30.0
    """How long a run's leases outlive its last sign of life; heartbeats come every third."""
    dead_max_count: int = 10_000
    dead_max_age: float = 14 * 86_400.0
    dead_max_bytes: int = 64 * 2**20

    @property
    def heartbeat(self) -> float:
        """Seconds between two heartbeats of a run."""
        return self.lease_time / 3


class Turn(Struct, frozen=True):
    """The reply to one turn."""

    deliveries: tuple[Delivery, ...] = ()
    lost: frozenset[int] = frozenset()
    """Leases in the settlements that this owner no longer held: nothing of them was applied."""
    refused: tuple[tuple[int, str], ...] = ()
    """(lease, sentence): a follow-up was unroutable; the delivery is still leased."""
    revocations: int = 0
    """The version of the revocation log."""


class HandedBack(Struct, frozen=True):
    """What `hand_back` found. `delayed` messages are now Celery's to deliver; `buried` ones, which
    had begun when their worker died, are dead letters now."""

    delayed: int = 0
    buried: int = 0


class RunRecord(Struct, frozen=True):
    """A run that the broker takes for alive: its id, its `info`, its last sign of life."""

    run: str
    info: bytes
    seen_at: float


class Beat(Struct, frozen=True):
    """The reply to a heartbeat."""

    alive: bool
    """False: the run was taken for dead (or never enlisted); it holds nothing any more."""
    revocations: int = 0
    peers: tuple[RunRecord, ...] = ()
    """The other living runs."""
    reclaimed: int = 0
    """Deliveries of dead runs that this beat put back or set aside."""
    next_death_in: float | None = None
    """Seconds until the first of the peers is dead unless it beats; None where there is none."""
    heartbeat: float = inf
    """Seconds until this run must beat again, whatever its own lease time: the heartbeat of the
    living run, itself included, whose lease is the shortest. Silence for longer is an outage to
    the broker, and an outage is nobody's death."""


class Subscription(Protocol):
    """A listener, from the moment it was made."""

    def get(self, timeout: float) -> tuple[str, bytes] | None:
        """The next (channel, payload), or None after `timeout` seconds."""
        ...

    def close(self) -> None: ...


class Relay(Protocol):
    """Brings in what strangers have published; see `Broker.relay`. Of one thread."""

    def carry(self, timeout: float) -> None:
        """Bring in what comes next, if it comes within `timeout` seconds. After
        `BrokerUnavailable`, the next call goes on with the same."""
        ...

    def close(self) -> None:
        """Let `carry` return, in whatever thread. Fine twice."""
        ...


class Broker(Protocol):
    """Keeps messages until they are settled."""

    features: Features

    @property
    def location(self) -> str:
        """The database behind this driver. A result store of the same location shares it."""
        ...

    def open(self) -> None:
        """Connect, and create what is missing. Fine twice."""
        ...

    def close(self) -> None:
        """Let go of all connections. Fine twice; waiting calls return."""
        ...

    def declare(
        self, queues: Sequence[str], bindings: Sequence[Binding] = (), *, run: str | None = None
    ) -> None:
        """Make the queues and the bindings, and the queues of these, exist. Idempotent; atomic.

        Bindings add to those that there are, and are kept. With a `run`, queues that don't exist
        yet are that run's own: when it leaves or is reclaimed they go, with their bindings and all
        that waits in them; what had begun becomes a dead letter. Raises `RunLost` for a run that
        isn't enlisted, and `ImproperlyConfigured` for a binding whose exchange has bindings of
        another type, and for a run's own queue that isn't.
        """
        ...

    def unbind(self, bindings: Sequence[Binding]) -> int:
        """Take bindings away; how many there were. An exchange goes with its last one."""
        ...

    def publish(self, postings: Sequence[Posting]) -> None:
        """Store all or raise; atomic. `Unroutable`: a routing key that no queue has, or that no
        binding of the named exchange takes.

        What is published to an exchange is stored once in every queue that it leads to at that
        moment; these copies have nothing to do with each other any more. Besides its bindings,
        each queue is bound by its own name to the direct exchange of its own name.
        """
        ...

    def enlist(self, run: str, owner: str | None, info: bytes) -> None:
        """Make a run (and an owner of it) known and alive. Idempotent; replaces `info`.

        `info` is opaque: whoever buries the run's tasks reads it in `Lost.info`. It is a sign of
        life, but not a heartbeat: a newcomer must not hide an outage.
        Raises `RunLost` for a run that is taken for dead, and for an owner that was abandoned:
        its leases would start at 1 again, and a late settlement could hit another delivery.
        """
        ...

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
        """Settle, mark as begun, and lease up to `limit` more, in one atomic step.

        `number` rises by one with each new turn of an owner. Repeating the last number, after
        a reply was lost, changes nothing and gives the same reply. Number 0 is for somebody who
        acts for the owner (its supervisor): such a turn isn't remembered and takes no number
        from the owner's own; that it only settles makes repeating it harmless.
        Each settlement is applied whole or, where its lease is another's by now or was never
        this owner's, not at all (`lost`). `begin` marks all leases of this owner up to that
        number, also those that this very call or a later one hands out; it never falls.
        Handed out are first what is to be buried, then by priority (9 first), then in the order
        of arrival, from `queues` taken together; with `lost_only` nothing but burials.
        Messages whose due time has come are ready, in the order of due times. Raises `RunLost`
        where the run or the owner isn't known (any more).
        """
        ...

    def wait(self, queues: Sequence[str], timeout: float) -> bool:
        """Block until something may be ready in `queues`, or `timeout` seconds; takes nothing.

        True where it is worth a turn. Also returns when a message falls due, when the
        revocation log grows, and on `interrupt`.
        """
        ...

    def interrupt(self) -> None:
        """Let `wait`, in whatever thread of this process, return at once, now or when next
        called. Safe from any thread."""
        ...

    def beat(self, run: str) -> Beat:
        """Renew a run's life and, in the same step, reclaim what dead runs held.

        Where nobody has beaten for more than `OUTAGE` times `Beat.heartbeat`, or the clock went
        backwards, all runs are renewed first: an outage is not a death. A run is dead when its own
        last beat is then older than the lease time that it was enlisted with. Of a dead run, what
        was held goes back in its old order, uncounted and marked as redelivered; what was begun
        is set aside with `Loss.WORKER`. A burial that was under way stays the burial that it was.
        Dead letters and revocations whose time is over are dropped.
        """
        ...

    def abandon(
        self,
        owner: str,
        *,
        decided: Sequence[Settlement] = (),
        running: Mapping[int, Lost] = NOBODY,
    ) -> None:
        """End an owner whose process is dead, in one step, with what is known of its leases.

        `decided` are applied as in a turn; leases in `running` are set aside for burial, each with
        its reason (whose `info` is filled in from the run); all others go back, uncounted, in their
        old order, marked begun or not. The owner is gone. An unknown owner is no error. A
        refused follow-up of a decided settlement sets the lease aside, with the sentence.
        """
        ...

    def leave(self, run: str) -> None:
        """End a run: owners that are left are treated as in a reclaim. Fine for unknown runs."""
        ...

    def held(self, owner: str) -> frozenset[int]:
        """The leases that the broker takes for this owner's."""
        ...

    def tend(self) -> float:
        """Do what the broker needs done now and then by any living worker; the seconds until it is
        due again. `inf`: it never is."""
        ...

    def hand_back(self) -> HandedBack:
        """Put what our own keys hold where Celery's workers find it: what is due later among what
        waits, with its due time as its `eta`, and what awaits burial, which no Celery worker would
        do, among the dead letters. It is for when no worker of ours runs any more; what one leases
        stays, and one that comes later takes the rest up again.
        """
        ...

    def broadcast(self, channel: str, payload: bytes) -> None:
        """Tell all present subscribers of `channel`; nothing is kept for later ones.

        A channel is a fanout exchange of this name, and strangers are at it too, so that the
        payload is to be an envelope (`umbel.codec`).
        """
        ...

    def subscribe(self, channels: Sequence[str]) -> Subscription: ...

    def relay(self, queues: Sequence[str]) -> Relay | None:
        """What from now on stores in `queues` what strangers publish to the fanout exchanges that
        these are bound to, in each queue once, however many relays there are. None where the
        server does so by itself, where no strangers can be, or where there are no such bindings.
        """
        ...

    def listen(self, exchange: str, routing_key: str) -> Subscription:
        """Hear what is answered there, also by strangers who publish to this direct exchange.

        A key is one listener's own. Nothing of it is left once it is closed; one whose process
        died is cleared away after an hour at the latest, which is also how long it hears.
        """
        ...

    def answer(self, exchange: str, routing_key: str, payload: bytes) -> None:
        """Tell who listens there, a stranger too; nothing where nobody does. Repeating it after
        `BrokerUnavailable` may tell it twice."""
        ...


class ResultStore(Protocol):
    """Keeps states and values by task id.

    Asked for an id that isn't Unicode (half of a surrogate pair) it has none.
    """

    @property
    def location(self) -> str:
        """The database behind this store; see `Broker.location`."""
        ...

    def open(self) -> None: ...

    def close(self) -> None: ...

    def put(self, results: Sequence[Result]) -> None:
        """Store, replacing older records, except that a SUCCESS that hasn't expired stays."""
        ...

    def get(self, task_ids: Sequence[str]) -> list[Result | None]:
        """The records, in the order asked for; None where there is none or it has expired."""
        ...

    def wait(self, task_ids: Sequence[str], timeout: float) -> Sequence[Result | None] | None:
        """Return once one of the records may have changed since this call began or is already
        in a ready state, at the latest after `timeout` seconds. Spurious returns are fine.

        The records as they were at that moment, in the order asked for, where the store has come
        to know them while it waited; None: ask `get`.
        """
        ...

    def interrupt(self) -> None:
        """Let `wait` return at once in every thread of this process, now or when that thread next
        calls it. Safe from any thread."""
        ...

    def forget(self, task_ids: Sequence[str]) -> None:
        """Delete the records, whatever their state."""
        ...

    def prune(self, keep: int | None = None) -> int:
        """Delete what has expired and, where `keep` is given, all SUCCESSes but the newest that
        many; how many. A store whose server lets records go by itself deletes nothing."""
        ...


class Revocation(Struct, frozen=True):
    """A request that a task shall not run; with `terminate`, that it shall stop running.

    `signal` is a signal's name, ``SIGTERM`` unless the caller says otherwise.
    """

    task_id: str
    terminate: bool = False
    signal: str = "SIGTERM"


class Coordinator(Protocol):
    """What workers must agree on: the log of revocations, named leases, token buckets, counters.

    Leases, buckets and counters come into being when they are used, and go when they are over.
    They count with the callers' clocks, which may differ by 10 seconds; beyond that a lease may
    end too early, and a bucket give too much. A clock that is set back makes nothing last for
    ever. Names are any Unicode text that isn't empty; what can't be raises `ValueError`.
    """

    def revoke(self, revocations: Sequence[Revocation], *, once: str = "") -> frozenset[str]:
        """Append to the log; the ids that were found waiting or due later, which are now first
        in their queue, so that a worker ends them at once.

        An entry is kept 3 hours, and as long as a message of that id is in the broker. A requeue
        ends the first place. `once` names a command that several workers have heard: within an
        hour only the first call with this name does anything.
        """
        ...

    def revoked(self, since: int) -> tuple[int, tuple[Revocation, ...]]:
        """(version, entries added after version `since`), oldest first."""
        ...

    def unrevoke(self, task_ids: Sequence[str]) -> None:
        """Take ids out of the log; its version rises. `revoked(since)` tells only what was added:
        who keeps ids asks the log again before acting on one."""
        ...

    def acquire(self, name: str, holder: str, seconds: float) -> bool:
        """Whether `holder` has the lease `name` now, for `seconds` from now on.

        It is given where nobody has it or its time is over, and renewed to whoever has it. So it
        may be repeated. Nothing tells a holder that was away for too long (suspended, cut off)
        that it is another's by now: what must not be done twice needs a check of its own where it
        is done. Choose `seconds` well above what clocks may differ by.
        """
        ...

    def release(self, name: str, holder: str) -> bool:
        """Give a lease back; whether it was the holder's until now."""
        ...

    def take(self, bucket: str, amount: float, rate: float, burst: float) -> float:
        """Take `amount` tokens out of a bucket: 0.0, or the seconds until they will be there, and
        nothing is taken.

        It holds `burst` tokens at most, is full at first, and is filled at `rate` tokens per
        second. Who waits has no place in a line: others may come first. After
        `BrokerUnavailable` they may have been taken.
        """
        ...

    def count(self, name: str, by: int, seconds: float) -> int:
        """Add `by`, which may be negative, to a counter; its new value. 0 only reads it.

        It is 0 at first, and again `seconds` after its last change. After `BrokerUnavailable` it
        may have been changed.
        """
        ...


class QueueStats(Struct, frozen=True):
    """How many messages of one queue are where. `lost` await burial."""

    name: str
    ready: int = 0
    delayed: int = 0
    leased: int = 0
    lost: int = 0
    dead: int = 0


class Ready(Struct, frozen=True):
    """Waiting: `position` messages of the queue are before it."""

    queue: str
    position: int


class Delayed(Struct, frozen=True):
    """Due later. `unknown_since_at`: no worker that took it knew the task's name."""

    queue: str
    due_at: float
    unknown_since_at: float | None = None


class Leased(Struct, frozen=True):
    """Held by a worker's process; `begun` if marked as about to run."""

    queue: str
    owner: str
    lease: int
    begun: bool


class SetAside(Struct, frozen=True):
    """Was running when its process or worker died; waits for its burial."""

    queue: str
    loss: str
    detail: str


class DeadLetter(Struct, frozen=True):
    """A message that will not be tried again unless a person asks.

    `history` holds (unix seconds, sentence), oldest first: counted redeliveries, and the end.
    The newest dead letter of a queue is kept whatever its size.
    """

    id: str
    queue: str
    message: Message | Unreadable
    reason: str
    error: str
    died_at: float
    redeliveries: int = 0
    history: tuple[tuple[float, str], ...] = ()


Location = Ready | Delayed | Leased | SetAside | DeadLetter


class Stored(Struct, frozen=True):
    """A message where it is: `raw` is what the broker keeps there, byte for byte, which has what is
    counted beside the message in it, or around it, in the broker's own form."""

    place: Location
    raw: bytes
    message: Message | Unreadable


@runtime_checkable
class Inspector(Protocol):
    """What the command line and a dashboard stand on.

    Ids and queues may be any text: of one that isn't Unicode (half of a surrogate pair) there is
    nothing.
    """

    def queues(self) -> tuple[QueueStats, ...]:
        """All declared queues, by name."""
        ...

    def bindings(self) -> tuple[Binding, ...]:
        """All that were declared, by exchange and queue."""
        ...

    def runs(self) -> tuple[RunRecord, ...]:
        """All runs that are taken for alive, oldest first."""
        ...

    def peek(self, queue: str, limit: int) -> tuple[Message | Unreadable, ...]:
        """The next messages of a queue, in the order of delivery; takes nothing."""
        ...

    def find(self, task_id: str) -> tuple[Location, ...]:
        """Wherever messages of this id are; empty where there is none."""
        ...

    def stored(self, task_id: str) -> tuple[Stored, ...]:
        """The same, with the messages themselves."""
        ...

    def purge(self, queues: Sequence[str]) -> int:
        """Delete what waits or is due later in the queues; how many. What is leased or set aside
        stays."""
        ...

    def dead(self, queue: str | None = None, limit: int | None = None) -> tuple[DeadLetter, ...]:
        """Dead letters, oldest first; of all queues where none is named."""
        ...

    def dead_find(self, task_id: str) -> DeadLetter | None:
        """The newest dead letter of this id."""
        ...

    def dead_requeue(self, task_id: str, posting: Posting) -> bool:
        """In one step: delete the dead letters of this id, take the id out of the revocations,
        and store `posting`. False, and nothing done, where there is no such dead letter, and for
        the empty id, which dead letters of different tasks may have."""
        ...

    def dead_delete(self, task_ids: Sequence[str] | None, queue: str | None = None) -> int:
        """Delete dead letters: those ids, or (None) all of `queue` or of all queues."""
        ...

    def dead_prune(self) -> int:
        """Drop the dead letters that are over the limits of `BrokerOptions`; how many."""
        ...
