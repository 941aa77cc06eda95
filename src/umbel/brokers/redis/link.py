"""Connections to one server, and what its errors mean for whoever reads them.

A call takes an idle connection or makes one, sends, reads, and puts it back. Nothing is repeated
here: a request that couldn't be sent was not done, and of one whose reply was lost nobody knows.
"""

from __future__ import annotations

import os
import select
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn, Protocol, cast
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit

from redis import exceptions as errors
from redis.backoff import NoBackoff
from redis.connection import Connection, SSLConnection, parse_url
from redis.retry import Retry

from umbel.brokers.redis.scripts import Script
from umbel.exceptions import ImproperlyConfigured, OperationalError
from umbel.settings import censored

_parse = cast("Callable[[str], dict[str, Any]]", parse_url)

Argument = str | bytes | int | float
Reply = Any
"""What a server answers: bytes, int, None, or a list of these."""

CONNECT_TIMEOUT: Final = 0.9
REPLY_TIMEOUT: Final = 0.9
"""Seconds; together with the one above below the 2 s within which a publish says yes or no."""
_PORT: Final = 6379

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


class Wire(Protocol):
    """A connection of redis-py, as far as it is used here; redis-py leaves it without types."""

    def connect(self) -> None: ...
    def disconnect(self) -> None: ...
    def pack_commands(self, commands: Sequence[Sequence[Argument]]) -> list[bytes]: ...
    def send_packed_command(self, command: list[bytes], check_health: bool = True) -> None: ...
    def send_command(self, *command: Argument, check_health: bool = True) -> None: ...
    def read_response(self, disable_decoding: bool = False) -> Reply: ...
    def can_read(self, timeout: float = 0) -> bool: ...


_Idle = tuple[Wire, Callable[[float], list[tuple[int, int]]]]
"""A connection, and the question whether there is something to read."""


class ReplyLost(Exception):
    """The request was sent whole; whether it was carried out nobody knows."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is, and how it is spoken to: from a URL, as Celery writes them too.

    ``redis://[user:password@]host[:port][/database]``, ``rediss://`` with TLS (``ssl_cert_reqs``
    may be as Celery wants it, ``CERT_NONE``), ``unix:///path`` or ``redis+socket:///path``, with
    ``?virtual_host=`` or ``?db=``.
    """

    url: str = field(repr=False)
    kwargs: dict[str, Any] = field(repr=False, compare=False)

    @classmethod
    def of(cls, url: str) -> Address:
        try:
            return cls(url, _parse(_known_to_redis_py(url)))
        except ValueError as error:
            raise ImproperlyConfigured(
                f"{censored('broker_url', url)!r} isn't a URL of Redis: {error}. Write "
                "redis://host:6379/0, rediss://… for TLS, or unix:///path/of/socket"
            ) from None

    @property
    def database(self) -> int:
        return int(self.kwargs.get("db", 0))

    @property
    def server(self) -> str:
        """The server, without the database's number."""
        path = self.kwargs.get("path")
        if path:
            return f"redis:{os.path.abspath(path)}"
        host = self.kwargs.get("host", "localhost")
        return f"redis:{host.lower()}:{self.kwargs.get('port', _PORT)}"

    def connection(self, reply_timeout: float | None = REPLY_TIMEOUT) -> Wire:
        """A connection, not yet made, which makes itself once and without waiting for better
        times."""
        kwargs = dict(self.kwargs)
        kind = kwargs.pop("connection_class", Connection)
        # What the URL says goes above.
        kwargs.setdefault("socket_timeout", reply_timeout)
        kwargs.setdefault("socket_connect_timeout", CONNECT_TIMEOUT)
        kwargs["protocol"] = 2
        kwargs["retry"] = Retry(NoBackoff(), 0)
        if kind is not Connection and kind is not SSLConnection:
            kwargs.pop("socket_keepalive", None)
        return cast("Wire", kind(**kwargs))


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
            packed = connection.pack_commands(commands)
            connection.send_packed_command(packed, check_health=False)
        except (errors.RedisError, OSError) as error:
            connection.disconnect()
            raise self.refused(error) from error
        return self._read(idle, len(commands))

    def run(self, script: Script, *arguments: Argument) -> Reply:
        """A script's reply; the server is given its text when it doesn't know it (any more)."""
        try:
            return self.call("EVALSHA", script.sha, 0, *arguments)
        except errors.NoScriptError:
            return self.call("EVAL", script.text, 0, *arguments)

    def refused(self, error: BaseException) -> OperationalError:
        """What is raised for an error of a request that was not carried out."""
        return self._unavailable(_sentence(self.address.server, error))

    def lost(self, error: BaseException) -> OperationalError:
        """The same for a request of which nobody knows, and that may be repeated."""
        server = self.address.server
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
        connection = self.address.connection()
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


def _known_to_redis_py(url: str) -> str:
    """The URL with Celery's forms put into those of redis-py."""
    parts = urlsplit(url)
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    scheme = parts.scheme
    if scheme in ("redis+socket", "unix", "socket"):
        scheme = "unix"
        if "virtual_host" in query:
            query["db"] = query.pop("virtual_host").lstrip("/")
    reqs = query.get("ssl_cert_reqs")
    if reqs is not None:
        query["ssl_cert_reqs"] = reqs.lower().removeprefix("cert_")
    database = unquote(parts.path).lstrip("/")
    if scheme != "unix" and database and not database.isdecimal():
        raise ValueError(f"{database!r} is not the number of a database")
    login = parts.netloc.rpartition("@")[0]
    place = parts.netloc if scheme != "unix" else (f"{login}@" if login else "")
    path = parts.path if scheme != "unix" else quote(unquote(parts.path))
    return f"{scheme}://{place}{path}" + (f"?{urlencode(query)}" if query else "")


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
