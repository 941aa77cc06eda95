"""Where a Redis server is, and how it is talked to: URLs and the settings `redis_…`.

================================================  ================================================
``redis://user:password@host:port/db``            all but ``redis://`` may be left out
``rediss://…?ssl_cert_reqs=required``             the same over TLS
``redis+socket:///path/of.sock?virtual_host=db``  a Unix socket, as Celery writes it
``unix:///path/of.sock?db=1``                     a Unix socket, as redis-py writes it
``redis://one;redis://other``                     the one or the other, whichever is there
``sentinel://:password@one:26379/0;two``          the primary that these Sentinels name
``redis+cluster://one:6379;two``                  a cluster that has these nodes, among others
================================================  ================================================

What a URL says goes above the settings. Options of the connection may stand behind the ``?``:
`_OPTIONS`, and those of TLS.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from umbel.exceptions import ImproperlyConfigured
from umbel.settings import censored

PORT: Final = 6379
SENTINEL_PORT: Final = 26379
TAG: Final = "{umbel}"
"""The hash tag of all keys on a cluster, where `global_keyprefix` has none."""
CONNECT_TIMEOUT: Final = 5.0
"""Seconds, where nothing is set; redis-py would wait as long as for an answer."""
BROKER_TIMEOUTS: Final[Mapping[str, float]] = MappingProxyType(
    {"socket_connect_timeout": 0.9, "socket_timeout": 0.9}
)
"""The same, and for an answer, of a broker; together they are below the 2 s within which a publish
says yes or no."""
_BOOLS: Final = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
_LOGIN: Final = ("username", "password")
_CERT_REQS: Final = ("none", "optional", "required")
_TIMES: Final = ("socket_timeout", "socket_connect_timeout")
_STRATEGIES: Final = ("round-robin", "shuffle")


@dataclass(frozen=True, slots=True)
class Address:
    """One server, one of its databases, and the options of a connection in redis-py's words."""

    host: str = "localhost"
    port: int = PORT
    path: str | None = None
    """Of the Unix socket; then host and port mean nothing."""
    db: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    """For redis-py's connections, beside what stands above."""
    tls: Mapping[str, Any] | None = None
    """The options of TLS; None: no TLS."""
    max_connections: int | None = None

    @property
    def server(self) -> Address:
        return self

    @property
    def location(self) -> str:
        """The server, whichever of its databases. A broker of the same location shares it."""
        if self.path is not None:
            return f"redis:{os.path.abspath(self.path)}"
        return f"redis:{self.host.lower()}:{self.port}"

    @classmethod
    def of(
        cls, setting: str, url: str, defaults: Mapping[str, Any] = MappingProxyType({})
    ) -> Address:
        """The address that `url`, the value of `setting`, names. Raises `ImproperlyConfigured`.

        `defaults` stand in for what the URL doesn't say: host, port, db, username, password, tls
        (a mapping), max_connections, and options of a connection; None is none.
        """
        parts = _split(setting, url)
        given = {name: value for name, value in defaults.items() if value is not None}
        tls = given.pop("tls", None)
        said = _said(setting, url, parts)
        said_of_tls = {name: said.pop(name) for name in tuple(said) if name.startswith("ssl_")}
        if parts.scheme == "rediss" or said_of_tls:
            tls = {**(tls or {}), **said_of_tls}
        if "password" in said:  # of this server, whatever the settings say of others
            given.pop("credential_provider", None)
        given |= said
        if "credential_provider" in given:  # redis-py takes the one or the other
            given = {name: each for name, each in given.items() if name not in _LOGIN}
        return cls(
            host=str(given.pop("host", "localhost")),
            port=_number(setting, url, "port", given.pop("port", PORT)),
            path=given.pop("path", None),
            db=_number(setting, url, "db", given.pop("db", 0)),
            tls=None if tls is None else tls_options(tls),
            max_connections=given.pop("max_connections", None),
            # Said even where it is nothing: redis-py's own choice differs between its releases.
            options={
                "socket_timeout": None,
                "socket_connect_timeout": CONNECT_TIMEOUT,
                **given,
            },
        )


@dataclass(frozen=True, slots=True)
class Several:
    """Servers of which one is used at a time, the next one when it fails."""

    addresses: tuple[Address, ...]
    urls: tuple[str, ...] = ()
    strategy: Callable[[list[str]], Iterable[str]] | str | None = None
    """In which order: "round-robin" (also None), "shuffle", or a function that is given the URLs
    and gives them in the order in which they shall be tried, without end."""

    @property
    def server(self) -> Address:
        return self.addresses[0]

    @property
    def location(self) -> str:
        return " or ".join(each.location for each in self.addresses)


