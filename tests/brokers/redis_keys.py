"""Whether every key that a broker on Redis has left is one that is documented, and has an owner.

The documentation is the truth here: the names are read out of the docstring of
`umbel.brokers.redis.keys`, and a key that fits none of them is a stray.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from redis import Redis as Client

from umbel.brokers.redis import keys
from umbel.stores.redis import RESULT_KEY

_NAME: Final = re.compile(r"^    (\S+)(?: |$)", re.MULTILINE)
_EXPIRING: Final = ("heard:<name>", "lease:<name>", "bucket:<name>", "count:<name>")
_HELD_FOR_NOBODY: Final = ("runs", "listeners")
"""Kept by those who live alone: without living runs there is none."""


@dataclass(frozen=True, slots=True)
class Documented:
    """A name of the docstring, and whether it is a run's, or goes with an expiry."""

    name: str
    of_a_run: bool

    def matches(self, key: str, queues: Iterable[str]) -> bool:
        named = "|".join(map(re.escape, queues)) or "(?!)"
        parts = {"<queue>": f"(?:{named})", "<sep>": re.escape(keys.SEP), "<step>": r"\d"}
        pattern = "".join(
            parts.get(part, ".+") if part.startswith("<") or part == "…" else re.escape(part)
            for part in re.split(r"(<[^>]*>|…)", self.name)
        )
        return re.fullmatch(pattern, key) is not None


def documented() -> Iterator[Documented]:
    """All names, Kombu's and ours, each with what stands before it."""
    text = keys.__doc__ or ""
    kombus, _, rest = text.partition("Ours, with")
    lasting, _, runs = rest.partition("A run's,")
    runs, _, _ = runs.partition("Pub/sub")
    for part, prefix in ((kombus, ""), (lasting, "umbel:"), (runs, "umbel:")):
        for name in _NAME.findall(part):
            yield Documented(f"{prefix}{name}", part is runs)


def keys_at(url: str) -> set[str]:
    with _client(url) as client:
        return {key.decode() for key in client.scan_iter(count=1000)}


def kinds(names: Iterable[str], queues: Iterable[str]) -> Counter[str]:
    """How many keys there are of each documented name, results under their own."""
    known = list(documented())
    queues = list(queues)
    return Counter(
        f"{RESULT_KEY}<id>"
        if name.startswith(RESULT_KEY)
        else next((each.name for each in known if each.matches(name, queues)), f"unknown: {name}")
        for name in names
    )


def strays(url: str, queues: Iterable[str], *, running: bool) -> dict[str, str]:
    """Keys without an owner, and what is wrong with each. `running`: whether workers live."""
    known, queues = list(documented()), list(queues)
    expiring = {f"umbel:{name}" for name in _EXPIRING}
    living = {f"umbel:{name}" for name in _HELD_FOR_NOBODY}
    found: dict[str, str] = {}
    with _client(url) as client:
        for raw in client.scan_iter(count=1000):
            key = raw.decode()
            expires = client.ttl(key) != -1
            if key.startswith(RESULT_KEY):
                if not expires:
                    found[key] = "a result without an expiry"
                continue
            name = next((each for each in known if each.matches(key, queues)), None)
            if name is None:
                found[key] = "isn't documented"
            elif name.name in expiring and not expires:
                found[key] = "has no expiry"
            elif (name.of_a_run or name.name in living) and not running and not expires:
                found[key] = "is a run's, and no run lives"
    return found


def _client(url: str) -> Client:
    parts = urlsplit(url)
    return Client(host=parts.hostname or "", port=parts.port or 6379, db=int(parts.path[1:] or 0))
