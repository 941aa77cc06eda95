"""``cache+memcached://host1;host2:11211/`` as result store: Celery's keys, records and placement.

The server keeps the time: a record may stay up to two seconds longer than its expiry, and leaves
earlier where the server needs the room. A server that doesn't answer is an error, never a reason to
ask another, since a record would then be in two places.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from umbel.clock import SYSTEM, Clock
from umbel.exceptions import (
    BackendGetMetaError,
    BackendStoreError,
    ImproperlyConfigured,
    StoreUnavailable,
)
from umbel.formats import JSON_RESULTS, ResultFormat
from umbel.message import Result
from umbel.polling import Pauses, poll
from umbel.states import SUCCESS
from umbel.stored import decode_meta

if TYPE_CHECKING:
    from pymemcache.client.base import PooledClient

PREFIX: Final = "celery-task-meta-"
PORT: Final = 11_211
_LONGEST_RELATIVE: Final = 30 * 86_400
"""Seconds; the protocol takes a larger number for an instant."""
_TIMEOUTS: Final[Mapping[str, object]] = {"connect_timeout": 5.0, "timeout": 5.0}


class MemcachedStore:
    """States and values by task id, on one or more memcached servers.

    `servers` are ``host`` or ``host:port``. `options` are for pymemcache's client
    (`cache_backend_options`).
    """

    def __init__(
        self,
        servers: Sequence[str],
        options: Mapping[str, object] | None = None,
        *,
        form: ResultFormat = JSON_RESULTS,
        clock: Clock = SYSTEM,
    ) -> None:
        self._form = form
        self._servers = [_address(server) for server in servers]
        self._options: dict[str, Any] = {**_TIMEOUTS, **(options or {})}
        self._clock = clock
        self._clients: dict[str, PooledClient] = {}
        self._pauses = Pauses()

    @property
    def location(self) -> str:
        return "memcached:" + ";".join(f"{host}:{port}" for host, port in self._servers)

    def open(self) -> None:
        try:
            from pymemcache.client.base import PooledClient
            from pymemcache.client.rendezvous import RendezvousHash
        except ImportError as error:
            raise ImproperlyConfigured(
                "a result store on Memcached needs pymemcache; install it: "
                "pip install 'umbel[cache]'"
            ) from error
        if not self._clients:
            try:
                self._clients = {
                    f"{host}:{port}": PooledClient((host, port), **self._options)
                    for host, port in self._servers
                }
            except TypeError as error:
                raise ImproperlyConfigured(
                    f"cache_backend_options {self._options!r} aren't all options of pymemcache's "
                    f"client: {error}"
                ) from error
        # Celery's placement, which is pymemcache's.
        self._ring = RendezvousHash(list(self._clients))
        self._pauses.open()

    def close(self) -> None:
        self._pauses.close()
        for client in self._clients.values():
            client.close()

    def put(self, results: Sequence[Result]) -> None:
        for result in results:
            with self._translated(result):
                while not self._try_to_put(result):
                    pass

    def get(self, task_ids: Sequence[str]) -> list[Result | None]:
        by_server: dict[str, list[str]] = {}
        for task_id in task_ids:
            by_server.setdefault(self._server_of(task_id), []).append(task_id)
        found: dict[str, bytes] = {}
        for server, ids in by_server.items():
            with self._translated():
                values = self._clients[server].get_many([_key(task_id) for task_id in ids])
            found |= {str(key): value for key, value in values.items()}
        return [_record(task_id, found.get(_key(task_id)), self._form) for task_id in task_ids]

    def wait(self, task_ids: Sequence[str], timeout: float) -> None:
        poll(self.get, task_ids, timeout, self._pauses)

    def interrupt(self) -> None:
        self._pauses.interrupt()

    def forget(self, task_ids: Sequence[str]) -> None:
        for task_id in task_ids:
            with self._translated():
                self._client(task_id).delete(_key(task_id), noreply=False)

    def prune(self, keep: int | None = None) -> int:
        return 0  # what is due goes by itself, and nobody can list what is there

    def _server_of(self, task_id: str) -> str:
        return str(self._ring.get_node(_key(task_id)))

    def _client(self, task_id: str) -> PooledClient:
        return self._clients[self._server_of(task_id)]

    def _try_to_put(self, result: Result) -> bool:
        """False where another writer came between reading and writing."""
        client, key = self._client(result.task_id), _key(result.task_id)
        life = self._life(result)
        old, token = client.gets(key)
        if old is None:
            return bool(client.add(key, result.meta, expire=life, noreply=False))
        if _state(old, self._form) == SUCCESS:
            return True
        return client.cas(key, result.meta, token, expire=life, noreply=False) is True

    def _life(self, result: Result) -> int:
        """As the protocol wants it: 0 is for ever. Whole seconds, rounded to the safe side."""
        if result.expires_at is None:
            return 0
        seconds = max(0, math.ceil(result.expires_at - self._clock.wall())) + 1
        return seconds if seconds <= _LONGEST_RELATIVE else math.ceil(result.expires_at) + 1

    @contextlib.contextmanager
    def _translated(self, result: Result | None = None) -> Iterator[None]:
        from pymemcache.exceptions import MemcacheError, MemcacheServerError

        try:
            yield
        except MemcacheServerError as error:
            if result is None or b"too large" not in b"".join(map(_bytes, error.args)):
                raise self._unavailable(error) from error
            raise BackendStoreError(
                f"the result of task {result.task_id} has {len(result.meta)} bytes, more than the "
                "memcached server takes (1 MiB unless started with -I). Return less, or keep "
                "results elsewhere",
                state=result.state,
                task_id=result.task_id,
            ) from error
        except (MemcacheError, OSError) as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: Exception) -> StoreUnavailable:
        return StoreUnavailable(f"The result store {self.location} doesn't answer: {error!r}.")


def _bytes(part: object) -> bytes:
    return part if isinstance(part, bytes) else str(part).encode()


def _key(task_id: str) -> str:
    """As Celery's where it can be a key; other ids (blanks, more than 250 bytes) are hashed."""
    key = PREFIX + task_id
    if len(key) <= 250 and key.isascii() and key.isprintable() and " " not in key:
        return key
    import hashlib

    return f"{PREFIX}%{hashlib.sha256(task_id.encode('utf-8', 'surrogatepass')).hexdigest()}"


def _state(meta: bytes, form: ResultFormat) -> str:
    try:
        return decode_meta(meta, form).status
    except BackendGetMetaError:
        return ""


def _record(task_id: str, meta: bytes | None, form: ResultFormat) -> Result | None:
    return None if meta is None else Result(task_id, decode_meta(meta, form).status, meta)


def _address(server: str) -> tuple[str, int]:
    host, colon, port = server.rpartition(":")
    if not colon:
        return server, PORT
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise ImproperlyConfigured(
            f"the memcached server {server!r} isn't an address; write host or host:port, several "
            "as cache+memcached://host1;host2:11211/"
        )
    return host, int(port)
