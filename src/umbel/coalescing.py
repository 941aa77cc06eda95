"""What coroutines send: one thread publishes, in one step, all that has gathered meanwhile.

Ten thousand coroutines that send at once make a few dozen trips to the broker. Each caller goes on
when its own message is stored, and gets the error of its own message only: a broker stores all of
a step or nothing, so a step that is refused is halved until the culprit is alone.

A caller that is cancelled takes its message back where it still waits here. Where it is on its way
already, it may be stored or not.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from umbel.background import IDLE, Answer, Background, answer, own, settle
from umbel.exceptions import BrokerUnavailable, OperationalError
from umbel.message import Posting
from umbel.retry import RetryPolicy
from umbel.retry.publishing import Tries

if TYPE_CHECKING:
    import asyncio

MOST_IN_ONE_STEP: Final = 1000
MOST_BYTES_IN_ONE_STEP: Final = 16 * 2**20
"""Messages and bytes of their bodies; a call's own messages are never parted."""
MOST_WAITING: Final = 4000
"""Calls. Whoever comes when so many wait makes no message before there is room again."""
_CLOSED: Final = "the app was closed before the message could be sent"

Publish = Callable[[Sequence[Posting]], None]


class Call:
    """The messages that one coroutine sends in one step, and what is known of it."""

    __slots__ = ("began", "future", "loop", "postings", "tries", "withdrawn")

    def __init__(
        self,
        postings: Sequence[Posting],
        policy: RetryPolicy | None,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.postings = postings
        self.began = time.monotonic()
        self.tries = Tries(policy, self.began)
        self.loop = loop
        self.future: asyncio.Future[Any] = loop.create_future()
        self.withdrawn = False

    def ended(self, error: BaseException | None) -> Answer:
        return Answer(self.loop, partial(settle, self.future, None, error))


class Coalescer(Background):
    """The publishing thread of one app in this process. `publish` stores all or raises."""

    def __init__(self, publish: Publish) -> None:
        self._publish = publish
        super().__init__("umbel-publisher")

    async def send(
        self, make: Callable[[], Sequence[Posting]], policy: RetryPolicy | None
    ) -> Sequence[Posting]:
        """What `make` makes, once the broker has stored it; all of it, or nothing.

        `BrokerUnavailable` is repeated by `policy`. Raises what `make` raises, and what publishing
        raises.
        """
        import asyncio  # takes 30 ms, which only coroutines need to pay

        loop = asyncio.get_running_loop()
        while len(self._queue) + len(self._gathered.get(loop, ())) >= MOST_WAITING:
            await self._room(loop)
        call = Call(make(), policy, loop)
        gathered = self._gathered.get(loop)
        if gathered is None:
            # What is sent in one turn of the loop goes out together.
            self._gathered[loop] = [call]
            loop.call_soon(self._hand_over, loop)
        else:
            gathered.append(call)
        try:
            await call.future
        finally:
            call.withdrawn = True  # without effect, once it has been taken
        return call.postings

    def _hand_over(self, loop: asyncio.AbstractEventLoop) -> None:
        calls = self._gathered.pop(loop, [])
        try:
            with self._changed:
                self._wake()
                self._queue.extend(calls)
        except RuntimeError as error:  # no thread can be started
            for call in calls:
                settle(call.future, None, own(error))
        for each in tuple(self._gathered):
            if each.is_closed():  # in the turn in which it had sent something
                self._gathered.pop(each, None)

    async def _room(self, loop: asyncio.AbstractEventLoop) -> None:
        future: asyncio.Future[Any] = loop.create_future()
        with self._changed:
            self._wake()
            self._outside.append(Answer(loop, partial(settle, future, None, None)))
        await future

    def _renew(self) -> None:
        super()._renew()
        self._gathered: dict[asyncio.AbstractEventLoop, list[Call]] = {}
        """What a loop has sent in its present turn; only that loop's thread touches it."""
        self._queue: deque[Call] = deque()
        self._later: list[tuple[float, Call, Exception]] = []
        """When it is tried again, a call, and why the broker couldn't take it."""
        self._outside: deque[Answer] = deque()

    def _work(self) -> bool:
        with self._changed:
            calls = self._next()
            invited = self._invited(len(calls))
            if not calls and not invited:
                if self._closing or not self._wait():
                    return self._end()
                return True
        answer([*invited, *self._stored(calls)])
        return True

    def _next(self) -> list[Call]:
        """The calls of the next step: those that are due again, then the oldest."""
        now = time.monotonic()
        due = [call for at, call, _ in self._later if at <= now]
        if due:
            self._later = [each for each in self._later if each[0] > now]
            self._queue.extendleft(reversed(due))
        calls: list[Call] = []
        size, octets = 0, 0
        while self._queue and size < MOST_IN_ONE_STEP and octets < MOST_BYTES_IN_ONE_STEP:
            call = self._queue.popleft()
            if not call.withdrawn:
                calls.append(call)
                size += len(call.postings)
                octets += sum([len(posting.message.body) for posting in call.postings])
        return calls

    def _invited(self, places: int) -> list[Answer]:
        """As many of those who wait for room. Whose loop is gone never comes; so, where nothing is
        left to be done, others are invited."""
        count = places or MOST_IN_ONE_STEP
        return [self._outside.popleft() for _ in range(min(count, len(self._outside)))]

    def _wait(self) -> bool:
        """Whether something came, or is to be tried again."""
        if not self._later:
            return self._changed.wait(IDLE)
        self._changed.wait(max(0.0, min(each[0] for each in self._later) - time.monotonic()))
        return True

    def _stored(self, calls: Sequence[Call]) -> list[Answer]:
        """Publish; the answers of those of whom it is known how it ended."""
        if not calls:
            return []
        tried = time.monotonic()
        error = self._try(calls)
        if error is None:
            return [call.ended(None) for call in calls]
        if isinstance(error, OperationalError):
            failed = (
                [*calls, *self._others(tried)] if isinstance(error, BrokerUnavailable) else calls
            )
            return [
                call.ended(own(error)) for call in failed if not self._postponed(call, error, tried)
            ]
        if len(calls) == 1:
            return [calls[0].ended(error)]
        middle = len(calls) // 2
        return [*self._stored(calls[:middle]), *self._stored(calls[middle:])]

    def _others(self, tried: float) -> list[Call]:
        """Those that waited all the time since `tried`: the try was theirs too. Else each step of
        them would learn for itself, one after the other, that the broker is away."""
        with self._changed:
            others = [call for call in self._queue if call.began <= tried]
            self._queue = deque([call for call in self._queue if call.began > tried])
        return others

    def _try(self, calls: Sequence[Call]) -> Exception | None:
        try:
            self._publish([posting for call in calls for posting in call.postings])
        # Whatever a driver raises is for the callers.
        except Exception as error:
            return error
        return None

    def _postponed(self, call: Call, error: OperationalError, tried: float) -> bool:
        now = time.monotonic()
        pause = call.tries.pause_after(error, tried, now)
        if pause is None:
            return False
        with self._changed:
            self._later.append((now + pause, call, error))
        return True

    def _give_up(self) -> None:
        with self._changed:
            later, self._later = self._later, []
            queue, self._queue = self._queue, deque()
            outside, self._outside = self._outside, deque()
        answers = [call.ended(own(error)) for _, call, error in later]
        answers += [call.ended(BrokerUnavailable(_CLOSED)) for call in queue]
        answer([*answers, *outside])
