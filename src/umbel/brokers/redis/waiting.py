"""Waiting without asking again and again: the server says when what was looked at has changed.

A waiter has two connections. What one of them (the *eyes*) reads the server remembers (``CLIENT
TRACKING``), and tells the other one (the *ear*) when somebody, also a Celery producer, changes it.
The waiter looks, then listens until it is told. Nothing is taken and nothing is marked, so a waiter
that is frozen or cut off is in nobody's way.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from redis.exceptions import RedisError

from umbel.brokers.redis.link import Link, pack
from umbel.brokers.redis.server import Server
from umbel.exceptions import BrokerUnavailable
from umbel.redisconnecting import Argument, Reply, ask, socket_of

INVALIDATED: Final = "__redis__:invalidate"
SILENCE: Final = 2.0
"""Seconds of silence after which a server that is listened to is asked whether it is there, and
again this long until it is taken for gone."""
LOOK_AGAIN: Final = 1.0
"""Seconds after which a waiter looks without having been told, should a word be lost."""


class Ear:
    """A connection that listens to channels, and can be rung by another thread."""

    def __init__(self, link: Link) -> None:
        self.generation = link.generation
        self.connection = link.connect()
        self._heard: deque[Reply] = deque()
        self._heard_at = time.monotonic()
        self._asked_at: float | None = None
        self._read_end, self._write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def subscribe(self, names: Sequence[str], how: str = "SUBSCRIBE") -> None:
        """From the moment that this returns on, all is heard. Patterns: ``PSUBSCRIBE``."""
        self.connection.send_command(how, *names, check_health=False)
        left = len(names)
        while left:
            reply = self.connection.read_response(disable_decoding=True)
            if reply[0] == how.lower().encode():
                left -= 1
            else:
                self._heard.append(reply)

    def listen(self, seconds: float) -> Reply | None:
        """What is heard next; None after the time, or when rung, or for the answer to `check`."""
        if self._heard:
            return self._heard.popleft()
        self._check()
        seconds = min(seconds, SILENCE)
        if not self.connection.can_read(0):
            poll = select.poll()
            poll.register(socket_of(self.connection), select.POLLIN)
            poll.register(self._read_end, select.POLLIN)
            ready = {fd for fd, _ in poll.poll(max(0.0, seconds) * 1000)}
            if self._read_end in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._read_end, 4096)
                return None
            if not ready:
                return None
        heard = self.connection.read_response(disable_decoding=True)
        self._heard_at, self._asked_at = time.monotonic(), None
        return None if heard[0] == b"pong" else heard

    def _check(self) -> None:
        """Ask a server that was silent for long; raise where it stays so. A connection of which
        nobody has told us that it ended would be listened to for ever."""
        now = time.monotonic()
        if self._asked_at is None:
            if now - self._heard_at > SILENCE:
                self.connection.send_command("PING", check_health=False)
                self._asked_at = now
        elif now - self._asked_at > SILENCE and not self.connection.can_read(0):
            raise TimeoutError(f"no answer for {SILENCE:g} s")

    def drain(self) -> None:
        """Forget what was heard so far."""
        self._heard.clear()
        while self.connection.can_read(0):
            self.connection.read_response(disable_decoding=True)

    def ring(self) -> None:
        """Let `listen` return. Safe from any thread and in signal handlers."""
        with contextlib.suppress(OSError):
            os.write(self._write_end, b"r")

    def close(self) -> None:
        self.connection.disconnect()
        for end in (self._read_end, self._write_end):
            with contextlib.suppress(OSError):
                os.close(end)
        self._read_end = self._write_end = -1


class Waiter:
    """The eyes and the ear of one thread that waits. Raises the client's errors."""

    def __init__(self, link: Link) -> None:
        self.generation = link.generation
        self._eyes = link.connect()
        try:
            self._ear = Ear(link)
        except BaseException:
            self._eyes.disconnect()
            raise
        try:
            number = ask(self._ear.connection, "CLIENT", "ID")
            self._ear.subscribe([INVALIDATED])
            # Where the two of them reached two servers, the number means nobody: an error.
            ask(self._eyes, "CLIENT", "TRACKING", "ON", "REDIRECT", number)
        except BaseException:
            self.close()
            raise

    def look(self, commands: Sequence[Sequence[Argument]]) -> list[Reply]:
        """The replies; the next change of a key that they name ends the next `sleep`."""
        eyes = self._eyes
        packed = b"".join(map(pack, commands))
        eyes.send_packed_command([packed], check_health=False)
        return [eyes.read_response(disable_decoding=True) for _ in commands]

    def sleep(self, seconds: float) -> bool:
        """Until something has changed, or `ring`; whether it has changed."""
        if self._ear.listen(seconds) is None:
            return False
        self._ear.drain()
        return True

    def ring(self) -> None:
        self._ear.ring()

    def close(self) -> None:
        self._eyes.disconnect()
        self._ear.close()


