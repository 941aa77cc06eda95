"""The driver that a URL names, not yet opened.

====================================  ====================================================
``memory://``, ``memory://name``       within this process; one name is one broker
``sqlite:///tasks.db``                 a file, relative to the working directory
``sqlite:////var/lib/tasks.db``        a file, absolute
``…?sync=full``                        SQLite: survives a power loss too, at a slower pace
``redis://…``, ``rediss://…``          a Redis server, or one over TLS
``redis+socket:///path``, ``unix://``  a Redis server behind a Unix socket
``redis://one;redis://other``          messages only: whichever of them is there
``sentinel://one;two``                 the primary that Redis Sentinels name
``redis+cluster://one;two``            a Redis Cluster
``db+postgresql+psycopg://host/name``  results only: a database that SQLAlchemy reaches
``cache+memcached://host1;host2/``     results only: Memcached
``cache+memory://``                    results only: within this process
``file:///var/lib/results``            results only: a folder, a file for each
``disabled://``                        results only: none are kept
====================================  ====================================================
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from typing import TYPE_CHECKING, Final, Literal, Protocol

from umbel.clock import Clock
from umbel.exceptions import ImproperlyConfigured
from umbel.formats import ResultFormat
from umbel.ports import Broker, BrokerOptions, Coordinator, Inspector, ResultStore
from umbel.redissettings import (
    BROKER_OPTIONS,
    STORE_OPTIONS,
    broker_keys,
    broker_pool,
    broker_replicas,
    broker_servers,
    store_servers,
)
from umbel.redisurl import key_prefix
from umbel.settings import Settings, censored
from umbel.urls import CACHE_IN_MEMORY, EMBEDDED, store_url

if TYPE_CHECKING:
    from umbel.brokers.redis import ResultsBeside

_LATER: Final = {
    "amqp": "RabbitMQ",
    "amqps": "RabbitMQ",
    "pyamqp": "RabbitMQ",
    "postgresql": "PostgreSQL",
    "postgres": "PostgreSQL",
}
_STORES_LATER: Final = {**_LATER, "rpc": "RabbitMQ"}
_REDIS: Final = ("redis", "rediss", "redis+socket", "unix", "sentinel", "redis+cluster")
_BROKERS: Final = (*EMBEDDED, *_REDIS)
_STORES: Final = (*EMBEDDED, "db", "cache", "file", *_REDIS)
_TRANSPORT_OPTIONS: Final[Mapping[str, Mapping[str, Sequence[str]]]] = {
    "broker_transport_options": {"sqlite": ("sync",), **BROKER_OPTIONS},
    "result_backend_transport_options": {"sqlite": ("sync",), **STORE_OPTIONS},
}
"""What these settings can have, by scheme."""
_NO_OPTIONS: Final[Mapping[str, object]] = {}


@dataclass(frozen=True, slots=True)
class Results:
    """What a store has to know of the results that it keeps; `zone` is that of naive times."""

    form: ResultFormat
    zone: tzinfo


class BrokerDriver(Broker, Coordinator, Inspector, Protocol):
    """What every driver of this release is: all three at once, on one database."""


def make_broker(
    url: str, conf: Settings, clock: Clock, options: BrokerOptions | None = None
) -> BrokerDriver:
    """The driver for a broker's URL, not yet opened. Raises `ImproperlyConfigured`."""
    options = options or BrokerOptions()
    transport = conf.broker_transport_options
    scheme = _scheme("broker_url", url, _BROKERS, _LATER)
    if scheme == "memory":
        from umbel.brokers.memory import MemoryBroker

        return MemoryBroker(_memory_name("broker_url", url), options, clock=clock)
    if scheme in _REDIS:
        return _redis_broker(url, conf, clock, options)
    from umbel.brokers.sqlite import SqliteBroker

    path, synchronous = _sqlite_file("broker_url", url, "broker_transport_options", transport)
    return SqliteBroker(path, options, clock=clock, synchronous=synchronous)