@dataclass(frozen=True, slots=True)
class Sentinels:
    """The primary of this name, as these Sentinels know it."""

    addresses: tuple[Address, ...]
    name: str
    server: Address
    """The primary, but for host and port."""
    min_others: int = 0
    """How many others a Sentinel must know to be believed."""

    @property
    def location(self) -> str:
        return f"sentinel:{self.name}@{_hosts(self.addresses)}"


@dataclass(frozen=True, slots=True)
class Cluster:
    """The nodes of a cluster, or some of them; all keys have this hash tag, so that scripts reach
    them in one step."""

    addresses: tuple[Address, ...]
    tag: str

    @property
    def server(self) -> Address:
        return self.addresses[0]

    @property
    def location(self) -> str:
        return f"redis+cluster:{_hosts(self.addresses)}{self.tag}"


Servers = Address | Several | Sentinels | Cluster
"""A broker and a store of one `location` can be reached in one step; `server` is one of the
addresses, whose database and options are those of all."""


def _hosts(addresses: Sequence[Address]) -> str:
    return ",".join(sorted(f"{each.host.lower()}:{each.port}" for each in addresses))


def servers_of(
    setting: str,
    url: str,
    defaults: Mapping[str, Any] = _NOTHING,
    transport: Mapping[str, Any] = _NOTHING,
    strategy: Any = None,
) -> Servers:
    """What `url` names, one or several with ``;`` between them. Raises `ImproperlyConfigured`.

    `transport` has what Sentinels need and the keys' prefix; `strategy` is the order of several.
    """
    first, *others = [part for part in url.split(";") if part]
    scheme = first.partition("://")[0]
    urls = [first, *(each if "://" in each else f"{scheme}://{each}" for each in others)]
    if any(each.partition("://")[0] != scheme for each in urls) and _is_of_many(urls):
        raise _wrong(setting, url, "mixes kinds of servers; write the same scheme before each")
    if scheme == "sentinel":
        return _sentinels(setting, urls, defaults, transport)
    addresses = tuple(Address.of(setting, each, defaults) for each in urls)
    if scheme == "redis+cluster":
        if wrong := [each.db for each in addresses if each.db]:
            raise _wrong(setting, url, f"has the db {wrong[0]}; a cluster has 0 only")
        prefix = tagged(setting, str(transport.get("global_keyprefix") or ""))
        return Cluster(addresses, prefix[prefix.index("{") : prefix.index("}") + 1])
    if not others:
        return addresses[0]
    return Several(addresses, tuple(urls), _order(strategy))


def _order(strategy: Any) -> Any:
    if strategy in (None, *_STRATEGIES) or callable(strategy):
        return strategy
    raise ImproperlyConfigured(
        f"broker_failover_strategy is {strategy!r}; expected 'round-robin', 'shuffle' or a "
        "function that is given the URLs and gives them in the order in which they are tried"
    )


def _is_of_many(urls: Sequence[str]) -> bool:
    return any(url.startswith(("sentinel:", "redis+cluster:")) for url in urls)


def _sentinels(
    setting: str, urls: Sequence[str], defaults: Mapping[str, Any], transport: Mapping[str, Any]
) -> Sentinels:
    options = f"{setting.removesuffix('_url')}_transport_options"
    name, own = transport.get("master_name"), transport.get("sentinel_kwargs") or {}
    if not isinstance(name, str) or not name:
        raise ImproperlyConfigured(
            f"{setting} has sentinel://, and {options} has master_name={name!r}; expected the name "
            "that the Sentinels have for the primary, such as 'mymaster'"
        )
    if not isinstance(own, Mapping):
        raise ImproperlyConfigured(
            f"{options} has sentinel_kwargs={own!r}; expected a dict, such as {{'password': '…'}}"
        )
    servers = [Address.of(setting, url, defaults) for url in urls]
    ports = [urlsplit(url).port or SENTINEL_PORT for url in urls]
    tls = {name: value for name, value in own.items() if name.startswith("ssl_")}
    mine = {name: value for name, value in own.items() if name != "ssl" and name not in tls}
    times = {
        name: servers[0].options[name] for name in ("socket_timeout", "socket_connect_timeout")
    }
    addresses = tuple(
        Address(
            host=server.host,
            port=port,
            options={**times, **mine},
            tls=tls_options(tls) if tls or own.get("ssl") else None,
        )
        for server, port in zip(servers, ports, strict=True)
    )
    others = transport.get("min_other_sentinels") or 0
    return Sentinels(addresses, name, servers[0], int(others))


