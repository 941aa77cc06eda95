"""A broker with every flag of its `Features` off: what suites assert of it is what the flags say.

It stands on the memory broker, and gives up each promise in the way that a server must which
lacks the feature: RabbitMQ, but for the priorities.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from umbel.brokers.memory import MemoryBroker
from umbel.clock import SYSTEM, Clock
from umbel.exceptions import Unroutable
from umbel.message import How, Posting, Settlement
from umbel.ports import BrokerOptions, DeadLetter, Features, Location, Revocation, Stored, Turn


class WeakBroker(MemoryBroker):
    features = Features(
        processes=False,
        priority=False,
        atomic_follow_ups=False,
        lease_records=False,
        find=False,
        wait_takes=True,
    )

    def __init__(self, name: str, options: BrokerOptions, *, clock: Clock = SYSTEM) -> None:
        super().__init__(name, options, clock=clock)
        self._pushed = f"pushed to {id(self)}#1"
        self._in_hand = 0
        """The lease of the message that the last wait took; 0 where there is none."""
        self._last: dict[str, int] = {}

    def close(self) -> None:
        self._give_back()
        super().close()

    def publish(self, postings: Sequence[Posting]) -> None:
        super().publish([replace(posting, priority=0) for posting in postings])

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
        with self._state.lock:
            self._give_back()
            refused: list[tuple[int, str]] = []
            if 0 < number <= self._last.get(owner, 0):
                settlements = ()  # a repetition: they are settled, and remembered
            settlements = [
                ready
                for each in settlements
                if (ready := self._without_follow_ups(owner, each, refused)) is not None
            ]
            reply = super().turn(
                owner,
                number,
                queues=queues,
                settlements=settlements,
                limit=limit,
                lost_only=lost_only,
            )
            if number > self._last.get(owner, 0):
                self._last[owner] = number
                reply = self._state.owners[owner].reply = replace(reply, refused=tuple(refused))
            return reply

    def _without_follow_ups(
        self, owner: str, settlement: Settlement, refused: list[tuple[int, str]]
    ) -> Settlement | None:
        """The settlement, its follow-ups being stored; None where one was refused."""
        if settlement.lease in self.held(owner):
            for posting in settlement.follow_ups:
                try:
                    self.publish([posting])
                except Unroutable as error:
                    refused.append((settlement.lease, str(error)))
                    return None
        return replace(settlement, follow_ups=())

    def wait(self, queues: Sequence[str], timeout: float) -> bool:
        with self._state.lock:
            self._give_back()
        if not super().wait(queues, timeout):
            return False
        with self._state.lock:
            self._in_hand = self._push(queues)
        return True

    def _push(self, queues: Sequence[str]) -> int:
        run = self._pushed.partition("#")[0]
        super().enlist(run, self._pushed, b"")
        deliveries = super().turn(self._pushed, 0, queues=queues, limit=1).deliveries
        return deliveries[0].lease if deliveries else 0

    def _give_back(self) -> None:
        if self._in_hand:
            super().turn(self._pushed, 0, settlements=[Settlement(self._in_hand, How.RELEASE)])
            self._in_hand = 0

    def find(self, task_id: str) -> tuple[Location, ...]:
        return ()

    def stored(self, task_id: str) -> tuple[Stored, ...]:
        return tuple(each for each in super().stored(task_id) if isinstance(each.place, DeadLetter))

    def revoke(self, revocations: Sequence[Revocation], *, once: str = "") -> frozenset[str]:
        with self._state.lock:
            queues, self._state.queues = self._state.queues, {}
            try:
                return super().revoke(revocations, once=once)
            finally:
                self._state.queues = queues
