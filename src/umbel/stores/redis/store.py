"""``redis://`` as result store, in Celery's form: either reads what the other has stored.

==================================  =========================================================
``<prefix>celery-task-meta-<id>``   the record, as `umbel.stored` says; expires by itself
channel of the same name            gets the record each time when one is stored
==================================  =========================================================

The prefix is `global_keyprefix` of `result_backend_transport_options`. Times are the server's: a
record's life begins when it is stored. Everything here may be repeated.
"""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib import resources
from itertools import islice
from typing import Final, TypeVar

from umbel.clock import SYSTEM, Clock
from umbel.exceptions import BackendGetMetaError, BackendStoreError, StoreUnavailable
from umbel.formats import JSON_RESULTS, ResultFormat
from umbel.message import Result
from umbel.polling import Interrupts
from umbel.redisurl import Servers, key_prefix
from umbel.states import READY_STATES, SUCCESS
from umbel.stored import decode_meta
from umbel.stores.redis.client import Client, Record, Wire, unavailable
from umbel.stores.redis.listening import CHECK, Listener

logger = logging.getLogger("umbel")

T = TypeVar("T")

KEY: Final = "celery-task-meta-"
LARGEST: Final = 512 * 2**20
"""Bytes of a value, as Redis has it."""
_AT_ONCE: Final = 500
_BATCH_BYTES: Final = 8 * 2**20
_KEEP: Final = resources.files("umbel.stores.redis").joinpath("keep.lua").read_text("utf-8")
_LOOK_AGAIN: Final = 2
"""What the script says of a record that it can't read."""
# The state stands first in what Celery and Umbel write.
_STATE: Final = re.compile(rb'\s*\{\s*"status"\s*:\s*"([^"\\]*)"')
_NO_OPTIONS: Final[Mapping[str, object]] = {}
_BEGINNING: Final = datetime.min.replace(tzinfo=UTC)


