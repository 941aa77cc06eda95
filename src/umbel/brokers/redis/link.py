"""Connections to one server, and what its errors mean for whoever reads them.

A call takes an idle connection or makes one, sends, reads, and puts it back. Nothing is repeated
here but what the wrong server has refused (`umbel.redisplaces`): a request that couldn't be sent
was not done, and of one whose reply was lost nobody knows. Where one connection is lost, the idle
ones are let go: they may lead into the same nothing.
"""

from __future__ import annotations

import contextlib
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from redis import exceptions as errors

from umbel.brokers.redis.scripts import Script
from umbel.exceptions import ImproperlyConfigured, OperationalError
from umbel.redisconnecting import Argument, Reply, Wire, ask, reader_of, socket_of
from umbel.redisplaces import Place, connected, place_of
from umbel.redisurl import BROKER_TIMEOUTS, Address, Servers, servers_of

HEALTH_CHECK: Final = 25.0
"""Seconds of idleness after which a connection is asked whether it still leads anywhere."""
LOWEST: Final = 6, 2
_LEAST: Final = 0.05
"""Seconds that are left for connecting, however long one had to wait before."""

_REPLICATED: Final = frozenset(("publish", "turn", "abandon", "dead_requeue"))
"""Scripts whose effect must not be undone by a failover, where that is asked for."""
_REFUSED_BY_THE_WRONG_ONE: Final = errors.MovedError, errors.ReadOnlyError
_MOVING: Final = "is moving our keys to another node", "Work goes on when they are there"
_SENTENCES: Final = (
    ("OOM", "is at its memory limit", "Give it more memory (maxmemory), or let workers catch up"),
    ("LOADING", "is still loading its data", "Wait, then repeat the call"),
    ("READONLY", "is a replica, which can't be written to", "Name the primary in the URL"),
    ("MISCONF", "can't save to its disk and so refuses writes", "Look at the server's log"),
    ("BUSY", "is busy with another program's script", "End that script (SCRIPT KILL)"),
    ("NOAUTH", "wants a password", "Put it into the URL: redis://user:password@host"),
    ("WRONGPASS", "refuses this user or password", "Look at both in the URL"),
    ("NOPERM", "doesn't let this user do that", "Give the user the right (ACL SETUSER)"),
    ("MASTERDOWN", "is a replica without its primary", "Name the primary in the URL"),
    ("MOVED", "doesn't agree with its cluster on who has our keys", "Wait until it does"),
    ("ASK", "is moving our keys to another node", "It takes up work again when they are there"),
    (
        "TRYAGAIN",
        "is moving our keys to another node",
        "It takes up work again when they are there",
    ),
    ("CLUSTERDOWN", "is a cluster that isn't whole", "Look at CLUSTER INFO"),
    ("CROSSSLOT", "is a cluster", "Write redis+cluster:// in place of redis://"),
    ("NOREPLICAS", "has fewer replicas than it wants (min-replicas-to-write)", "Start them"),
    (
        "WRONGTYPE",
        "has something of another program's under one of our keys",
        "Look at the docs for the names of keys, and set global_keyprefix",
    ),
)


def pack(command: Sequence[Argument]) -> bytes:
    """A command as it is sent: an array of texts, in the protocol RESP.

    Written here, since hiredis takes five times as long for an envelope.
    """
    packed = [b"*%d\r\n" % len(command)]
    for word in command:
        if not isinstance(word, bytes):
            word = str(word).encode()
        packed += (b"$%d\r\n" % len(word), word, b"\r\n")
    return b"".join(packed)


class Line:
    """A connection that is made. `generation` is the link's at that time."""

    __slots__ = ("connection", "generation", "is_readable", "read", "send", "used_at")

    def __init__(self, connection: Wire, generation: int) -> None:
        sock = socket_of(connection)
        poller = select.poll()
        poller.register(sock, select.POLLIN)
        self.connection = connection
        self.generation = generation
        self.send: Callable[[bytes], None] = sock.sendall
        self.read = reader_of(connection)
        self.is_readable: Callable[[float], list[tuple[int, int]]] = poller.poll
        self.used_at = 0.0
        """Monotonic time."""


class ReplyLost(Exception):
    """The request was sent whole; whether it was carried out nobody knows."""


def servers_at(url: str) -> Servers:
    """Where a broker's URL leads. Raises `ImproperlyConfigured`."""
    return servers_of("broker_url", url, BROKER_TIMEOUTS)


@dataclass(frozen=True, slots=True)
class Pool:
    """How many connections a link has at once, and how long one waits for one of them."""

    limit: int | None = None
    """None: as many as there are callers."""
    patience: float | None = None
    """Seconds; None: as long as for connecting, so that a crowd before a server that is away has
    its answers in time, too."""
    keeps: bool = True
    """Connections for the next caller."""


