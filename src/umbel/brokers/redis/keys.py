"""The keys of a broker on Redis, and whose they are.

Kombu's, as Celery has them; ``global_keyprefix`` stands before every key, also before ours, and on
a cluster, which Celery has not, a hash tag behind it, so that all are in one slot::

    <queue>                      list    priorities 0 to 2: LPUSH in, RPOP out
    <queue><sep><step>           list    priorities from 3, 6 and 9 on
    _kombu.binding.<exchange>    set     routing key, pattern, queue, with <sep> between them
    _kombu.binding_permanent.…   set     the same
    unacked                      hash    tag: [message, exchange, routing key] (JSON), what Celery's
                                         workers hold; we only ever take from it
    unacked_index                zset    unix seconds of the delivery: tag
    unacked_mutex                string  who looks for what dead workers of Celery's held

An element is Kombu's envelope (JSON). What we put there has one key more, the first one, which
Celery passes over: ``"umbel": "<state>"``. It holds the message's place in the order of arrival and
what we count beside it, so that nothing is left behind when a Celery worker takes the message.

Ours, with ``umbel:`` before them. Those of a queue go when the queue is empty of what they hold::

    {<queue>}:due       zset    due time: record             messages due later
    {<queue>}:lost      zset    place: record                what awaits burial
    {<queue>}:dead      zset    n: n                         dead letters, oldest first
    {<queue>}:letters   hash    n: letter                    the same, whole
    {<queue>}:dead-bytes  int                                their size

    due                 zset    first due time: queue        queues with something due later
    dead-ids            zset    0: id NUL n NUL queue        dead letters by task id

The broker's own, one of each, kept for as long as it is used::

    n                   int     order of arrival, of all that has one
    routes              int     rises with each change of queues or bindings
    queues              hash    name: "" kept, "r<run>" that run's own, "x" ended
    bindings            zset    n: [exchange, type, queue, key, arguments, Kombu's member] (JSON)
    revocations         zset    version: version NUL unix seconds NUL terminate NUL signal NUL id
    revocations:version int     version of the log, kept when its entries go
    revocations:looked  unix seconds of the last look for entries that are over
    heard:<name>        ""  with an expiry               what several workers hear, and one of them
                                has taken up: a command, or (with its queue) a message
    lease:<name>        hash    holder, until (unix seconds), seconds    with an expiry, as are
    bucket:<name>       hash    tokens, at (unix seconds)                what is in a token bucket
    count:<name>        hash    value, until (unix seconds)              a counter
    listeners           zset    unix seconds: exchange NUL Kombu's member      who listens for
                                answers, and until when
    beat                unix seconds of the last heartbeat of any run
    ended               zset    unix seconds: run            runs that are over, for seven days

A run's, deleted when it leaves or, by any other run's heartbeat, when it is taken for dead::

    runs                zset    n: run                       living runs, oldest first
    run:<run>           hash    info, seen (unix seconds), lease (seconds)
    run:<run>:owners    set     its living owners
    run:<run>:gone      set     its abandoned owners, which may not come back
    owner:<owner>       hash    run, begin, last (lease), turn, reply
    leases:<owner>      hash    lease: record

Pub/sub channels are Kombu's, ``global_keyprefix`` before them as well::

    /<database>.<exchange>                 what is published to a fanout exchange
    /<database>.<exchange>/<routing key>   the same, where there is a key

``state``, ``record`` and ``letter`` are described in lua/common.lua and lua/settling.lua.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from umbel.exceptions import ImproperlyConfigured

SEP: Final = "\x06\x16"
STEPS: Final = (0, 3, 6, 9)
UNACKED: Final = {
    "unacked_key": "unacked",
    "unacked_index_key": "unacked_index",
    "unacked_mutex_key": "unacked_mutex",
}
FANOUT: Final = "/{db}."
BINDINGS: Final = ("_kombu.binding.", "_kombu.binding_permanent.")


@dataclass(frozen=True, slots=True)
class Unacked:
    """Where Celery's workers keep what they hold, and after how many seconds it is another's.

    The names are Kombu's transport options ``unacked_key``, ``unacked_index_key`` and
    ``unacked_mutex_key``.
    """

    messages: str = "unacked"
    index: str = "unacked_index"
    mutex: str = "unacked_mutex"
    visibility_timeout: float = 3600.0

    @classmethod
    def of(cls, transport: Mapping[str, object]) -> Unacked:
        """From `broker_transport_options`. Raises `ImproperlyConfigured`."""
        names: list[str] = []
        for option, name in UNACKED.items():
            value = transport.get(option, name)
            if not isinstance(value, str) or not value:
                raise ImproperlyConfigured(
                    f"broker_transport_options has {option}={value!r}; expected a text, such as "
                    f"{name!r}"
                )
            names.append(value)
        timeout = transport.get("visibility_timeout", 3600.0)
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
            raise ImproperlyConfigured(
                f"broker_transport_options has visibility_timeout={timeout!r}; expected a number "
                "of seconds above 0, such as 3600"
            )
        messages, index, mutex = names
        return cls(messages, index, mutex, float(timeout))


@dataclass(frozen=True, slots=True)
class Keys:
    """Names of keys and channels. `low_first` serves priority 0 first, as Celery does on Redis.

    `fanout` stands before a channel's name, ``{db}`` in it being the database; with
    `fanout_keys`, the routing key belongs to the name.
    """

    prefix: str = ""
    sep: str = SEP
    steps: tuple[int, ...] = STEPS
    low_first: bool = False
    unacked: Unacked = Unacked()
    fanout: str = FANOUT
    fanout_keys: bool = True

    @classmethod
    def of(cls, transport: Mapping[str, object], *, low_first: bool) -> Keys:
        """From `broker_transport_options`. Raises `ImproperlyConfigured`."""
        steps = transport.get("priority_steps", STEPS)
        if not isinstance(steps, list | tuple) or not _are_steps(steps):
            raise ImproperlyConfigured(
                f"broker_transport_options has priority_steps={steps!r}; expected whole numbers "
                "from 0 to 9 that rise from 0, such as [0, 3, 6, 9]"
            )
        texts = {"global_keyprefix": "", "sep": SEP}
        for name, otherwise in texts.items():
            value = transport.get(name, otherwise)
            if not isinstance(value, str) or (name == "sep" and not value):
                raise ImproperlyConfigured(
                    f"broker_transport_options has {name}={value!r}; expected a text, such as "
                    f"{'shop:' if name != 'sep' else SEP!r}"
                )
            texts[name] = value
        unacked = Unacked.of(transport)
        return cls(
            texts["global_keyprefix"],
            texts["sep"],
            tuple(steps),
            low_first,
            unacked,
            _fanout_prefix(transport.get("fanout_prefix", True)),
            bool(transport.get("fanout_patterns", True)),
        )

    @property
    def serve(self) -> tuple[int, ...]:
        """The steps in the order in which they are served."""
        return tuple(sorted(self.steps, reverse=not self.low_first))

    def step(self, priority: int) -> int:
        """The step that a priority belongs to: the largest that isn't above it."""
        return self.steps[max(0, bisect_right(self.steps, priority) - 1)]

    def list(self, queue: str, step: int) -> str:
        return f"{self.prefix}{queue}{self.sep}{step}" if step else f"{self.prefix}{queue}"

    def own(self, name: str) -> str:
        return f"{self.prefix}umbel:{name}"

    def side(self, queue: str, name: str) -> str:
        return f"{self.prefix}umbel:{{{queue}}}:{name}"

    def channel(self, database: int, exchange: str, routing_key: str = "") -> str:
        """The channel of what is published to a fanout exchange."""
        name = f"{self.prefix}{self.fanout.replace('{db}', str(database))}{exchange}"
        return f"{name}/{routing_key}" if routing_key and self.fanout_keys else name

    def patterns(self, database: int, exchange: str) -> tuple[str, ...]:
        """What matches all channels of a fanout exchange, each once."""
        name = re.sub(r"([*?\[\]\\])", r"\\\1", self.channel(database, exchange))
        return (name, f"{name}/*") if self.fanout_keys else (name,)

    def kombu_bindings(self, exchange: str) -> str:
        return f"{self.prefix}{BINDINGS[0]}{exchange}"


def _fanout_prefix(value: object) -> str:
    """As Kombu has it: True is the default, and without one the database isn't told apart."""
    if isinstance(value, bool):
        return FANOUT if value else ""
    if not isinstance(value, str) or set("{}") & set(value.replace("{db}", "")):
        raise ImproperlyConfigured(
            f"broker_transport_options has fanout_prefix={value!r}; expected True, False or a "
            f"text, in which {{db}} is the database, such as {FANOUT!r}"
        )
    return value


def _are_steps(steps: Sequence[object]) -> bool:
    numbers = [step for step in steps if isinstance(step, int) and 0 <= step <= 9]
    is_rising = all(low < high for low, high in pairwise(numbers))
    return len(numbers) == len(steps) > 0 and numbers[0] == 0 and is_rising
