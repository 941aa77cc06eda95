"""Which server to talk to: a fixed one, the next of several, a Sentinel's primary, a slot's owner.

A place is asked for an address before each connection, and told of each failure; what it learns
from that, it says: whether the connections that there are may lead to the wrong server.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

from redis import exceptions as errors
from redis.crc import key_slot

from umbel.exceptions import ImproperlyConfigured
from umbel.redisconnecting import Wire, ask, connection_to, socket_of
from umbel.redisurl import Address, Cluster, Sentinels, Servers, Several

_ABSENT: Final = {"s_down", "o_down"}
"""What a Sentinel says of a primary that it can't reach."""
LOOK_AGAIN: Final = 1.0
"""Seconds after which a place that can change behind good connections is looked for again."""
_AFTER_A_VAIN_LOOK: Final = 10.0
_FOR_A_LOOK: Final = 0.2


class Place(Protocol):
    """Thread-safe. Raises redis-py's errors, and `OSError`."""

    location: str
    """What is there, for messages and as a name: two of one location share their data."""
    options: Address
    """One address of it; its database and options are those of all."""
    tries: int
    """How many addresses in a row are worth a try."""
    is_watched: bool
    """Whether it can change behind connections that work, so that `now` is worth asking."""
    slot_key: str | None
    """Where keys have an owner: a key that never is there, in the slot of all that are used. A
    script that names it is carried out by the owner only, and not while the slot is being moved,
    when keys that aren't there are looked for elsewhere (ASK)."""

    def address(self, deadline: float) -> Address:
        """Where to connect now; found before `deadline` (monotonic)."""
        ...

    def now(self) -> Address | None:
        """The address that is meant, as of a moment ago; None where that isn't known."""
        ...

    def check(self, connection: Wire) -> None:
        """Raises where the server that was reached isn't the one that is meant."""
        ...

    def failed(self, error: BaseException, address: Address | None = None) -> bool:
        """Told of a failed connection to `address`, or of a call to what was given last. True:
        another server is meant by now, or may be."""
        ...


class Alone:
    """One server, always the same."""

    tries = 1
    is_watched = False
    slot_key: str | None = None

    def __init__(self, address: Address) -> None:
        self.options = address
        self.location = address.location

    def address(self, deadline: float) -> Address:
        return self.options

    def now(self) -> Address | None:
        return self.options

    def check(self, connection: Wire) -> None:
        """It is."""

    def failed(self, error: BaseException, address: Address | None = None) -> bool:
        return False


class NextOf:
    """Several servers, of which the first that takes a connection is used until it fails."""

    is_watched = False
    slot_key: str | None = None

    def __init__(self, several: Several) -> None:
        self.options = several.server
        self.location = several.location
        self.tries = len(several.addresses)
        self._order = _order(several)
        self._now = next(self._order)
        self._lock = threading.Lock()

    def address(self, deadline: float) -> Address:
        return self._now

    def now(self) -> Address | None:
        return self._now

    def check(self, connection: Wire) -> None:
        """Each of them is meant."""

    def failed(self, error: BaseException, address: Address | None = None) -> bool:
        if isinstance(error, errors.ResponseError) and not isinstance(error, errors.ReadOnlyError):
            return False
        with self._lock:
            # Else another thread has come upon it, too.
            if address is None or address == self._now:
                self._now = next(self._order)
        return True


def _order(several: Several) -> Iterator[Address]:
    """The servers, in the order in which they are tried, without end."""
    if callable(several.strategy):
        by_url = dict(zip(several.urls, several.addresses, strict=True))
        for url in several.strategy(list(several.urls)):
            if url not in by_url:
                raise ImproperlyConfigured(
                    f"broker_failover_strategy gave {url!r}, which isn't one of the URLs"
                )
            yield by_url[url]
        raise ImproperlyConfigured("broker_failover_strategy came to an end; it mustn't")
    addresses = list(several.addresses)
    while True:
        if several.strategy == "shuffle":
            random.shuffle(addresses)
        yield from addresses