class Link:
    """Calls to a server. Thread-safe; of one process. Raises `unavailable`, and `ReplyLost`."""

    def __init__(
        self,
        servers: Servers,
        unavailable: type[OperationalError],
        pool: Pool | None = None,
        replicas: int = 0,
    ) -> None:
        """`replicas`: how many must have what a script of `_REPLICATED` stores."""
        self.place: Place = place_of(servers)
        self.generation = 0
        """Rises when the connections that there are may lead to the wrong server."""
        self._unavailable = unavailable
        self._pool = pool or Pool()
        self._idle: deque[Line] = deque()
        self._closed = False
        # Only where connections are limited: those that there are, and who waits for one.
        self._made = self._waiting = 0
        self._freed = threading.Condition()
        options = self.place.options.options
        self._replicas = replicas
        answer: float = options.get("socket_timeout") or inf
        # Half of the time for an answer is the script's.
        self._waiting_for_replicas = ("WAIT", replicas, int(min(answer, 2.0) * 500))
        self._in_time: float = options.get("socket_connect_timeout") or inf
        self._checked_after: float = options.get("health_check_interval") or HEALTH_CHECK
        self._is_watched = self.place.is_watched
        self._meant: Address | None = None
        slot_key = self.place.slot_key
        self._keys: tuple[Argument, ...] = (0,) if slot_key is None else (1, slot_key)

    @property
    def location(self) -> str:
        return self.place.location

    def open(self) -> None:
        """Raises where the server doesn't answer, or is too old."""
        self._closed = False
        try:
            said: Sequence[bytes] = self.call("HELLO")
        except OperationalError as error:
            if "unknown command" not in str(error):
                raise
            said = ()
        version = dict(zip(said[::2], said[1::2], strict=True)).get(b"version", b"below 6").decode()
        if not _is_at_least(version, LOWEST):
            raise ImproperlyConfigured(
                f"{self.location} is Redis {version}; expected Redis 6.2 or newer, or Valkey"
            )

    def close(self) -> None:
        self._closed = True
        self._let_go()

    def connect(self, waited: float = 0.0) -> Wire:
        """A connection of the caller's own, who has waited so many seconds for it. Raises
        redis-py's errors, and `OSError`."""
        try:
            return connected(self.place, max(_LEAST, self._in_time - waited))
        except (errors.RedisError, OSError):
            self._let_go()
            raise

    def failed(self, error: BaseException, generation: int) -> bool:
        """Let go of what may lead to the wrong server, or into nothing, if that wasn't done since
        `generation`, when the connection that has failed was made. Whether it is done."""
        if generation == self.generation:
            if not self.place.failed(error) and isinstance(error, errors.ResponseError):
                return False
            self._let_go()
        return True

    def look(self) -> None:
        """Let go of connections to a server that isn't meant any more, although it answers."""
        if (now := self.place.now()) != self._meant:
            if self._meant is not None:
                self._let_go()
            self._meant = now

    def call(self, *command: Argument) -> Reply:
        """One command's reply."""
        return self.calls([command])[0]

    def calls(self, commands: Sequence[Sequence[Argument]], again: int = 3) -> list[Reply]:
        """The replies to several commands, sent together; all of them anew where the wrong server
        has refused one."""
        line = self._take()
        try:
            line.send(b"".join(map(pack, commands)))
        except OSError as error:
            self._discard(line.connection)
            self.failed(error, line.generation)
            raise self.refused(error) from error
        except BaseException:
            self._discard(line.connection)
            raise
        replies, failed = self._read(line, len(commands))
        if failed is None:
            return replies
        if isinstance(failed, errors.NoScriptError):
            raise failed
        if isinstance(failed, errors.MovedError) and self.place.slot_key is None:
            raise self._unavailable(
                f"{self.location} is a node of a cluster; nothing was done. Write redis+cluster:// "
                f"in place of redis:// ({failed})"
            ) from failed
        is_elsewhere = self.failed(failed, line.generation)
        if again and is_elsewhere and isinstance(failed, _REFUSED_BY_THE_WRONG_ONE):
            return self.calls(commands, again - 1)
        raise self.refused(failed) from failed

    def run(self, script: Script, *arguments: Argument) -> Reply:
        """A script's reply; the server is given its text when it doesn't know it (any more)."""
        try:
            return self._run(script, ("EVALSHA", script.sha, *self._keys, *arguments))
        except errors.NoScriptError:
            return self._run(script, ("EVAL", script.text, *self._keys, *arguments))

    def _run(self, script: Script, command: Sequence[Argument]) -> Reply:
        if not self._replicas or script.name not in _REPLICATED:
            return self.calls([command])[0]
        reply, count = self.calls([command, self._waiting_for_replicas])
        if count < self._replicas:
            raise ReplyLost from ConnectionError(
                f"it is stored, and {count} replicas say that they have it, where wait_replicas is "
                f"{self._replicas}"
            )
        return reply

    def refused(self, error: BaseException) -> OperationalError:
        """What is raised for an error of a request that was not carried out."""
        return self._unavailable(_sentence(self.location, error))

    def lost(self, error: BaseException) -> OperationalError:
        """The same for a request of which nobody knows, and that may be repeated."""
        return self._unavailable(
            f"{self.location} was asked and its answer was lost: {error.__cause__}"
        )

    def _take(self) -> Line:
        """A connection that is made and has nothing left to read."""
        limit = self._pool.limit
        if self._is_watched:
            self.look()
        while True:
            while self._idle:
                try:
                    line = self._idle.pop()
                except IndexError:
                    break
                # Something to read where nothing was asked: the end.
                if not line.is_readable(0) and (
                    time.monotonic() - line.used_at < self._checked_after or self._answers(line)
                ):
                    return line
                self._discard(line.connection)
            if limit is None:
                return self._make()
            began = time.monotonic()
            if self._may_make_one(limit):
                return self._make(time.monotonic() - began)

    def _make(self, waited: float = 0.0) -> Line:
        generation = self.generation
        try:
            return Line(self.connect(waited), generation)
        except (errors.RedisError, OSError) as error:
            self._free()
            raise self.refused(error) from error

    def _answers(self, line: Line) -> bool:
        """Whether there is still somebody behind a connection that was idle for long."""
        try:
            ask(line.connection, "PING")
        except (errors.RedisError, OSError) as error:
            self.failed(error, line.generation)
            return False
        return True

    def _may_make_one(self, limit: int) -> bool:
        """Waits until the caller may make a connection; False: until one is idle."""
        patience = self._in_time if self._pool.patience is None else self._pool.patience
        with self._freed:
            self._waiting += 1
            try:
                is_free = self._freed.wait_for(
                    lambda: self._idle or self._made < limit, min(patience, threading.TIMEOUT_MAX)
                )
            finally:
                self._waiting -= 1
            if not is_free:
                raise self._unavailable(
                    f"all {limit} connections to {self.location} were in use for {patience:g} s; "
                    "nothing was done. Raise broker_pool_limit, or broker_pool_acquire_timeout"
                )
            if self._idle:
                return False
            self._made += 1
            return True

    def _free(self) -> None:
        if self._pool.limit is not None:
            with self._freed:
                self._made -= 1
                self._freed.notify()

    def _discard(self, connection: Wire) -> None:
        connection.disconnect()
        self._free()

    def _let_go(self) -> None:
        """Of the idle connections; those in use are let go when they come back."""
        self.generation += 1
        while self._idle:
            with contextlib.suppress(IndexError):
                self._discard(self._idle.pop().connection)

    def _read(self, line: Line, count: int) -> tuple[list[Reply], errors.ResponseError | None]:
        """The replies, and the first of them that is an error."""
        replies: list[Reply] = []
        failed: errors.ResponseError | None = None
        try:
            for _ in range(count):
                try:
                    replies.append(line.read())
                except errors.ResponseError as error:
                    failed = failed or error
        except (errors.RedisError, OSError) as error:
            self._discard(line.connection)
            self.failed(error, line.generation)
            raise ReplyLost from error
        except BaseException:
            # An exception from a signal handler leaves a reply unread.
            self._discard(line.connection)
            raise
        if self._closed or line.generation != self.generation or not self._pool.keeps:
            self._discard(line.connection)
        else:
            line.used_at = time.monotonic()
            self._idle.append(line)
            if self._waiting:
                with self._freed:
                    self._freed.notify()
        return replies, failed


