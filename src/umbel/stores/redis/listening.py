"""One connection per process that listens for all results that are waited for in it.

A thread of its own does all that is sent and read on the connection. It starts with the first wait
and ends, with the connection, when nothing was waited for in the last seconds. A channel is left a
moment after its last wait, since who waits for one of many mostly comes back for the rest.

    wait: watch ─► SUBSCRIBE ─► confirmed ─► look at the record ─► sleep until told, or overdue

A connection that breaks, or that doesn't answer a PING, tells everybody that waits; they look
again.
"""

from __future__ import annotations

import os
import selectors
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from umbel.stores.redis.client import Wire

LINGER: Final = 1.0
"""Seconds for which a channel is kept that nobody waits for."""
IDLE: Final = 5.0
"""Seconds without any channel after which the connection is closed."""
CHECK: Final = 10.0
"""Seconds of silence after which the server is asked whether it is there, and again this long until
it is taken for gone."""
_TICK: Final = 1.0
_AT_ONCE: Final = 500


class Watch:
    """One wait. `changed` is set by whatever is worth a look: see the other fields."""

    __slots__ = ("changed", "channels", "error", "heard", "missing", "told")

    def __init__(self, channels: Sequence[bytes]) -> None:
        self.channels = channels
        self.missing: set[bytes] = set()
        """Channels that aren't heard yet."""
        self.told = False
        """Something came, or the connection broke, or whoever waits shall stop."""
        self.heard: dict[bytes, bytes] = {}
        """What came, by channel."""
        self.error: Exception | None = None
        """Why it can't be listened."""
        self.changed = threading.Event()

    def sleep(self, deadline: float) -> bool:
        """Until there is something worth a look; False once that moment (monotonic) has come."""
        if not self.changed.wait(max(0.0, deadline - time.monotonic())):
            return False
        self.changed.clear()
        return True

    def tell(self, error: Exception | None = None) -> None:
        self.told = True
        self.error = self.error or error
        self.changed.set()


