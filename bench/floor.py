"""The floor: how little a task can cost plain Python with redis-py and msgspec.

It takes messages of Celery's form and size (about 700 bytes) in batches of 100 by a Lua script into
a hash of leases, decodes envelope and body, calls the function, and removes the leases with the
next batch. Nobody would look after the leases, nothing is retried, limited, revoked or logged.
``--fuller`` adds what any task queue needs: the headers are read, the task is looked up by its
name, a context is set around the call, and the outcome, an exception too, is a value; where results
are stored, they are, by the same script.

``python -m bench.floor [--fuller]`` is its worker: two processes that take, until SIGTERM.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
import uuid
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, Final, Generic, TypeVar

import msgspec
import redis
from bench.notes import note
from msgspec import Raw, Struct

BATCH: Final = 100
PROCESSES: Final = 2
QUEUE: Final = "floor"
LEASES: Final = "floor:leases"

_TURN: Final = """
-- KEYS: queue, leases.  ARGV: how many to take, the last lease, how many leases end, these, then
-- key and value of each result.
local ended = tonumber(ARGV[3])
if ended > 0 then redis.call('HDEL', KEYS[2], unpack(ARGV, 4, 3 + ended)) end
for i = 4 + ended, #ARGV, 2 do
  redis.call('SET', ARGV[i], ARGV[i + 1], 'EX', 86400)
  redis.call('PUBLISH', ARGV[i], ARGV[i + 1])
end
local taken = redis.call('RPOP', KEYS[1], ARGV[1])
if not taken then return {} end
local leases = {}
for i, message in ipairs(taken) do
  leases[2 * i - 1], leases[2 * i] = ARGV[2] + i, message
end
redis.call('HSET', KEYS[2], unpack(leases))
return taken
"""


class Named(Struct):
    """What the floor reads of a message's headers."""

    id: str
    task: str


class Headers(Struct):
    """What the fuller one reads of them."""

    id: str
    task: str
    root_id: str | None = None
    parent_id: str | None = None
    group: str | None = None
    eta: str | None = None
    expires: str | None = None
    retries: int = 0
    timelimit: tuple[float | None, float | None] = (None, None)
    ignore_result: bool = False


Read = TypeVar("Read")


class Envelope(Struct, Generic[Read]):
    """What is read of a message."""

    body: str
    headers: Read


class Context(Struct):
    """What runs, for the task to ask."""

    headers: Headers
    args: list[Any]
    kwargs: dict[str, Any]
    embedded: Raw
    started_at: float


class Ok(Struct):
    """How a task ended that returned."""

    value: object
    runtime: float


class Failed(Struct):
    """How one ended that raised."""

    error: Exception
    runtime: float


Outcome = Ok | Failed
current: ContextVar[Context | None] = ContextVar("current", default=None)


def noop(number: int) -> None:
    note(number)


REGISTRY: Final[dict[str, Callable[..., object]]] = {"bench.noop": noop}


# Sending


def _client() -> redis.Redis:
    return redis.Redis.from_url(os.environ["BENCH_URL"])


def _message(number: int) -> bytes:
    task_id = str(uuid.uuid4())
    body = msgspec.json.encode(
        ((number,), {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None})
    )
    return msgspec.json.encode(
        {
            "body": b64encode(body).decode(),
            "content-encoding": "utf-8",
            "content-type": "application/json",
            "headers": {
                "lang": "py", "task": "bench.noop", "id": task_id, "shadow": None, "eta": None,
                "expires": None, "group": None, "group_index": None, "retries": 0,
                "timelimit": [None, None], "root_id": task_id, "parent_id": None,
                "argsrepr": f"({number},)", "kwargsrepr": "{}", "origin": ORIGIN,
                "ignore_result": False, "replaced_task_nesting": 0, "stamps": {},
            },
            "properties": {
                "correlation_id": task_id, "reply_to": REPLY_TO, "delivery_mode": 2,
                "delivery_info": {"exchange": "", "routing_key": QUEUE}, "priority": 0,
                "body_encoding": "base64", "delivery_tag": str(uuid.uuid4()),
            },
        }
    )  # fmt: skip


ORIGIN: Final = f"gen{os.getpid()}@{socket.gethostname()}"
REPLY_TO: Final = str(uuid.uuid4())
_sends_to = None