def _is_at_least(version: str, lowest: tuple[int, int]) -> bool:
    numbers = [int(each) for each in version.split(".")[:2] if each.isdecimal()]
    return tuple(numbers) >= lowest


def _sentence(server: str, error: BaseException) -> str:
    """What happened, and what to do."""
    text = str(error)
    if isinstance(error, errors.OutOfMemoryError):
        text = f"OOM {text}"
    for code, what, remedy in _SENTENCES:
        if text.startswith(code) or f" {code} " in text or _is_of(error, code):
            return f"{server} {what}; nothing was done. {remedy} ({error})"
    if isinstance(error, errors.ResponseError):
        return f"{server} refused: {error}"
    return (
        f"{server} can't be reached; nothing was done. Look whether it runs and whether host and "
        f"port are right ({error or type(error).__name__})"
    )


def _is_of(error: BaseException, code: str) -> bool:
    """redis-py takes the code off the text of errors that it has a class for."""
    kinds: dict[str, type[BaseException]] = {
        "LOADING": errors.BusyLoadingError,
        "READONLY": errors.ReadOnlyError,
        "NOPERM": errors.NoPermissionError,
        "WRONGPASS": errors.AuthenticationError,
        "MOVED": errors.MovedError,
        "ASK": errors.AskError,
        "TRYAGAIN": errors.TryAgainError,
        "CLUSTERDOWN": errors.ClusterDownError,
        "CROSSSLOT": errors.ClusterCrossSlotError,
        "MASTERDOWN": errors.MasterDownError,
    }
    return code in kinds and isinstance(error, kinds[code])