class Listener:
    """The listening connection of one store in this process. `connect` makes it."""

    def __init__(self, connect: Callable[[], Wire], check: float = CHECK) -> None:
        self._connect = connect
        self._check = check
        self._lock = threading.Lock()
        self._watches: dict[bytes, set[Watch]] = {}
        self._heard: dict[bytes, bool] = {}
        """Channels that were subscribed, and whether that is confirmed."""
        self._unwatched: dict[bytes, float] = {}
        """Those of them that nobody waits for, since when."""
        self._new: list[bytes] = []
        self._thread: threading.Thread | None = None
        self._bell: tuple[int, int] | None = None
        self._stopping = False

    @contextmanager
    def watching(self, channels: Sequence[bytes]) -> Iterator[Watch]:
        """Listen while the block runs; `missing` is empty once all channels are heard."""
        watch = Watch(channels)
        self._add(watch)
        try:
            yield watch
        finally:
            self._remove(watch)

    def tell_all(self) -> None:
        """Wake everybody who waits."""
        with self._lock:
            for watch in {each for watches in self._watches.values() for each in watches}:
                watch.tell()

    def close(self) -> None:
        """End the thread and its connection. A later wait starts it anew."""
        self.tell_all()
        with self._lock:
            thread = self._thread
            self._stopping = thread is not None
            self._ring()
        if thread is not None and thread is not threading.current_thread():
            thread.join(_TICK)

    @property
    def channels(self) -> int:
        """How many are subscribed."""
        return len(self._heard)

    def _add(self, watch: Watch) -> None:
        with self._lock:
            for channel in watch.channels:
                self._watches.setdefault(channel, set()).add(watch)
                self._unwatched.pop(channel, None)
                if channel not in self._heard:
                    self._heard[channel] = False
                    self._new.append(channel)
                if not self._heard[channel]:
                    watch.missing.add(channel)
            if self._thread is None:
                self._start()
            elif watch.missing:
                self._ring()

    def _remove(self, watch: Watch) -> None:
        now = time.monotonic()
        with self._lock:
            for channel in watch.channels:
                watches = self._watches.get(channel)
                if watches is None:
                    continue
                watches.discard(watch)
                if not watches:
                    del self._watches[channel]
                    if channel in self._heard:
                        self._unwatched[channel] = now

    def _start(self) -> None:
        self._stopping = False
        self._bell = os.pipe()
        for end in self._bell:
            os.set_blocking(end, False)
        self._thread = threading.Thread(target=self._run, name="umbel-redis-results", daemon=True)
        self._thread.start()

    def _ring(self) -> None:
        if self._bell is not None:
            with suppress(BlockingIOError):  # full: it will be heard
                os.write(self._bell[1], b"\0")

    # From here on: the thread

    def _run(self) -> None:
        from redis.exceptions import RedisError

        session: _Session | None = None
        while True:
            try:
                if session is None:
                    session = self._open()
                if self._is_over(session):
                    return
                self._work(session)
            except (RedisError, OSError) as error:
                # Who waits on a connection that broke looks again. That there is none is an error.
                if session is None or (isinstance(error, RedisError) and not session.answered):
                    self._lose(error)
                else:
                    self._lose(None)
                if session is not None:
                    session.close()
                session = None
                if self._ends_after_loss():
                    return

    def _open(self) -> _Session:
        connection = self._connect()
        connection.connect()
        assert self._bell is not None
        return _Session(connection, self._bell[0])

    def _is_over(self, session: _Session) -> bool:
        with self._lock:
            idle = not self._heard and time.monotonic() - session.used_at > IDLE
            if not (self._stopping or idle):
                return False
            self._end()
        session.close()
        return True

    def _ends_after_loss(self) -> bool:
        """Nobody has come meanwhile; the next one who waits starts the thread anew."""
        with self._lock:
            if self._heard and not self._stopping:
                return False
            self._end()
            return True

    def _end(self) -> None:
        self._thread = None
        self._forget()
        if self._bell is not None:
            for end in self._bell:
                os.close(end)
            self._bell = None

    def _forget(self) -> None:
        self._heard.clear()
        self._unwatched.clear()
        self._new.clear()

    def _lose(self, error: Exception | None) -> None:
        with self._lock:
            for watch in {each for watches in self._watches.values() for each in watches}:
                watch.tell(error)
            # They are told, and come back if they want more.
            self._watches.clear()
            self._forget()

    def _work(self, session: _Session) -> None:
        with self._lock:
            new, self._new = self._new, []
            old = self._outdated()
        session.send("SUBSCRIBE", new)
        session.send("UNSUBSCRIBE", old)
        session.check(self._check)
        for kind, channel, payload in session.wait(min(_TICK, self._check)):
            self._hear(kind, channel, payload)

    def _outdated(self) -> list[bytes]:
        before = time.monotonic() - LINGER
        old: list[bytes] = []
        # In the order in which they were left, so that only what is left now is looked at.
        for channel, since in self._unwatched.items():
            if since >= before:
                break
            # What isn't confirmed yet is left later, so that its confirmation means what it says.
            if self._heard[channel]:
                old.append(channel)
        for channel in old:
            del self._unwatched[channel], self._heard[channel]
        return old

    def _hear(self, kind: bytes, channel: bytes, payload: bytes) -> None:
        with self._lock:
            watches = self._watches.get(channel, ())
            if kind == b"message":
                for watch in watches:
                    watch.heard[channel] = payload
                    watch.tell()
            elif kind == b"subscribe" and channel in self._heard:
                self._heard[channel] = True
                for watch in watches:
                    watch.missing.discard(channel)
                    if not watch.missing:
                        watch.changed.set()


class _Session:
    """One connection, from its making to its end."""

    def __init__(self, connection: Wire, bell: int) -> None:
        self._connection = connection
        self._bell = bell
        self._selector = selectors.DefaultSelector()
        # The one thing that redis-py doesn't offer: to sleep on its socket and on another.
        self._selector.register(connection._sock, selectors.EVENT_READ)
        self._selector.register(bell, selectors.EVENT_READ)
        self.answered = False
        self.used_at = self._heard_at = time.monotonic()
        self._asked_at: float | None = None

    def send(self, command: str, channels: Sequence[bytes]) -> None:
        for start in range(0, len(channels), _AT_ONCE):
            some = channels[start : start + _AT_ONCE]
            self._connection.send_command(command, *some, check_health=False)
            self.used_at = time.monotonic()

    def check(self, interval: float) -> None:
        """Ask a server that was silent for long; raise where it stays so."""
        from redis.exceptions import ConnectionError

        now = time.monotonic()
        if self._asked_at is not None and now - self._asked_at > interval:
            raise ConnectionError(f"no answer for {interval:g} s")
        if self._asked_at is None and now - self._heard_at > interval:
            self._connection.send_command("PING", check_health=False)
            self._asked_at = now

    def wait(self, seconds: float) -> Iterator[tuple[bytes, bytes, bytes]]:
        """(kind, channel, payload) of what came, after at most so many seconds."""
        for key, _ in self._selector.select(seconds):
            if key.fd == self._bell:
                with suppress(BlockingIOError):
                    os.read(self._bell, 4096)
        while self._connection.can_read(timeout=0):
            reply: Any = self._connection.read_response()
            self._heard_at = time.monotonic()
            self._asked_at = None
            self.answered = True
            if isinstance(reply, list) and len(reply) == 3:
                yield reply[0], reply[1], reply[2]

    def close(self) -> None:
        self._selector.close()
        with suppress(Exception):  # whatever state it is in
            self._connection.disconnect()
