"""The I/O thread of a pool process: it takes turns at the broker.

One turn settles what has been decided, marks the next tasks as begun and leases more. How much is
leased and marked follows from how long the tasks take: besides one for each free lane, what is
leased ahead is about 30 ms of work, what is marked at most 10 ms and 16 tasks; and when nothing has
started for 30 ms, all that waits goes back, so that an idle process elsewhere can have it.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from msgspec.structs import replace

from umbel.clock import boot_time
from umbel.drivers import BrokerDriver
from umbel.exceptions import BackendStoreError, BrokerUnavailable, OperationalError
from umbel.exchanges import Binding, takers, unbound
from umbel.message import Dead, Delivery, How, Settlement
from umbel.ports import ResultStore, Revocation, Turn
from umbel.worker.desk import Desk, Refused
from umbel.worker.execution import Execution
from umbel.worker.patience import longest_pause
from umbel.worker.revocations import Revocations
from umbel.worker.scoreboard import Word
from umbel.worker.storing import store_first, without_results

logger = logging.getLogger("umbel.worker")

AHEAD: Final = 0.030
MOST_AHEAD: Final = 64
MOST_AT_ONCE: Final = 128
"""Leases that one turn may bring, so that processes with many lanes share what there is."""
MARKED: Final = 0.010
MOST_MARKED: Final = 16
LONG: Final = 0.030
OUTCOME_PATIENCE: Final = 0.005
IDLE_WAIT: Final = 1.0
LAST_WAIT: Final = 10.0
FIRST_PAUSE: Final = 0.02

T = TypeVar("T")
Unstorable = Callable[[Execution, Settlement, BackendStoreError], Settlement]
"""What becomes of an outcome whose result the store refuses for good."""


@dataclass(frozen=True, slots=True)
class Diet:
    """How a consumer eats: its queues, and `worker_prefetch_multiplier` (None adapts)."""

    queues: Sequence[str]
    multiplier: int | None = None
    burials_only: bool = False


class Consumer:
    """Feeds one pool process. `run` is the body of its I/O thread; `RunLost` leaves it."""

    def __init__(
        self,
        broker: BrokerDriver,
        store: ResultStore | None,
        owner: str,
        desk: Desk,
        diet: Diet,
        *,
        unstorable: Unstorable,
        lease_time: float,
        last_wait: float = LAST_WAIT,
    ) -> None:
        self._unstorable = unstorable
        self._broker = broker
        self._separate_store = None if store and store.location == broker.location else store
        self._owner = owner
        self._desk = desk
        self._diet = diet
        self._longest_pause = longest_pause(lease_time)
        self._last_wait = last_wait
        self._give_up_at: float | None = None
        self._number = 0
        self._held: deque[Delivery] = deque()
        self._returns: list[int] = []
        self._has_freed = False
        """What waited for a free lane was given back, since the main thread didn't start it."""
        self._more = False
        self._was_away = False
        self._declared = {*diet.queues}
        self.revocations = Revocations(broker)

    def run(self) -> None:
        """Take turns until the desk says stop and everything is settled."""
        while self._step():
            pass

    def _step(self) -> bool:
        """One pause and the turn that it calls for; False at the end."""
        desk = self._desk
        if desk.stopping or desk.retiring:
            return self._step_to_the_end()
        if self._is_hungry():
            return self._step_hungry()
        desk.wait_for_call(self._patience())
        if self._diet.multiplier is None and self._stands_still() > LONG:
            self._give_back()
        if self._calls_for_a_turn():
            self._turn()
        return True

    def _step_hungry(self) -> bool:
        """A lane is free and nothing waits for it: wait until something may be there, and ask."""
        if not self._more and self._number and not self._diet.burials_only:
            self._wait_at_the_broker()
        brought = self._turn()
        return brought or not self._diet.burials_only

    def _step_to_the_end(self) -> bool:
        """Give back what hasn't started, and settle what runs once it has ended."""
        self._give_back()
        if self._is_idle():
            return False
        if not self._calls_for_a_turn():
            self._desk.wait_for_call(LONG)
        if self._calls_for_a_turn():
            self._turn()
        return True

    def _wait_at_the_broker(self) -> None:
        try:
            self._desk.wait_at(lambda: self._broker.wait(self._diet.queues, IDLE_WAIT))
        except BrokerUnavailable:
            time.sleep(min(IDLE_WAIT, self._longest_pause))

    # What the next turn asks for.

    def _started(self) -> int:
        """The newest lease that has started or can't start any more."""
        return max(self._desk.newest, self._desk.slot.words[Word.SKIP_TO])

    def _unstarted(self) -> int:
        # The supervisor may have given back what a turn under way is only about to bring.
        return max(0, self._desk.slot.words[Word.HIGH] - self._started())

    def _is_idle(self) -> bool:
        desk = self._desk
        return not (desk.unsettled or desk.outcomes or self._returns or self._unstarted())

    def _is_hungry(self) -> bool:
        """Whether a lane is free and nothing is here for it, nor to be settled."""
        desk = self._desk
        if self._is_stuck() or desk.free_lanes.empty():
            return False
        if desk.unsettled and (desk.lanes == 1 or self._diet.burials_only):
            return False
        return not (desk.outcomes or self._returns or self._unstarted())

    def _stands_still(self) -> float:
        """Seconds for which nothing has started although it might: all lanes are busy, or what
        runs doesn't let the main thread start what waits; 0 where things move."""
        desk = self._desk
        if desk.free_lanes.empty():
            return boot_time() - desk.newest_at
        if desk.lanes > 1 and self._unstarted():
            return boot_time() - max(desk.newest_at, desk.handed_at)
        return 0.0

    def _is_stuck(self) -> bool:
        """Whether the main thread hasn't come back yet since it left waiting what it could
        start."""
        self._has_freed = self._has_freed and self._desk.started < self._desk.handed
        return self._has_freed

    def _patience(self) -> float:
        if self._desk.outcomes or self._returns:
            return OUTCOME_PATIENCE
        return LONG / 3 if self._unstarted() else IDLE_WAIT

    def _calls_for_a_turn(self) -> bool:
        """Whether there is something to settle, or the main thread needs the next mark."""
        if self._desk.outcomes or self._returns:
            return True
        return bool(self._held) and self._desk.slot.words[Word.BEGUN] <= self._started()

    def _appetite(self) -> int:
        """How many more to lease: what fills `AHEAD` seconds, and one for a free process."""
        desk = self._desk
        if desk.stopping or desk.retiring:
            return 0
        unstarted = self._unstarted()
        free = desk.free_lanes.qsize()
        if self._diet.multiplier is not None:
            most = (self._diet.multiplier or MOST_AHEAD) * desk.lanes
            return max(0, min(most - unstarted, MOST_AT_ONCE))
        if self._stands_still() > LONG or self._is_stuck():
            return 0
        ahead = self._ahead() if free or self._more else 0
        return max(0, min(max(free, ahead) - unstarted, MOST_AT_ONCE))

    def _ahead(self) -> int:
        return self._tasks_in(AHEAD, MOST_AHEAD)

    def _marks(self) -> int:
        """How many unstarted leases may be marked as begun."""
        free = self._desk.free_lanes.qsize()
        return max(1, free, self._tasks_in(MARKED, MOST_MARKED))

    def _tasks_in(self, seconds: float, most: int) -> int:
        """How many tasks this process ends in so many seconds, as far as it knows."""
        average = self._desk.average
        if average is None:
            return 0
        return min(most, int(seconds * self._desk.lanes / max(average, 1e-9)))

    # The turn.

    def _turn(self) -> bool:
        """Take one turn; True where it brought something."""
        ended = [self._desk.outcomes.popleft() for _ in range(len(self._desk.outcomes))]
        returned = [Settlement(lease, How.RELEASE) for lease in self._returns]
        self._returns = []
        # First of all: a stop may come while the store is away, and nothing is leased after it.
        settlements = self._store_first([*self._without_unroutable(ended), *returned])
        limit = self._appetite()
        begin = self._started() + self._marks()
        self._desk.slot.words[Word.FETCHING] = int(limit > 0)
        reply = self._reach_the_broker(settlements, begin, limit)
        self._more = bool(limit) and len(reply.deliveries) == limit
        postponed = self._postponed(settlements)
        self._take_stock(settlements, reply)
        self._insist(lambda: self.revocations.follow(reply.revocations))
        self._hurry_revoked(postponed)
        self._hand_out(reply, begin)
        if self._was_away:
            self._reconcile()
        return bool(reply.deliveries or settlements)

    def _postponed(self, settlements: Sequence[Settlement]) -> list[str]:
        """The ids of what goes back with a delay."""
        held = self._desk.unsettled
        return [
            held[each.lease].request.id or ""
            for each in settlements
            if each.delay and each.lease in held
        ]

    def _hurry_revoked(self, task_ids: Sequence[str]) -> None:
        """Of what has just gone back with a delay, revoke once more what was revoked while it was
        held here: now the broker finds it, and it needn't wait out its time."""
        again = [Revocation(each) for each in task_ids if self.revocations.names(each)]
        if again:
            self._insist(lambda: self._broker.revoke(again))

    def _reach_the_broker(self, settlements: Sequence[Settlement], begin: int, limit: int) -> Turn:
        """The reply to the turn, however long the broker or the result store is away.

        A turn whose reply was lost is repeated under its number, so nothing is done twice.
        """
        self._number += 1

        def turn() -> Turn:
            self._declare_targets(settlements)
            with self._desk.turn_gate:
                return self._broker.turn(
                    self._owner,
                    self._number,
                    queues=self._diet.queues,
                    settlements=settlements,
                    begin=begin,
                    limit=limit,
                    lost_only=self._diet.burials_only,
                )

        return self._insist(turn)

    def _declare_targets(self, settlements: Sequence[Settlement]) -> None:
        """Make queues exist that tasks have named for their retries: the router took the name."""
        if new := targets(settlements) - self._declared:
            self._broker.declare(sorted(new))
            self._declared |= new

    def _without_unroutable(self, settlements: Sequence[Settlement]) -> Sequence[Settlement]:
        """Where the result store is another database, nothing is stored of an end whose follow-ups
        the broker would refuse; whoever waits for that settlement hears of it here."""
        if self._separate_store is None:
            return settlements
        through = [each for each in settlements if any(p.exchange for p in each.follow_ups)]
        if not through:
            return settlements
        bindings = self._insist(self._broker.bindings)
        refused = {each.lease: why for each in through if (why := _unroutable(each, bindings))}
        for lease, why in refused.items():
            self._desk.tell(lease, Refused(self._desk.unsettled[lease].delivery, why))
        return [each for each in settlements if each.lease not in refused]

    def _store_first(self, settlements: Sequence[Settlement]) -> Sequence[Settlement]:
        """Where the result store is another database: store, then settle without results."""
        store = self._separate_store
        if store is None or not any(settlement.results for settlement in settlements):
            return settlements
        try:
            return self._insist(lambda: store_first(store, settlements, self._refused_by_store))
        except OperationalError as error:
            return [self._without_store(settlement, error) for settlement in settlements]

    def _refused_by_store(self, settlement: Settlement, error: BackendStoreError) -> Settlement:
        execution = self._desk.unsettled.get(settlement.lease)
        logger.error("A result can't be stored: %s", error)
        if execution is None:
            return replace(settlement, result=None)
        return self._unstorable(execution, settlement, error)

    def _without_store(self, settlement: Settlement, error: OperationalError) -> Settlement:
        """The worker stops and the result can't be stored: what may run again goes back, what
        may not is kept in the dead letters with its outcome."""
        result = settlement.result
        execution = self._desk.unsettled.get(settlement.lease)
        if result is None or execution is None:
            return without_results(settlement)
        if execution.options.acks_late:
            return Settlement(settlement.lease, How.RELEASE, redelivered=True)
        outcome = result.meta[:400].decode("utf-8", "replace")
        dead = Dead(
            f"{result.state}, but the result store was away: {outcome}", type(error).__name__
        )
        return replace(without_results(settlement), how=How.REJECT, dead=dead)

    def _insist(self, ask: Callable[[], T]) -> T:
        """The answer, however long it takes; gives up when stopping takes too long."""
        pause = FIRST_PAUSE
        while True:
            try:
                return ask()
            except OperationalError as error:
                if self._gives_up():
                    raise
                logger.warning("%s Trying again in %.2f s; running tasks go on.", error, pause)
                time.sleep(pause)
                self._was_away = True
                pause = min(pause * 2, self._longest_pause)

    def _gives_up(self) -> bool:
        """Whether a stop has waited long enough for a broker or a store that is away."""
        if not self._desk.stopping or self._desk.unkept > 0:
            return False
        now = time.monotonic()
        if self._give_up_at is None:
            self._give_up_at = now + self._last_wait
        return now >= self._give_up_at

    def _reconcile(self) -> None:
        """After an outage: what the broker takes for ours and we know nothing of goes back."""
        self._was_away = False
        held = self._insist(lambda: self._broker.held(self._owner))
        started, high = self._started(), self._desk.slot.words[Word.HIGH]
        known = {*list(self._desk.unsettled), *range(started + 1, high + 1)}
        self._returns += sorted(held - known)

    def _take_stock(self, settlements: Sequence[Settlement], reply: Turn) -> None:
        """Tell the main thread what was refused, and forget the rest.

        What the reply calls lost was settled by the supervisor while a task held the interpreter;
        a lease that is really another's takes the whole run with it (`RunLost`).
        """
        desk, refused = self._desk, dict(reply.refused)
        for settlement in settlements:
            lease = settlement.lease
            answer = None
            if lease in refused and (execution := desk.unsettled.get(lease)) is not None:
                answer = Refused(execution.delivery, refused[lease])
            else:
                desk.settled(lease)
            if lease in desk.answers:
                desk.tell(lease, answer)

    def _hand_out(self, reply: Turn, begin: int) -> None:
        """To the main thread what is marked, to the held what isn't yet."""
        words = self._desk.slot.words
        if reply.deliveries:
            self._held.extend(reply.deliveries)
            self._desk.note_handed_out(reply.deliveries[-1].lease)
        words[Word.BEGUN] = begin
        words[Word.FETCHING] = 0
        batch: list[Delivery] = []
        while self._held and self._held[0].lease <= begin:
            batch.append(self._held.popleft())
        if batch:
            self._desk.hand_out(batch)

    def _give_back(self) -> None:
        if self._unstarted():
            if not self._desk.free_lanes.empty():
                self._has_freed = True
            self._returns += self._desk.give_back()
            self._held.clear()


def _unroutable(settlement: Settlement, bindings: Sequence[Binding]) -> str | None:
    """Why no queue would take one of the follow-ups that go through an exchange."""
    for posting in settlement.follow_ups:
        exchange, key = posting.exchange, posting.routing_key
        known = [each for each in bindings if each.exchange == exchange]
        if exchange not in ("", key) and not takers(known, key, posting.message.headers):
            return unbound(exchange, key, known)
    return None


def targets(settlements: Iterable[Settlement]) -> set[str]:
    """The queues that follow-ups go to."""
    return {
        posting.routing_key
        for settlement in settlements
        for posting in settlement.follow_ups
        if not posting.exchange
    }
