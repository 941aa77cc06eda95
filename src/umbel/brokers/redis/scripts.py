"""The Lua scripts: each one's text, put together from its file and what that stands on."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Final

from umbel.brokers.redis.keys import Keys

_STANDS_ON: Final[dict[str, Sequence[str]]] = {
    "abandon": ("common", "settling", "ending"),
    "acquire": ("common", "coordinating"),
    "answer": ("common",),
    "beat": ("common", "settling", "ending"),
    "bury_lost": ("common", "settling"),
    "count": ("common", "coordinating"),
    "dead_delete": ("common", "settling"),
    "dead_prune": ("common", "settling"),
    "dead_requeue": ("common", "settling", "revoking"),
    "declare": ("common",),
    "enlist": ("common",),
    "expedite": ("common",),
    "hand_back": ("common",),
    "leave": ("common", "settling", "ending"),
    "listen": ("common",),
    "promote": ("common",),
    "publish": ("common",),
    "purge": ("common", "settling", "ending"),
    "relay": ("common",),
    "release": ("common", "coordinating"),
    "restore": ("common",),
    "revoke": ("common",),
    "stats": ("common", "settling", "ending"),
    "take": ("common", "coordinating"),
    "turn": ("common", "settling"),
    "unbind": ("common", "settling", "ending"),
    "unlock": ("common",),
    "unlisten": ("common",),
    "unrevoke": ("common", "revoking"),
}


@dataclass(frozen=True, slots=True)
class Script:
    """A script's text, and the name that the server knows it by once it has seen it."""

    name: str
    text: str
    sha: str = field(init=False)

    def __post_init__(self) -> None:
        # Redis names scripts by SHA-1; nothing is kept safe by it.
        digest = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()
        object.__setattr__(self, "sha", digest)


class Scripts:
    """All scripts of a broker with these keys in this database."""

    def __init__(self, keys: Keys, database: int) -> None:
        constants = _constants(keys, database)
        made = {name: _script(name, constants) for name in _STANDS_ON}
        self.abandon = made["abandon"]
        self.acquire = made["acquire"]
        self.answer = made["answer"]
        self.beat = made["beat"]
        self.bury_lost = made["bury_lost"]
        self.count = made["count"]
        self.dead_delete = made["dead_delete"]
        self.dead_prune = made["dead_prune"]
        self.dead_requeue = made["dead_requeue"]
        self.declare = made["declare"]
        self.enlist = made["enlist"]
        self.expedite = made["expedite"]
        self.hand_back = made["hand_back"]
        self.leave = made["leave"]
        self.listen = made["listen"]
        self.promote = made["promote"]
        self.publish = made["publish"]
        self.purge = made["purge"]
        self.relay = made["relay"]
        self.release = made["release"]
        self.restore = made["restore"]
        self.revoke = made["revoke"]
        self.stats = made["stats"]
        self.take = made["take"]
        self.turn = made["turn"]
        self.unbind = made["unbind"]
        self.unlock = made["unlock"]
        self.unlisten = made["unlisten"]
        self.unrevoke = made["unrevoke"]


def _script(name: str, constants: str) -> Script:
    return Script(name, "\n".join((constants, *map(_text, (*_STANDS_ON[name], name)))))


@cache
def scripts_of(keys: Keys, database: int) -> Scripts:
    """Put together once; a worker's processes inherit them."""
    return Scripts(keys, database)


@cache
def _text(name: str) -> str:
    return (resources.files("umbel.brokers.redis") / "lua" / f"{name}.lua").read_text("utf-8")


def _constants(keys: Keys, database: int) -> str:
    serve = ", ".join(map(str, keys.serve))
    return (
        f"local PREFIX, SEP = {_quoted(keys.prefix)}, {_quoted(keys.sep)}\n"
        f"local SERVE, DATABASE = {{ {serve} }}, {database}"
    )


def _quoted(text: str) -> str:
    """As a string of Lua, every byte as its number."""
    return '"' + "".join(f"\\{byte:03d}" for byte in text.encode()) + '"'