def tagged(setting: str, prefix: str) -> str:
    """`prefix` with a hash tag behind it, if it has none: what stands before a key in a cluster."""
    start = prefix.find("{")
    if start < 0:
        return prefix + TAG
    end = prefix.find("}", start)
    if end > start + 1:
        return prefix
    raise ImproperlyConfigured(
        f"{setting} is a cluster, and global_keyprefix is {prefix!r}, whose brace begins no hash "
        "tag; write a whole one, such as '{shop}:', or none"
    )


def key_prefix(transport: Mapping[str, object], servers: Servers) -> str:
    """What stands before each key of a result, of `result_backend_transport_options`.

    As in Celery an underscore is added where `global_keyprefix` doesn't end with ``: _ - .``
    """
    prefix = transport.get("global_keyprefix") or ""
    if not isinstance(prefix, str):
        raise ImproperlyConfigured(
            "result_backend_transport_options has global_keyprefix="
            f"{prefix!r}; expected a str, such as 'shop'"
        )
    prefix = prefix if not prefix or prefix[-1] in ":_-." else f"{prefix}_"
    return tagged("result_backend", prefix) if isinstance(servers, Cluster) else prefix


def tls_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """In redis-py's words; a certificate is required unless it is said otherwise."""
    options = dict(given)
    wanted = options.get("ssl_cert_reqs", "required")
    if not isinstance(wanted, int):  # ssl.CERT_… are numbers
        text = str(wanted or "none").lower().removeprefix("cert_")
        if text not in _CERT_REQS:
            raise ImproperlyConfigured(
                f"ssl_cert_reqs is {wanted!r}; expected 'required', 'optional' or 'none'"
            )
        options["ssl_cert_reqs"] = wanted = text
    if wanted in ("none", 0):
        options.setdefault("ssl_check_hostname", False)
    return options


def _split(setting: str, url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        if parts.port == 0:
            raise ValueError("port 0")
    except ValueError as error:
        raise _wrong(setting, url, f"isn't a URL: {error}") from error
    return parts


def _said(setting: str, url: str, parts: SplitResult) -> dict[str, Any]:
    """All that the URL says, by the names of `Address` and of redis-py's options."""
    said: dict[str, Any] = {"username": parts.username, "password": parts.password}
    if parts.scheme in ("redis+socket", "unix"):
        if len(parts.path) < 2:
            raise _wrong(setting, url, "names no socket; write redis+socket:///path/of.sock")
        said["path"] = parts.path
    else:
        said |= {"host": parts.hostname, "port": parts.port, "db": parts.path.strip("/")}
    said = {
        name: unquote(value) if isinstance(value, str) else value
        for name, value in said.items()
        if value not in (None, "")
    }
    return said | _query(setting, url, parts)


def _query(setting: str, url: str, parts: SplitResult) -> dict[str, Any]:
    """What stands behind the ``?``."""
    given: dict[str, Any] = {}
    for name, text in parse_qsl(parts.query, keep_blank_values=True):
        kind = _OPTIONS.get(name) or (_plain if name.startswith("ssl_") else None)
        if kind is None:
            known = ", ".join([*_OPTIONS, "ssl_cert_reqs", "ssl_ca_certs"])
            raise _wrong(setting, url, f"has the option {name!r}; known: {known}")
        try:
            given["db" if name == "virtual_host" else name] = kind(text)
        except (ValueError, KeyError) as error:
            raise _wrong(setting, url, f"has {name}={text!r}, which can't be") from error
    return given


def _number(setting: str, url: str, name: str, value: object) -> int:
    text = str(value).strip("/")
    if not text.isdecimal():
        raise _wrong(setting, url, f"has the {name} {value!r}; expected a whole number from 0")
    return int(text)


def _wrong(setting: str, url: str, sentence: str) -> ImproperlyConfigured:
    return ImproperlyConfigured(f"{setting} {censored(setting, url)!r} {sentence}")


def _bool(text: str) -> bool:
    return _BOOLS[text.lower()]


def _plain(text: str) -> bool | str:
    return _BOOLS.get(text.lower(), text) if text not in ("0", "1") else text


_OPTIONS: Final[Mapping[str, Callable[[str], Any]]] = {
    "db": str,
    "virtual_host": str,
    "username": str,
    "password": str,
    "client_name": str,
    "max_connections": int,
    "socket_timeout": float,
    "socket_connect_timeout": float,
    "socket_keepalive": _bool,
    "retry_on_timeout": _bool,
    "health_check_interval": float,
}
