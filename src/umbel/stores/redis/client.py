"""redis-py, with what the store asks of it in types, and its errors as ours."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, Protocol

from umbel.exceptions import ImproperlyConfigured, StoreUnavailable
from umbel.polling import answer_by, answered_by
from umbel.redisurl import CONNECT_TIMEOUT, Address, Servers

if TYPE_CHECKING:
    from redis import ConnectionPool

    from umbel.redisplaces import Place

Record = bytes | None


class Wire(Protocol):
    """One connection of redis-py."""

    @property
    def _sock(self) -> Any: ...

    def connect(self) -> None: ...

    def disconnect(self) -> None: ...

    def send_command(self, *parts: str | bytes, check_health: bool = True) -> None: ...

    def can_read(self, timeout: float = 0) -> bool: ...

    def read_response(self) -> Any: ...


class Client:
    """The connections of one store in this process. Nothing is connected before it is used.

    Raises `StoreUnavailable`. A command is sent once more, at once, where the connection broke
    under it: all that the store sends may be repeated.
    """

    def __init__(self, servers: Servers, name: str, script: str) -> None:
        """`name` is what errors call the store; `script` is the one that `run` runs."""
        try:
            import redis
        except ImportError as error:
            raise ImproperlyConfigured(
                "a result store on Redis needs redis-py; install it: pip install 'umbel[redis]'"
            ) from error
        from umbel.redisplaces import place_of

        self._name = name
        self._timeout: float = servers.server.options.get("socket_timeout") or inf
        # What redis-py returns depends on its options, and its types don't say on which.
        self._pool: Any = _pool(place_of(servers), servers.server)
        self._redis: Any = redis.Redis(connection_pool=self._pool)
        self._script: Callable[..., Any] = self._redis.register_script(script)
        try:
            self.unconnected()
        except TypeError as error:
            raise ImproperlyConfigured(
                f"the options of the connection to {name} aren't all options of redis-py: {error}"
            ) from error

    def ping(self) -> None:
        with self._translated():
            self._redis.ping()

    def close(self) -> None:
        self._pool.disconnect()

    def get(self, keys: Sequence[bytes]) -> list[Record]:
        if answer_by() < inf:
            records = self.get_until(keys, answer_by())
            if records is None:
                raise StoreUnavailable(f"The result store {self._name} doesn't answer in time.")
            return records
        with self._translated():
            found: list[Record] = self._redis.mget(keys)
            return found

    def delete(self, keys: Sequence[bytes]) -> int:
        """How many there were."""
        with self._translated():
            return int(self._redis.unlink(*keys))

    def run(self, keys: Sequence[bytes], arguments: Sequence[str | bytes]) -> list[int]:
        """The script's reply. It is loaded (again) where the server doesn't know it."""
        with self._translated():
            return list(self._script(keys, arguments))

    def keys(self, pattern: str) -> Iterator[bytes]:
        """Those there are, some perhaps twice, none that was there all the time left out."""
        with self._translated():
            yield from self._redis.scan_iter(match=pattern, count=1000)

    def get_until(self, keys: Sequence[bytes], deadline: float) -> list[Record] | None:
        """As `get`; None where the server doesn't answer before that moment (monotonic)."""
        from redis import exceptions

        with self._translated(), answered_by(deadline):
            try:
                try:
                    return self._try_to_get(keys, deadline)
                except exceptions.ConnectionError:
                    return self._try_to_get(keys, deadline)
            except exceptions.TimeoutError:
                if time.monotonic() < deadline:
                    raise
                return None

    def unconnected(self) -> Wire:
        """A new connection outside of the pool, which may be small. It never asks by itself
        whether the server is there."""
        options = {**self._pool.connection_kwargs, "health_check_interval": 0}
        wire: Wire = self._pool.connection_class(**options)
        return wire

    def _try_to_get(self, keys: Sequence[bytes], deadline: float) -> list[Record] | None:
        wire: Wire = self._pool.get_connection()
        try:
            wire.send_command("MGET", *keys)
            left = max(0.0, deadline - time.monotonic())
            if wire.can_read(timeout=min(left, self._timeout)):
                records: list[Record] = wire.read_response()
                return records
            wire.disconnect()
            if left > self._timeout:
                raise TimeoutError(f"no answer within {self._timeout:g} s")
            return None
        except BaseException:
            wire.disconnect()  # its reply would be taken for that of the next command
            raise
        finally:
            self._pool.release(wire)

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        from redis.exceptions import RedisError

        try:
            yield
        except (RedisError, OSError) as error:
            raise unavailable(self._name, error) from error