def _redis_broker(url: str, conf: Settings, clock: Clock, options: BrokerOptions) -> BrokerDriver:
    from umbel.brokers.redis import RedisBroker

    servers = broker_servers(url, conf)
    return RedisBroker(
        servers,
        options,
        clock=clock,
        keys=broker_keys(conf, servers),
        results=_results_beside(store_url(conf) or url, conf),
        pool=broker_pool(conf),
        replicas=broker_replicas(conf),
    )


def _results_beside(url: str, conf: Settings) -> ResultsBeside | None:
    """Where results are, should their store be on the broker's server; None: not on Redis."""
    if url.partition("://")[0] not in _REDIS:
        return None
    from umbel.brokers.redis import ResultsBeside
    from umbel.stores.redis import RESULT_KEY

    servers = store_servers(url, conf)
    prefix = key_prefix(conf.result_backend_transport_options, servers) + RESULT_KEY
    return ResultsBeside(servers.server.db, prefix)


def make_store(url: str, conf: Settings, clock: Clock, results: Results) -> ResultStore:
    """The driver for a result store's URL, not yet opened. Raises `ImproperlyConfigured`."""
    match _scheme("result_backend", url, _STORES, _STORES_LATER):
        case "memory":
            from umbel.stores.memory import MemoryStore

            return MemoryStore(_memory_name("result_backend", url), clock=clock)
        case "db":
            return _sql_store(url, conf, clock, results)
        case "cache":
            return _cache_store(url, conf, clock, results.form)
        case "file":
            from umbel.stores.filesystem import FileStore

            folder, expires = _folder(url), conf.result_expires
            return FileStore(folder, expires=expires, form=results.form, clock=clock)
        case _ as scheme if scheme in _REDIS:
            return _redis_store(url, conf, clock, results.form)
    from umbel.stores.sqlite import SqliteStore

    transport = conf.result_backend_transport_options
    path, synchronous = _sqlite_file(
        "result_backend", url, "result_backend_transport_options", transport
    )
    return SqliteStore(path, clock=clock, synchronous=synchronous)


def without_effect(setting: str, options: Mapping[str, object], url: str) -> Iterator[str]:
    """A sentence for each of these transport options that the driver of `url` doesn't have."""
    scheme = url.partition(":")[0].partition("+")[0]
    known = _TRANSPORT_OPTIONS[setting].get(scheme, ())
    for name in options:
        if name not in known:
            yield (
                f"{setting} has {name!r}, which changes nothing for {scheme}://; known there: "
                f"{', '.join(known) or 'nothing'}"
            )


def _sql_store(url: str, conf: Settings, clock: Clock, results: Results) -> ResultStore:
    from umbel.stores.sql import SqlOptions, SqlStore

    dialect = url.partition("+")[2]
    if not dialect:
        raise ImproperlyConfigured(
            f"result_backend {censored('result_backend', url)!r} names no database behind db; "
            "write db+ before SQLAlchemy's URL, such as db+postgresql+psycopg://host/name"
        )
    options = SqlOptions(
        engine=conf.database_engine_options,
        engine_callback=conf.database_engine_callback,
        short_lived=conf.database_short_lived_sessions,
        schemas=conf.database_table_schemas,
        names=conf.database_table_names,
        create_tables=conf.database_create_tables_at_setup,
        zone=results.zone,
        expires=conf.result_expires,
    )
    return SqlStore(dialect, options, form=results.form, clock=clock)


def _cache_store(url: str, conf: Settings, clock: Clock, form: ResultFormat) -> ResultStore:
    scheme, _, hosts = url.partition("://")
    if conf.result_keep is not None and scheme == "cache+memcached":
        raise ImproperlyConfigured(
            "result_keep is set, and Memcached can't list what it keeps; leave it unset, or keep "
            "results elsewhere"
        )
    if scheme == CACHE_IN_MEMORY:
        from umbel.stores.memory import MemoryStore

        return MemoryStore(CACHE_IN_MEMORY, clock=clock)
    servers = [host for host in hosts.rstrip("/").split(";") if host]
    if scheme != "cache+memcached" or not servers:
        raise ImproperlyConfigured(
            f"result_backend {censored('result_backend', url)!r} names no cache; expected "
            "cache+memcached://host1;host2:11211/ or cache+memory://"
        )
    from umbel.stores.cache import MemcachedStore

    return MemcachedStore(servers, conf.cache_backend_options, form=form, clock=clock)