class RedisStore:
    """States and values by task id, on one server at a time. `transport` is
    `result_backend_transport_options`."""

    def __init__(
        self,
        servers: Servers,
        transport: Mapping[str, object] = _NO_OPTIONS,
        *,
        form: ResultFormat = JSON_RESULTS,
        clock: Clock = SYSTEM,
    ) -> None:
        self._servers = servers
        self._prefix = key_prefix(transport, servers) + KEY
        self._form = form
        self._clock = clock
        self._interrupts = Interrupts()
        self._opened: Client | None = None
        check = servers.server.options.get("health_check_interval") or CHECK
        self._listener = Listener(self._listening_connection, check)

    @property
    def location(self) -> str:
        """That of a broker on the same server, where its scripts can read what is stored."""
        server = self._servers.location
        return server if self._form.is_plain else f"{server} ({self._form.serializer.name})"

    @property
    def listener(self) -> Listener:
        """For tests and tools that look at it."""
        return self._listener

    def open(self) -> None:
        if self._opened is not None:
            return
        self._opened = Client(self._servers, self.location, _KEEP)
        try:
            self._opened.ping()
        except StoreUnavailable as error:
            # Whoever stores or reads asks again; a worker starts, and keeps what it has to store.
            logger.warning("%s It is used as soon as it can be.", error)

    def close(self) -> None:
        client, self._opened = self._opened, None
        self._listener.close()
        if client is not None:
            client.close()

    def put(self, results: Sequence[Result]) -> None:
        for result in results:
            _check_size(result)
        for batch in _batches(results):
            self._put(batch)

    def get(self, task_ids: Sequence[str]) -> list[Result | None]:
        records: list[Record] = []
        for some in _in_parts(task_ids):
            records += self._client.get([self._key(task_id) for task_id in some])
        return [self._result(*pair) for pair in zip(task_ids, records, strict=True)]

    def wait(self, task_ids: Sequence[str], timeout: float) -> Sequence[Result | None] | None:
        deadline = time.monotonic() + timeout
        keys = [self._key(task_id) for task_id in task_ids]
        if timeout <= 0 or self._interrupts.take():
            return None
        records = self._wait(keys, deadline)
        self._interrupts.take()
        if records is None:
            return None
        try:
            return [self._result(*pair) for pair in zip(task_ids, records, strict=True)]
        except BackendGetMetaError:
            return None  # whoever asks for it is told why

    def _wait(self, keys: Sequence[bytes], deadline: float) -> Sequence[Record] | None:
        before = self._client.get_until(keys, deadline)
        if before is None or any(map(self._is_ready, before)):
            return before
        with self._listener.watching(list(dict.fromkeys(keys))) as watch:
            while watch.missing and not watch.told:
                if not watch.sleep(deadline):
                    return None
            # What comes from here on is heard.
            if not watch.told:
                records = self._client.get_until(keys, deadline)
                if records is None or records != before or any(map(self._is_ready, records)):
                    return records
            while not (watch.told or self._interrupts.take()):
                if not watch.sleep(deadline):
                    return None
            if watch.error is not None:
                raise unavailable(self.location, watch.error) from watch.error
            if not watch.heard:
                return None
            return [watch.heard.get(*pair) for pair in zip(keys, before, strict=True)]

    def interrupt(self) -> None:
        self._interrupts.add()
        self._listener.tell_all()

    def forget(self, task_ids: Sequence[str]) -> None:
        for some in _in_parts(task_ids):
            self._client.delete([self._key(task_id) for task_id in some])

    def prune(self, keep: int | None = None) -> int:
        """What is due goes by itself; of the rest, all SUCCESSes but the newest `keep`."""
        if keep is None:
            return 0
        ended = sorted(set(self._successes()), reverse=True)
        over = [key for _, key in ended[keep:]]
        return sum(self._client.delete(some) for some in _in_parts(over))

    @property
    def _client(self) -> Client:
        if self._opened is None:
            raise StoreUnavailable(f"The result store {self.location} is closed; open it first.")
        return self._opened

    def _key(self, task_id: str) -> bytes:
        return (self._prefix + task_id).encode("utf-8", "surrogatepass")

    def _listening_connection(self) -> Wire:
        return self._client.unconnected()

    def _put(self, results: Sequence[Result]) -> None:
        replies = self._keep([(result, b"") for result in results])
        for result, reply in zip(results, replies, strict=True):
            if reply == _LOOK_AGAIN:
                self._replace(result)

    def _keep(self, results: Sequence[tuple[Result, bytes]]) -> list[int]:
        keys = [self._key(result.task_id) for result, _ in results]
        parts = [(result.meta, self._life(result), known) for result, known in results]
        return self._client.run(keys, [each for part in parts for each in part])

    def _replace(self, result: Result) -> None:
        """Where the older record has to be read here; again, if another writer came between."""
        reply = _LOOK_AGAIN
        while reply == _LOOK_AGAIN:
            [old] = self._client.get([self._key(result.task_id)])
            if old is not None and self._state(old) == SUCCESS:
                return
            [reply] = self._keep([(result, old or b"")])

    def _life(self, result: Result) -> str:
        """Milliseconds, as the script wants it; what is over already goes at once."""
        if result.expires_at is None:
            return ""
        return str(max(1, math.ceil((result.expires_at - self._clock.wall()) * 1000)))

    def _state(self, meta: bytes) -> str:
        """'' where the record can't be read."""
        if (found := _STATE.match(meta)) is not None:
            return found[1].decode("utf-8", "replace")
        try:
            return decode_meta(meta, self._form).status
        except BackendGetMetaError:
            return ""

    def _is_ready(self, meta: bytes | None) -> bool:
        """Also what can't be read: whoever waits shall see why."""
        return meta is not None and self._state(meta) in (*READY_STATES, "")

    def _result(self, task_id: str, meta: bytes | None) -> Result | None:
        if meta is None:
            return None
        state = self._state(meta) or decode_meta(meta, self._form).status
        return Result(task_id, state, meta)

    def _successes(self) -> Iterator[tuple[datetime, bytes]]:
        """(when it ended, key) of each."""
        pattern = re.sub(r"([\\*?\[\]^-])", r"\\\1", self._prefix) + "*"
        keys = self._client.keys(pattern)
        while some := list(islice(keys, _AT_ONCE)):
            for key, meta in zip(some, self._client.get(some), strict=True):
                if meta is not None and self._state(meta) == SUCCESS:
                    yield _ended_at(decode_meta(meta, self._form).date_done), key


def _check_size(result: Result) -> None:
    if len(result.meta) > LARGEST:
        raise BackendStoreError(
            f"the result of task {result.task_id} has {len(result.meta)} bytes, more than the "
            "512 MiB that Redis takes for a value. Return less, or keep results elsewhere",
            state=result.state,
            task_id=result.task_id,
        )


def _ended_at(text: str | None) -> datetime:
    try:
        when = datetime.fromisoformat(text or "")
    except ValueError:
        return _BEGINNING
    return when if when.tzinfo is not None else when.replace(tzinfo=UTC)


def _in_parts(items: Sequence[T]) -> Iterator[Sequence[T]]:
    return (items[start : start + _AT_ONCE] for start in range(0, len(items), _AT_ONCE))


def _batches(results: Sequence[Result]) -> Iterator[list[Result]]:
    """Of a size that no server minds."""
    batch: list[Result] = []
    size = 0
    for result in results:
        if batch and (size + len(result.meta) > _BATCH_BYTES or len(batch) == _AT_ONCE):
            yield batch
            batch, size = [], 0
        batch.append(result)
        size += len(result.meta)
    if batch:
        yield batch