class Primary:
    """The server that Sentinels call the primary. They are asked before each connection, and
    meanwhile now and then: a failover that was ordered leaves the old primary as one for seconds,
    with its clients, and what it is told then is lost."""

    tries = 1
    is_watched = True
    slot_key: str | None = None

    def __init__(self, sentinels: Sentinels) -> None:
        self._of = sentinels
        self._sentinels: Sequence[Address] = sentinels.addresses
        self.options = sentinels.server
        self.location = sentinels.location
        self._known: Address | None = None
        self._look_at = 0.0

    def now(self) -> Address | None:
        now = time.monotonic()
        if now > self._look_at:
            self._look_at = now + _AFTER_A_VAIN_LOOK
            with contextlib.suppress(errors.RedisError, OSError):
                self.address(now + _FOR_A_LOOK)
        return self._known

    def address(self, deadline: float) -> Address:
        reasons: list[str] = []
        # Without any Sentinel it is where it was: whether it is the primary, it says itself.
        doubtful = self._known
        asked = list(self._sentinels)
        for number, sentinel in enumerate(asked):
            # A part of the time is for the primary; what a Sentinel leaves, the next one has.
            left = (deadline - time.monotonic()) / (len(asked) - number + 1)
            try:
                found, is_there = self._asked(sentinel, left)
            except (errors.RedisError, OSError) as error:
                reasons.append(f"{sentinel.host}:{sentinel.port} says: {error}")
                continue
            if is_there:
                # The next question begins with the one that knew.
                self._sentinels = [sentinel, *asked[:number], *asked[number + 1 :]]
                return self._meant(found)
            doubtful = found
        if doubtful is not None:
            return self._meant(doubtful)
        raise errors.ConnectionError(
            f"no Sentinel knows a primary {self._of.name!r}; " + "; ".join(reasons)
        )

    def _meant(self, found: Address) -> Address:
        self._known = found
        self._look_at = time.monotonic() + LOOK_AGAIN
        return found

    def _asked(self, sentinel: Address, seconds: float) -> tuple[Address, bool]:
        """Where it says that the primary is, and whether it can reach it."""
        told = _answer(sentinel, seconds, "SENTINEL", "MASTER", self._of.name)
        flat = [each.decode() for each in told]
        known = dict(zip(flat[::2], flat[1::2], strict=True))
        others = int(known.get("num-other-sentinels", 0))
        if others < self._of.min_others:
            raise errors.ConnectionError(
                f"{others} others are known; min_other_sentinels is {self._of.min_others}"
            )
        found = replace(self.options, host=known["ip"], port=int(known["port"]))
        return found, _ABSENT.isdisjoint(known.get("flags", "").split(","))

    def check(self, connection: Wire) -> None:
        role = ask(connection, "ROLE")[0]
        if role != b"master":
            raise errors.ReadOnlyError(f"it is a {role.decode()}, not the primary")

    def failed(self, error: BaseException, address: Address | None = None) -> bool:
        return not isinstance(error, errors.ResponseError) or isinstance(
            error, errors.ReadOnlyError | errors.MasterDownError
        )


class Owner:
    """The node of a cluster that has the slot of one key; all keys used are in that slot."""

    tries = 2  # the owner that was known, and the one that there is now
    is_watched = False

    def __init__(self, cluster: Cluster) -> None:
        self._nodes: Sequence[Address] = cluster.addresses
        self._slot: int = key_slot(cluster.tag.encode())
        self._known: Address | None = None
        self.options = cluster.server
        self.slot_key: str | None = cluster.tag
        self.location = cluster.location

    def address(self, deadline: float) -> Address:
        if self._known is None:
            self._known = self._found(deadline)
        return self._known

    def now(self) -> Address | None:
        return self._known

    def _found(self, deadline: float) -> Address:
        reasons: list[str] = []
        nodes = list(self._nodes)
        for number, node in enumerate(nodes):
            left = (deadline - time.monotonic()) / (len(nodes) - number + 1)
            try:
                return self._asked(node, left)
            except (errors.RedisError, OSError) as error:
                reasons.append(f"{node.host}:{node.port} says: {error}")
        raise errors.ConnectionError(
            f"no node knows who has slot {self._slot}; " + "; ".join(reasons)
        )

    def _asked(self, node: Address, seconds: float) -> Address:
        ranges = _answer(node, seconds, "CLUSTER", "SLOTS")
        owner: Address | None = None
        known: dict[tuple[str, int], Address] = {}
        for first, last, *shown in ranges:
            # A node that has no name for itself is where it was asked.
            nodes = [
                self._at((host or b"").decode() or node.host, port) for host, port, *_ in shown
            ]
            known |= {(each.host, each.port): each for each in nodes}
            if first <= self._slot <= last:
                owner = nodes[0]
        if owner is None:
            raise errors.ClusterDownError("nobody has the slot")
        of_the_url = {(each.host, each.port): each for each in self._nodes}
        self._nodes = list((known | of_the_url).values())
        return owner

    def _at(self, host: str, port: int) -> Address:
        return replace(self.options, host=host, port=port)

    def check(self, connection: Wire) -> None:
        """Who isn't the owner (any more) says so (MOVED)."""

    def failed(self, error: BaseException, address: Address | None = None) -> bool:
        if isinstance(error, errors.MovedError):
            self._known = self._at(error.host, error.port) if error.host else None
            return True
        if isinstance(error, errors.ResponseError) and not isinstance(
            error, errors.ReadOnlyError | errors.ClusterDownError | errors.MasterDownError
        ):
            return False
        self._known = None
        return True


def place_of(servers: Servers) -> Place:
    match servers:
        case Address():
            return Alone(servers)
        case Several():
            return NextOf(servers)
        case Sentinels():
            return Primary(servers)
        case Cluster():
            return Owner(servers)


def _answer(server: Address, seconds: float, *command: str) -> Any:
    """One command's reply, on a connection of its own that is made, and answers, in time."""
    limited = {**server.options, "socket_timeout": max(0.001, seconds)}
    connection = connection_to(replace(server, options=limited), seconds)
    try:
        connection.connect()
        return ask(connection, *command)
    finally:
        connection.disconnect()


def connected(place: Place, seconds: float) -> Wire:
    """A connection that is made, within so many seconds. Raises what the last try did."""
    deadline = time.monotonic() + seconds
    for number in range(place.tries, 0, -1):
        connection: Wire | None = None
        address: Address | None = None
        try:
            address = place.address(deadline)
            connection = connection_to(address, (deadline - time.monotonic()) / number)
            connection.connect()
            place.check(connection)
            socket_of(connection).settimeout(address.options.get("socket_timeout"))
        except (errors.RedisError, OSError) as error:
            if connection is not None:
                connection.disconnect()
            place.failed(error, address)
            if number == 1:
                raise
        else:
            return connection
    raise AssertionError("a place has at least one address")
