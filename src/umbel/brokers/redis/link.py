"""Connections to one server, and what its errors mean for whoever reads them.

A call takes an idle connection or makes one, sends, reads, and puts it back. Nothing is repeated
here: a request that couldn't be sent was not done, and of one whose reply was lost nobody knows.
"""

from __future__ import annotations

import contextlib
import select
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn, Protocol, cast

from redis import exceptions as errors
from redis.backoff import NoBackoff
from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.retry import Retry

from umbel.brokers.redis.scripts import Script
from umbel.exceptions import OperationalError
from umbel.redisurl import Address

Argument = str | bytes | int | float
Reply = Any
"""What a server answers: bytes, int, None, or a list of these."""

CONNECT_TIMEOUT: Final = 0.9
REPLY_TIMEOUT: Final = 0.9
"""Seconds; together with the one above below the 2 s within which a publish says yes or no."""

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
)


def pack_slowly(command: tuple[Argument, ...]) -> bytes:
    """A command as it is sent: an array of texts, in the protocol RESP."""
    packed = [b"*%d\r\n" % len(command)]
    for each in command:
        word = each if isinstance(each, bytes) else str(each).encode()
        packed += (b"$%d\r\n" % len(word), word, b"\r\n")
    return b"".join(packed)


pack: Callable[[tuple[Argument, ...]], bytes] = pack_slowly
with contextlib.suppress(ImportError):
    import hiredis

    # Its own types allow of one argument only.
    pack = cast("Callable[[tuple[Argument, ...]], bytes]", hiredis.pack_command)


class Wire(Protocol):
    """A connection of redis-py, as far as it is used here; redis-py leaves it without types."""

    def connect(self) -> None: ...
    def disconnect(self) -> None: ...
    def send_packed_command(self, command: list[bytes], check_health: bool = True) -> None: ...
    def send_command(self, *command: Argument, check_health: bool = True) -> None: ...
    def read_response(self, disable_decoding: bool = False) -> Reply: ...
    def can_read(self, timeout: float = 0) -> bool: ...


_Idle = tuple[Wire, Callable[[float], list[tuple[int, int]]]]
"""A connection, and the question whether there is something to read."""


class ReplyLost(Exception):
    """The request was sent whole; whether it was carried out nobody knows."""


def address_of(url: str) -> Address:
    """Where a broker's URL leads. Raises `ImproperlyConfigured`.

    What the URL doesn't say of timeouts is short, since a publish has to be over within 2 s.
    """
    timeouts = {"socket_connect_timeout": CONNECT_TIMEOUT, "socket_timeout": REPLY_TIMEOUT}
    return Address.of("broker_url", url, timeouts)


def connection_to(address: Address) -> Wire:
    """A connection, not yet made, which makes itself once and doesn't wait for better times."""
    options: dict[str, Any] = dict(address.options)
    options.pop("retry_on_timeout", None)
    options |= {"db": address.db, "protocol": 2, "retry": Retry(NoBackoff(), 0)}
    kind: Any = Connection
    if address.path is not None:
        kind = UnixDomainSocketConnection
        options.pop("socket_keepalive", None)
        options["path"] = address.path
    else:
        options |= {"host": address.host, "port": address.port, **(address.tls or {})}
        if address.tls is not None:
            kind = SSLConnection
    connection: Wire = kind(**options)
    return connection


class Link:
    """Calls to a server. Thread-safe; of one process. Raises `unavailable`, and `ReplyLost`."""

    def __init__(self, address: Address, unavailable: type[OperationalError]) -> None:
        self.address = address
        self._unavailable = unavailable
        self._idle: deque[_Idle] = deque()
        self._closed = False

    def open(self) -> None:
        """Raises where the server doesn't answer."""
        self._closed = False
        self.call("PING")

    def close(self) -> None:
        self._closed = True
        while self._idle:
            self._idle.pop()[0].disconnect()

    def call(self, *command: Argument) -> Reply:
        """One command's reply."""
        return self.calls([command])[0]

    def calls(self, commands: Sequence[Sequence[Argument]]) -> list[Reply]:
        """The replies to several commands, sent together."""
        idle = connection, _ = self._take()
        try:
            packed = b"".join([pack(tuple(command)) for command in commands])
            connection.send_packed_command([packed], check_health=False)
        except (errors.RedisError, OSError) as error:
            connection.disconnect()
            raise self.refused(error) from error
        return self._read(idle, len(commands))

    def run(self, script: Script, *arguments: Argument) -> Reply:
        """A script's reply; the server is given its text when it doesn't know it (any more)."""
        try:
            return self.calls([("EVALSHA", script.sha, 0, *arguments)])[0]
        except errors.NoScriptError:
            return self.calls([("EVAL", script.text, 0, *arguments)])[0]

    def refused(self, error: BaseException) -> OperationalError:
        """What is raised for an error of a request that was not carried out."""
        return self._unavailable(_sentence(self.address.location, error))

    def lost(self, error: BaseException) -> OperationalError:
        """The same for a request of which nobody knows, and that may be repeated."""
        server = self.address.location
        return self._unavailable(f"{server} was asked and its answer was lost: {error.__cause__}")

    def _take(self) -> _Idle:
        """A connection that is made and has nothing left to read."""
        while self._idle:
            try:
                connection, poll = self._idle.pop()
            except IndexError:
                break
            # Something to read where nothing was asked: the end.
            if not poll(0):
                return connection, poll
            connection.disconnect()
        connection = connection_to(self.address)
        try:
            connection.connect()
        except (errors.RedisError, OSError) as error:
            connection.disconnect()
            raise self.refused(error) from error
        poller = select.poll()
        poller.register(socket_of(connection), select.POLLIN)
        return connection, poller.poll

    def _read(self, idle: _Idle, count: int) -> list[Reply]:
        connection = idle[0]
        replies: list[Reply] = []
        failed: errors.ResponseError | None = None
        try:
            for _ in range(count):
                try:
                    replies.append(connection.read_response(disable_decoding=True))
                except errors.ResponseError as error:
                    failed = failed or error
        except (errors.RedisError, OSError) as error:
            connection.disconnect()
            raise ReplyLost from error
        except BaseException:
            # An exception from a signal handler leaves a reply unread.
            connection.disconnect()
            raise
        if self._closed:
            connection.disconnect()
        else:
            self._idle.append(idle)
        if failed is not None:
            self._raise(failed)
        return replies

    def _raise(self, error: errors.ResponseError) -> NoReturn:
        if isinstance(error, errors.NoScriptError):
            raise error
        raise self.refused(error) from error


def socket_of(connection: Wire) -> Any:
    """The socket of a connection that is made; redis-py has no public name for it."""
    return connection._sock  # type: ignore[attr-defined]  # see above


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
    }
    return code in kinds and isinstance(error, kinds[code])