class _Punctual:
    """Makes a connection of redis-py so that connecting, the words that it begins with included,
    ends within its `socket_connect_timeout`, and when nobody waits for the answer any more; to the
    server that its place means just then."""

    place: Place
    host: str
    port: int
    _goal: Address | None = None
    _sock: Any
    _parser: Any
    socket_timeout: float | None
    socket_connect_timeout: float | None

    def connect(self) -> None:
        if self._sock is None:
            self._connect_in_time(self.socket_timeout, self.socket_connect_timeout)

    def _connect_in_time(self, answer: float | None, connecting: float | None) -> None:
        limit = min(connecting or inf, max(0.001, answer_by() - time.monotonic()))
        self._goal = None
        try:
            self._goal = self._goes_to(time.monotonic() + min(limit, CONNECT_TIMEOUT))
            self.socket_connect_timeout = limit if limit < inf else None
            limit = min(answer or inf, limit)
            self.socket_timeout = limit if limit < inf else None
            super().connect()  # type: ignore[misc]
            self.place.check(self)  # type: ignore[arg-type]  # what is beside it makes it a Wire
        except (OSError, _errors().RedisError) as error:
            self.disconnect()
            self.place.failed(error, self._goal)
            raise
        finally:
            self.socket_timeout, self.socket_connect_timeout = answer, connecting
        # They have taken over the time that was for connecting.
        self._sock.settimeout(answer)
        self._parser.on_connect(self)

    def _goes_to(self, deadline: float) -> Address:
        address = self.place.address(deadline)
        if address.path is None:
            self.host, self.port = address.host, address.port
        return address

    def send_packed_command(self, *args: Any, **options: Any) -> None:
        if self.place.is_watched and self.place.now() != self._goal:
            self.disconnect()  # and so it is made anew, to the server that is meant now
        if self._sock is None:
            self.connect()  # redis-py would make it without a word to us
        super().send_packed_command(*args, **options)  # type: ignore[misc]

    def disconnect(self, *args: Any) -> None:
        super().disconnect(*args)  # type: ignore[misc]

    def read_response(self, *args: Any, **options: Any) -> Any:
        """What the wrong server refuses counts as a broken connection: it is made anew, to the
        right one, and asked again."""
        errors = _errors()
        try:
            return super().read_response(*args, **options)  # type: ignore[misc]
        except (errors.MovedError, errors.ReadOnlyError) as error:
            if not self.place.failed(error):
                raise
            self.disconnect()
            raise errors.ConnectionError(f"this server isn't the one any more: {error}") from error


def unavailable(name: str, error: Exception) -> StoreUnavailable:
    text = str(error) or repr(error)
    return StoreUnavailable(f"The result store {name} can't be used now: {text}.")


def _pool(place: Place, server: Address) -> ConnectionPool:
    from redis import connection as kinds

    from umbel.redisconnecting import kind_of

    options = _options(server)
    of_redis = kind_of(server)
    kind: Any = type(of_redis.__name__, (_Punctual, of_redis), {"place": place})
    if server.max_connections is None:
        return kinds.ConnectionPool(connection_class=kind, **options)
    make: Any = kinds.BlockingConnectionPool
    # Who finds all in use waits for one, as long as for an answer.
    pool: ConnectionPool = make(
        max_connections=server.max_connections,
        timeout=options.get("socket_timeout"),
        connection_class=kind,
        **options,
    )
    return pool


def _options(server: Address) -> dict[str, Any]:
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    from umbel.redisconnecting import options_of

    options = options_of(server)
    again: tuple[type[Exception], ...] = (redis.ConnectionError,)
    if options.pop("retry_on_timeout", False):
        again = (redis.ConnectionError, redis.TimeoutError)
    # The older protocol: in the newer one what a subscription brings comes between replies.
    return {**options, "decode_responses": False, "retry": Retry(NoBackoff(), 1, again)}


def _errors() -> Any:
    """redis-py's exceptions: it may not be installed where this module is read."""
    from redis import exceptions

    return exceptions