def send(task: str, numbers: range) -> list[str]:
    """One trip for each."""
    assert task == "noop"
    push = _sender().lpush
    for number in numbers:
        push(QUEUE, _message(number))
    return []


def send_in_bulk(task: str, numbers: range) -> list[str]:
    """A trip for each hundred."""
    assert task == "noop"
    push = _sender().lpush
    for first in range(0, len(numbers), BATCH):
        push(QUEUE, *map(_message, numbers[first : first + BATCH]))
    return []


def _sender() -> redis.Redis:
    global _sends_to
    _sends_to = _sends_to or _client()
    return _sends_to


# Running


class Worker:
    """One process's loop. `plain` or, with `is_fuller`, as the module's docstring says."""

    def __init__(self, *, is_fuller: bool, is_stored: bool) -> None:
        self._redis = _client()
        self._turn = self._redis.register_script(_TURN)
        self._run = self._fuller if is_fuller else self._plain
        self._is_stored = is_stored
        self._envelope = msgspec.json.Decoder(Envelope[Named]).decode
        self._whole = msgspec.json.Decoder(Envelope[Headers]).decode
        self._body = msgspec.json.Decoder(tuple[list[Any], dict[str, Any], Raw]).decode
        self._lease = 0
        self.stops = False

    def loop(self) -> None:
        ended: Sequence[bytes | str | int] = (0,)
        keys = QUEUE, f"{LEASES}:{os.getpid()}"
        while True:
            taken = self._turn(keys, (0 if self.stops else BATCH, self._lease, *ended))
            if not taken and len(ended) > 1:
                ended = (0,)
            elif taken:
                first = self._lease + 1
                self._lease += len(taken)
                results = self._run(taken)
                ended = (len(taken), *range(first, self._lease + 1), *results)
            elif self.stops:
                return
            else:
                self._redis.blmove(QUEUE, QUEUE, 1, "RIGHT", "RIGHT")

    def _plain(self, taken: Sequence[bytes]) -> Sequence[bytes | str]:
        for message in taken:
            args, kwargs, _ = self._body(b64decode(self._envelope(message).body))
            noop(*args, **kwargs)
        return ()

    def _fuller(self, taken: Sequence[bytes]) -> Sequence[bytes | str]:
        results: list[bytes | str] = []
        for message in taken:
            envelope = self._whole(message)
            outcome = self._execute(envelope.headers, b64decode(envelope.body))
            if self._is_stored:
                task_id = envelope.headers.id
                results += f"celery-task-meta-{task_id}", _record(task_id, outcome)
        return results

    def _execute(self, headers: Headers, body: bytes) -> Outcome:
        args, kwargs, embedded = self._body(body)
        function = REGISTRY[headers.task]
        started_at = time.monotonic()
        token = current.set(Context(headers, args, kwargs, embedded, started_at))
        try:
            value = function(*args, **kwargs)
        except Exception as error:
            return Failed(error, time.monotonic() - started_at)
        finally:
            current.reset(token)
        return Ok(value, time.monotonic() - started_at)


_encode: Final = msgspec.json.Encoder().encode


def _record(task_id: str, outcome: Outcome) -> bytes:
    """As Celery stores it."""
    match outcome:
        case Ok(value):
            status, result = "SUCCESS", value
        case Failed(error):
            status, result = "FAILURE", repr(error)
    return _encode(
        {
            "status": status, "result": result, "traceback": None, "children": [],
            "date_done": time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime()),
            "task_id": task_id,
        }
    )  # fmt: skip


def main() -> None:
    children = [_start() for _ in range(PROCESSES)]

    def stop(*_: object) -> None:
        for child in children:
            os.kill(child, signal.SIGTERM)

    signal.signal(signal.SIGTERM, stop)
    for child in children:
        os.waitpid(child, 0)


def _start() -> int:
    """Forks a process that runs the loop; its id."""
    if child := os.fork():
        return child
    worker = Worker(is_fuller="--fuller" in sys.argv, is_stored=bool(os.environ["BENCH_STORED"]))

    def stop(*_: object) -> None:
        worker.stops = True

    signal.signal(signal.SIGTERM, stop)
    worker.loop()
    os._exit(0)


if __name__ == "__main__":
    main()