def _redis_store(url: str, conf: Settings, clock: Clock, form: ResultFormat) -> ResultStore:
    from umbel.stores.redis import RedisStore

    transport = conf.result_backend_transport_options
    return RedisStore(store_servers(url, conf), transport, form=form, clock=clock)


def _folder(url: str) -> str:
    """The folder of a ``file://`` URL; relative where only two slashes stand before it."""
    from urllib.parse import unquote

    path = unquote(url.removeprefix("file://").removeprefix("localhost/"))
    if url.startswith("file://localhost/"):
        path = f"/{path}"
    if not path:
        raise ImproperlyConfigured(
            f"result_backend {url!r} names no folder; write file:///var/lib/results"
        )
    return path


def _scheme(setting: str, url: str, known: Sequence[str], later: Mapping[str, str]) -> str:
    scheme, separator, _ = url.partition("://")
    # A driver's name may stand behind the scheme, as in db+sqlite.
    family = scheme.partition("+")[0]
    if separator and scheme in known:
        return scheme
    if separator and family in known and family in ("db", "cache"):
        return family
    planned = scheme if scheme in later else family
    if separator and planned in later:
        raise ImproperlyConfigured(
            f"{setting} {censored(setting, url)!r}: {planned}:// comes with the release "
            f"{later[planned]!r}. This one has {', '.join(f'{name}://' for name in known)}"
        )
    raise _unknown_scheme(setting, url, scheme, [*known, *later])


def _unknown_scheme(
    setting: str, url: str, scheme: str, known: Sequence[str]
) -> ImproperlyConfigured:
    import difflib

    near = difflib.get_close_matches(scheme.lower(), known, n=1, cutoff=0.5)
    question = f"did you mean {near[0]}://? " if near else ""
    return ImproperlyConfigured(
        f"{setting} {censored(setting, url)!r} isn't a URL that is known; {question}"
        "expected memory://, sqlite:///relative.db or sqlite:////absolute.db"
    )


def _memory_name(setting: str, url: str) -> str:
    name = url.partition("://")[2]
    if not all(char.isalnum() or char in "-_." for char in name):
        raise ImproperlyConfigured(
            f"{setting} {url!r}: a name after memory:// has letters, digits, '-', '_' and '.' only"
        )
    return name


def _sqlite_file(
    setting: str, url: str, options_setting: str, options: Mapping[str, object]
) -> tuple[str, Literal["normal", "full"]]:
    """(absolute path, synchronous mode); what the URL says goes above the transport options."""
    from urllib.parse import parse_qsl, unquote, urlsplit

    parts = urlsplit(url)
    path = unquote(parts.path)[1:]
    if parts.netloc or not path or path.endswith("/"):
        raise ImproperlyConfigured(
            f"{setting} {url!r} names no file; write sqlite:///relative.db (three slashes) or "
            "sqlite:////absolute.db (four)"
        )
    if path == ":memory:":
        raise ImproperlyConfigured(
            f"{setting} {url!r}: each connection would have a database of its own. Use memory://"
        )
    given = [(options_setting, "sync", options["sync"])] if "sync" in options else []
    given += [(f"{setting} {url!r}", *pair) for pair in parse_qsl(parts.query, True)]
    synchronous: Literal["normal", "full"] = "normal"
    for where, name, value in given:
        if name != "sync" or str(value).lower() not in ("normal", "full"):
            raise ImproperlyConfigured(
                f"{where} has {name}={value!r}; the only option is sync=normal or sync=full"
            )
        synchronous = "full" if str(value).lower() == "full" else "normal"
    return os.path.abspath(path), synchronous