class Waiters:
    """The waiters of a driver: one for each thread that waits, kept for the next that will."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._all: list[Waiter] = []
        self._idle: list[Waiter] = []
        self._interrupts = 0
        self._answered = 0
        self._closed = True
        self.version = 0
        """Of the log of revocations, as far as the driver's user knows of it."""

    @property
    def busy(self) -> int:
        """How many threads wait now, for tests and tools."""
        return len(self._all) - len(self._idle)

    def open(self) -> None:
        self._closed = False

    def close(self) -> None:
        self._closed = True
        for waiter in list(self._all):
            waiter.ring()
        while self._idle:
            self._drop(self._idle.pop())

    def interrupt(self) -> None:
        """See `Broker.interrupt`."""
        self._interrupts += 1
        for waiter in list(self._all):
            waiter.ring()

    def wait(self, queues: Sequence[str], timeout: float) -> bool:
        """See `Broker.wait`."""
        deadline = time.monotonic() + timeout
        interrupts = self._interrupts
        if interrupts > self._answered:
            self._answered = interrupts
            return False
        while not self._closed:
            if self._interrupts > interrupts:
                self._answered = self._interrupts
                return False
            with self._waiter() as waiter:
                due_in = self._due_in(waiter, queues)
                left = deadline - time.monotonic()
                if due_in <= 0 or left <= 0:
                    return due_in <= 0
                if waiter.sleep(min(left, due_in, LOOK_AGAIN)):
                    # What was looked at has changed. A turn sees how, so another look would be one
                    # trip more.
                    return True
        return False

    def wait_for(self, key: str, timeout: float) -> None:
        """Until the key may exist, or something else woke this thread."""
        with self._waiter() as waiter:
            if not waiter.look([("EXISTS", key)])[0]:
                waiter.sleep(min(timeout, LOOK_AGAIN))

    @contextlib.contextmanager
    def _waiter(self) -> Iterator[Waiter]:
        """A waiter for one look and one sleep, which the next one takes up again."""
        waiter = self._take()
        try:
            yield waiter
        except (RedisError, OSError) as error:
            self._drop(waiter)
            self._server.link.failed(error, waiter.generation)
            raise self._server.link.refused(error) from error
        except BaseException:
            self._drop(waiter)
            raise
        if self._closed:
            self._drop(waiter)
        else:
            self._idle.append(waiter)

    def _take(self) -> Waiter:
        try:
            waiter = self._idle.pop()
        except IndexError:
            return self._made()
        if waiter.generation == self._server.link.generation:
            return waiter
        self._drop(waiter)
        return self._made()

    def _made(self) -> Waiter:
        link = self._server.link
        try:
            waiter = Waiter(link)
        except (RedisError, OSError) as error:
            raise link.refused(error) from error
        self._all.append(waiter)
        return waiter

    def _drop(self, waiter: Waiter) -> None:
        with contextlib.suppress(ValueError):  # dropped before, and none came after it
            self._all.remove(waiter)
        waiter.close()

    def _due_in(self, waiter: Waiter, queues: Sequence[str]) -> float:
        """Seconds until a turn is worth it: 0 is now."""
        keys = self._server.keys
        lists = [keys.list(queue, step) for queue in queues for step in keys.steps]
        lists += [keys.side(queue, "lost") for queue in queues]
        looks: list[Sequence[str | int]] = [
            ("GET", keys.own("revocations:version")),
            ("ZRANGE", keys.own("due"), 0, 0, "WITHSCORES"),
        ]
        if lists:
            looks.append(("EXISTS", *lists))
        version, due, *ready = waiter.look(looks)
        if int(version or 0) != self.version or any(ready):
            return 0.0
        return max(0.0, float(due[1]) - self._server.clock.wall()) if due else LOOK_AGAIN


class RedisSubscription:
    """A listener to patterns of channels; see `umbel.ports.Subscription`.

    Where the connection is lost it is made anew by the next `get`; what is told in between isn't
    heard.
    """

    def __init__(self, link: Link, names: dict[str, str]) -> None:
        """`names`: what is heard, by the patterns of its channels on the server."""
        self._link = link
        self._names = {name.encode(): channel for name, channel in names.items()}
        self._ear: Ear | None = None
        self._closed = False
        try:
            self._connect()
        except (RedisError, OSError) as error:
            raise BrokerUnavailable(f"{link.location} can't be reached: {error}") from error

    def _connect(self) -> Ear:
        ear = Ear(self._link)
        try:
            ear.subscribe([name.decode() for name in self._names], "PSUBSCRIBE")
        except BaseException:
            ear.close()
            raise
        self._ear = ear
        return ear

    def get(self, timeout: float) -> tuple[str, bytes] | None:
        deadline = time.monotonic() + timeout
        while not self._is_over():
            left = deadline - time.monotonic()
            try:
                if self._ear is not None and self._ear.generation != self._link.generation:
                    raise ConnectionError("it may lead to the wrong server by now")
                heard = (self._ear or self._connect()).listen(left)
            except (RedisError, OSError, ValueError) as error:
                generation = -1 if self._ear is None else self._ear.generation
                self._let_go()
                self._link.failed(error, generation)
                if self._is_over():
                    return None
                raise BrokerUnavailable(
                    f"the connection to {self._link.location} was lost: {error}"
                ) from error
            if heard is not None and heard[0] == b"pmessage":
                return self._names[heard[1]], heard[3]
            if left <= 0:
                return None
        return None

    def _is_over(self) -> bool:
        # A method, since another thread may change it at any moment.
        return self._closed

    def close(self) -> None:
        self._closed = True
        if self._ear is not None:
            self._ear.ring()
            self._let_go()

    def _let_go(self) -> None:
        ear, self._ear = self._ear, None
        if ear is not None:
            ear.close()
