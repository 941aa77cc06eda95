"""The server as the driver's parts see it: scripts and commands that may be repeated.

Whoever may not repeat a call, which is `publish` alone, asks the link itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

import msgspec

from umbel.arguments import is_unicode
from umbel.brokers.redis.keys import Keys
from umbel.brokers.redis.link import Link, ReplyLost
from umbel.brokers.redis.scripts import Script, scripts_of
from umbel.clock import Clock
from umbel.redisconnecting import Argument, Reply

encode: Final = msgspec.msgpack.Encoder().encode
"""MessagePack, in which scripts are given what isn't flat."""

Found = TypeVar("Found")


class Server:
    """One database: its link, the names of its keys, its scripts, and the driver's clock."""

    __slots__ = ("clock", "keys", "link", "scripts")

    def __init__(self, link: Link, keys: Keys, clock: Clock) -> None:
        self.link = link
        self.keys = keys
        self.clock = clock
        self.scripts = scripts_of(keys, link.place.options.db)

    @property
    def location(self) -> str:
        return self.link.location

    @property
    def now(self) -> str:
        """Unix seconds, as the scripts want them."""
        return repr(self.clock.wall())

    def run(self, script: Script, *arguments: Argument) -> Reply:
        return self.looked(lambda: self.link.run(script, *arguments))

    def call(self, *command: Argument) -> Reply:
        return self.looked(lambda: self.link.call(*command))

    def calls(self, *commands: Sequence[Argument]) -> list[Reply]:
        """The replies to several commands, sent together."""
        replies: list[Reply] = self.looked(lambda: self.link.calls(commands))
        return replies

    def looked(self, call: Callable[[], Found]) -> Found:
        """A call that may be repeated, so that a lost reply is but unavailability."""
        try:
            return call()
        except ReplyLost as error:
            raise self.link.lost(error) from error.__cause__

    def promote(self) -> None:
        """Let what has fallen due wait, so that it is seen where it is."""
        due = self.call("ZRANGEBYSCORE", self.keys.own("due"), "-inf", self.now, "LIMIT", 0, 1)
        if due:
            self.run(self.scripts.promote, self.now)

    def queue_names(self) -> list[str]:
        return sorted(name.decode() for name in self.call("HKEYS", self.keys.own("queues")))


def askable(names: Iterable[str]) -> list[str]:
    """Each once, but for what isn't Unicode: the server can't be asked for it, and has none."""
    return [name for name in dict.fromkeys(names) if is_unicode(name)]
