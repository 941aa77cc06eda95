"""Connections of redis-py that are made in time, whatever a name server or a host does.

redis-py gives each address of a host's name its time for connecting, and the name server as long as
that likes. Here one time is for all of it.
"""

from __future__ import annotations

import contextlib
import encodings.idna  # noqa: F401  # with the first host's name each process would load it by itself
import functools
import ipaddress
import queue
import socket
import threading
import time
from collections.abc import Callable
from math import inf
from typing import Any, Final, Protocol

from redis import exceptions as errors
from redis._parsers.hiredis import NOT_ENOUGH_DATA
from redis.backoff import NoBackoff
from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.retry import Retry

from umbel.redisurl import Address

Argument = str | bytes | int | float
Reply = Any
"""What a server answers: bytes, int, None, or a list of these."""

_SHORTEST: Final = 0.001
_PIECE: Final = 65_536


def _introduction() -> dict[str, Any]:
    """redis-py tells the server its name, but not its version. To know that it would read its
    package's metadata, which costs each process of a worker 3.5 MB."""
    try:
        from redis.driver_info import DriverInfo
    except ImportError:  # an older one
        return {"lib_version": None}
    return {"driver_info": DriverInfo(lib_version=None)}


_INTRODUCTION: Final = _introduction()


class Wire(Protocol):
    """A connection of redis-py, as far as it is used here; redis-py leaves it without types."""

    def connect(self) -> None: ...
    def disconnect(self) -> None: ...
    def send_packed_command(self, command: list[bytes], check_health: bool = True) -> None: ...
    def send_command(self, *command: Argument, check_health: bool = True) -> None: ...
    def read_response(self, disable_decoding: bool = False) -> Reply: ...
    def can_read(self, timeout: float = 0) -> bool: ...


class TcpConnection(Connection):
    """`socket_connect_timeout` is for the name, for all addresses together, and, as long as nobody
    sets another time-out of the socket, for each answer."""

    def _connect(self) -> socket.socket:
        deadline = time.monotonic() + (self.socket_connect_timeout or inf)
        failed: OSError | None = None
        found = _looked_up(self.host, self.port, deadline)
        for number, (family, kind, protocol, _, address) in enumerate(found):
            sock = socket.socket(family, kind, protocol)
            # One that doesn't answer leaves the others their share.
            now = time.monotonic()
            turn = now + (deadline - now) / (len(found) - number)
            try:
                self._connect_to(sock, address, turn, deadline)
            except OSError as error:
                failed = error
                sock.close()
            else:
                return sock
        raise failed or OSError(f"{self.host!r} has no address")

    def _connect_to(self, sock: socket.socket, address: Any, turn: float, deadline: float) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.socket_keepalive:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            options: Any = self.socket_keepalive_options or {}
            for option, value in options.items():
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
        sock.settimeout(_left(turn))
        sock.connect(address)
        left = _left(deadline) or inf
        sock.settimeout(
            min(left, self.socket_timeout or inf) if left < inf else self.socket_timeout
        )


class TlsConnection(SSLConnection, TcpConnection):
    """The same under TLS."""


def kind_of(address: Address) -> type[Any]:
    """The class of the connections to `address`."""
    if address.path is not None:
        return UnixDomainSocketConnection
    return TcpConnection if address.tls is None else TlsConnection


def options_of(address: Address) -> dict[str, Any]:
    """What that class is made with, but for how often it tries again."""
    options = {**_INTRODUCTION, **address.options, "db": address.db, "protocol": 2}
    if address.path is not None:
        options.pop("socket_keepalive", None)
        return {**options, "path": address.path}
    return {**options, "host": address.host, "port": address.port, **(address.tls or {})}


def connection_to(address: Address, seconds: float | None = None) -> Wire:
    """A connection, not yet made, which makes itself once and doesn't wait for better times:
    within so many seconds, where they are less than the address says."""
    options = options_of(address)
    options.pop("retry_on_timeout", None)
    options["retry"] = Retry(NoBackoff(), 0)
    if seconds is not None:
        longest = options.get("socket_connect_timeout") or inf
        options["socket_connect_timeout"] = max(_SHORTEST, min(seconds, longest))
    connection: Wire = kind_of(address)(**options)
    return connection


def socket_of(connection: Wire) -> Any:
    """The socket of a connection that is made; redis-py has no public name for it."""
    return connection._sock  # type: ignore[attr-defined]  # see above


def reader_of(connection: Wire) -> Callable[[], Reply]:
    """What reads the next reply of a connection that is made, errors of the server's as exceptions.

    It does what the connection's own `read_response` does with hiredis, at a fifth of the price:
    nothing here decodes, has pushed messages or several protocols.
    """
    parser: Any = connection._parser  # type: ignore[attr-defined]  # as `socket_of`
    reader = getattr(parser, "_reader", None)
    if reader is None or not hasattr(reader, "gets"):
        return functools.partial(connection.read_response, disable_decoding=True)
    feed, gets, receive = reader.feed, reader.gets, socket_of(connection).recv

    def read() -> Reply:
        reply = gets(False)
        while reply is NOT_ENOUGH_DATA:
            data = receive(_PIECE)
            if not data:
                raise errors.ConnectionError("the server has closed the connection")
            feed(data)
            reply = gets(False)
        if isinstance(reply, errors.RedisError):
            raise reply
        return reply

    return read


def ask(connection: Wire, *command: Argument) -> Reply:
    """One command's reply on a connection that is made."""
    connection.send_command(*command, check_health=False)
    return connection.read_response(disable_decoding=True)


def _left(deadline: float) -> float | None:
    return None if deadline == inf else max(_SHORTEST, deadline - time.monotonic())


def _looked_up(host: str, port: int, deadline: float) -> list[Any]:
    """As `socket.getaddrinfo`, which has no time limit: a thread of its own waits for it."""
    wanted = host, port, 0, socket.SOCK_STREAM
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        return socket.getaddrinfo(*wanted)
    answers: queue.SimpleQueue[list[Any] | OSError] = queue.SimpleQueue()

    def look_up() -> None:
        try:
            answers.put(socket.getaddrinfo(*wanted))
        except OSError as error:
            answers.put(error)
        except UnicodeError as error:
            answers.put(OSError(f"{host!r} can't be the name of a host: {error}"))

    threading.Thread(target=look_up, name="umbel-redis-name", daemon=True).start()
    try:
        answer = answers.get(timeout=_left(deadline))
    except queue.Empty:
        # As a TimeoutError, redis-py would put words of its own in place of these.
        raise OSError(f"the name {host!r} wasn't resolved in time") from None
    if isinstance(answer, OSError):
        raise answer
    return answer
