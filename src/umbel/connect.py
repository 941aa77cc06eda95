"""From a URL to an opened driver, once per process.

Drivers are opened when they are first needed, and never carried through a fork: a child opens its
own. What it inherits is kept aside untouched, since closing it would talk on the parent's behalf.

====================================  ====================================================
``memory://``, ``memory://name``       within this process; one name is one broker
``sqlite:///tasks.db``                 a file, relative to the working directory
``sqlite:////var/lib/tasks.db``        a file, absolute
``…?sync=full``                        SQLite: survives a power loss too, at a slower pace
``db+postgresql+psycopg://host/name``  results only: a database that SQLAlchemy reaches
``cache+memcached://host1;host2/``     results only: Memcached
``cache+memory://``                    results only: within this process
``file:///var/lib/results``            results only: a folder, a file for each
``redis://…``, ``rediss://…``          results only: a Redis server
``disabled://``                        results only: none are kept
====================================  ====================================================

What is sent goes to `broker_write_url`, what is taken and looked at comes from `broker_read_url`;
without them both are `broker_url`, or what the older settings for its parts make of one.
"""

from __future__ import annotations

import logging
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from typing import Final, Literal, Protocol

from umbel.clock import Clock
from umbel.exceptions import ImproperlyConfigured, LaterSetting
from umbel.formats import ResultFormat
from umbel.message import Posting
from umbel.patientstore import Patience, PatientStore
from umbel.ports import Broker, BrokerOptions, Coordinator, Inspector, ResultStore
from umbel.request import executing
from umbel.routing import Queue, Router
from umbel.settings import Settings, censored

logger = logging.getLogger("umbel")

DEFAULT_URL: Final = "sqlite:///umbel.db"
DISABLED: Final = ("disabled://", "disabled")
_LATER: Final = {
    "redis": "Redis",
    "rediss": "Redis",
    "sentinel": "Redis",
    "amqp": "RabbitMQ",
    "amqps": "RabbitMQ",
    "pyamqp": "RabbitMQ",
    "postgresql": "PostgreSQL",
    "postgres": "PostgreSQL",
}
_REDIS_STORES: Final = ("redis", "rediss", "redis+socket", "unix")
_STORES_LATER: Final = {**_LATER, "rpc": "RabbitMQ"}
_EMBEDDED: Final = ("memory", "sqlite")
_STORES: Final = (*_EMBEDDED, "db", "cache", "file", *_REDIS_STORES)
_TRANSPORT_OPTIONS: Final = {"sqlite": ("sync",)}
"""Of what `broker_transport_options` can have, by scheme."""
_STORE_OPTIONS: Final = {
    **_TRANSPORT_OPTIONS,
    **dict.fromkeys(("redis", "rediss", "unix"), ("global_keyprefix",)),
}
"""The same of `result_backend_transport_options`."""
_NO_OPTIONS: Final[Mapping[str, object]] = {}
_CACHE_IN_MEMORY: Final = "cache+memory"
"""Its name among the states in memory; no broker's URL can name it."""


@dataclass(frozen=True, slots=True)
class Results:
    """What a store has to know of the results that it keeps; `zone` is that of naive times."""

    form: ResultFormat
    zone: tzinfo


class BrokerDriver(Broker, Coordinator, Inspector, Protocol):
    """What every driver of this release is: all three at once, on one database."""


def make_broker(
    url: str, options: BrokerOptions, clock: Clock, transport: Mapping[str, object] = _NO_OPTIONS
) -> BrokerDriver:
    """The driver for a broker's URL, not yet opened. Raises `ImproperlyConfigured`.

    `transport` is `broker_transport_options`.
    """
    scheme = _scheme("broker_url", url, _EMBEDDED, _LATER)
    if scheme == "memory":
        from umbel.brokers.memory import MemoryBroker

        return MemoryBroker(_memory_name("broker_url", url), options, clock=clock)
    from umbel.brokers.sqlite import SqliteBroker

    path, synchronous = _sqlite_file("broker_url", url, "broker_transport_options", transport)
    return SqliteBroker(path, options, clock=clock, synchronous=synchronous)


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
        case scheme if scheme in _REDIS_STORES:
            return _redis_store(url, conf, clock, results.form)
    from umbel.stores.sqlite import SqliteStore

    transport = conf.result_backend_transport_options
    path, synchronous = _sqlite_file(
        "result_backend", url, "result_backend_transport_options", transport
    )
    return SqliteStore(path, clock=clock, synchronous=synchronous)


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
    if scheme == "cache+memory":
        from umbel.stores.memory import MemoryStore

        return MemoryStore(_CACHE_IN_MEMORY, clock=clock)
    servers = [host for host in hosts.rstrip("/").split(";") if host]
    if scheme != "cache+memcached" or not servers:
        raise ImproperlyConfigured(
            f"result_backend {censored('result_backend', url)!r} names no cache; expected "
            "cache+memcached://host1;host2:11211/ or cache+memory://"
        )
    from umbel.stores.cache import MemcachedStore

    return MemcachedStore(servers, conf.cache_backend_options, form=form, clock=clock)


def _redis_store(url: str, conf: Settings, clock: Clock, form: ResultFormat) -> ResultStore:
    from umbel.stores.redis import Address, RedisStore

    defaults = {
        "host": conf.redis_host,
        "port": conf.redis_port,
        "db": conf.redis_db,
        "username": conf.redis_username,
        "password": conf.redis_password,
        "tls": {} if conf.redis_backend_use_ssl is True else conf.redis_backend_use_ssl or None,
        "max_connections": conf.redis_max_connections or None,
        "client_name": conf.redis_client_name,
        "credential_provider": _made(conf.redis_backend_credential_provider),
        "health_check_interval": conf.redis_backend_health_check_interval,
        "retry_on_timeout": conf.redis_retry_on_timeout,
        "socket_connect_timeout": conf.redis_socket_connect_timeout,
        "socket_keepalive": conf.redis_socket_keepalive,
        "socket_timeout": conf.redis_socket_timeout,
    }
    address = Address.of("result_backend", url, defaults)
    transport = conf.result_backend_transport_options
    return RedisStore(address, transport, form=form, clock=clock)


def _made(provider: object) -> object:
    """Of `redis_backend_credential_provider`: the object, its class, or where it is found."""
    if isinstance(provider, str):
        from umbel.configure import find_object

        provider = find_object(provider)
    return provider() if isinstance(provider, type) else provider


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


def lives_in_one_process(url: str) -> bool:
    """Whether what lies behind a broker's or a result store's URL ends with this process."""
    return url.partition("://")[0] in ("memory", _CACHE_IN_MEMORY)


def url_of_parts(conf: Settings) -> str | None:
    """The broker's URL from `broker_transport`, `broker_host` and the like; None without them.

    As in Celery a `broker_host` may be a whole URL, and a kind that isn't named is AMQP.
    """
    scheme, host, path = conf.broker_transport, conf.broker_host, conf.broker_vhost
    user, password, port = conf.broker_user, conf.broker_password, conf.broker_port
    if host and "://" in host:
        return host
    if all(part in (None, "") for part in (scheme, host, path, user, password, port)):
        return None
    from urllib.parse import quote

    scheme = scheme or "amqp"
    login = quote(user or "", safe="") + (f":{quote(password, safe='')}" if password else "")
    place = host or ("" if scheme in _EMBEDDED else "localhost")
    return "".join(
        (
            f"{scheme}://",
            f"{login}@" if login else "",
            place,
            f":{port}" if port not in (None, "") else "",
            f"/{path}" if path else "",
        )
    )


class Connections:
    """The drivers of one app in this process. Thread-safe."""

    def __init__(
        self,
        conf: Settings,
        clock: Clock,
        results: Callable[[], Results],
        default_url: str = DEFAULT_URL,
        router: Callable[[], Router] = Router,
    ) -> None:
        self._conf = conf
        self._router = router
        self._default_url = default_url
        self._results = results
        self._clock = clock
        self._lock = threading.RLock()
        self._broker: BrokerDriver | None = None
        self._outlet: BrokerDriver | None = None
        self._store: ResultStore | None = None
        self._replaced: list[BrokerDriver | ResultStore] = []
        self._inherited: list[object] = []
        self._bereft: dict[str, str] = {}
        """What to say of URLs that only the parent process can use."""
        self.in_worker = False
        self._warned_default = False
        self._warned_options: set[str] = set()
        self._seen_version = conf.version
        self._opened_with: tuple[str | None, ...] = ()
        self.declared: set[str] = set()
        """Queues that this process has already made exist."""
        self._led: set[str] = set()
        """Exchanges whose queues it has made exist."""
        self._made: set[Queue] = set()
        """Queues that calls have named as objects."""
        _all.add(self)

    @property
    def broker(self) -> BrokerDriver:
        """The opened broker. Raises `ImproperlyConfigured`, `BrokerUnavailable`."""
        return self._broker or self._open_broker()

    @property
    def outlet(self) -> BrokerDriver:
        """The opened broker that messages are sent to: `broker`, unless the settings part them."""
        return self._outlet or self._open_outlet()

    @property
    def store(self) -> ResultStore | None:
        """The opened result store; None where results are disabled."""
        return self._store or self._open_store()

    @property
    def broker_url(self) -> str:
        """Where messages are taken from, and looked at."""
        return self._conf.broker_read_url or self._named_url or self._default_url

    @property
    def outlet_url(self) -> str:
        """Where messages are sent to."""
        return self._conf.broker_write_url or self._named_url or self._default_url

    @property
    def names_a_broker(self) -> bool:
        """Whether the settings do, and the default isn't used."""
        return bool(self._conf.broker_read_url or self._conf.broker_write_url or self._named_url)

    @property
    def _named_url(self) -> str | None:
        return self._conf.broker_url or url_of_parts(self._conf)

    @property
    def store_url(self) -> str | None:
        """Where results are kept; None where they are disabled."""
        url = _store_url(self._conf) or self.broker_url
        return None if url in DISABLED else url

    @property
    def urls(self) -> tuple[str | None, ...]:
        return self.broker_url, self.store_url, self.outlet_url

    def refresh(self) -> None:
        """Let go of what is open if the settings name other URLs by now.

        It is closed with the rest, not at once: other threads may be using it.
        """
        if self._seen_version == self._conf.version:
            return
        with self._lock:
            self._seen_version = self._conf.version
            if self._opened_with not in ((), self.urls):
                self._replaced += self._let_go()
                self._forget_declared()
                self._opened_with = ()

    def declare(self, queue: str) -> None:
        """Make `queue` exist, once per process."""
        self.outlet.declare([queue], self._router().links(queue))
        self.declared.add(queue)

    def prepare(self, posting: Posting) -> None:
        """Make what a posting goes to exist, as far as this app knows of it."""
        if not posting.exchange:
            return self.declare(posting.routing_key)
        if posting.exchange in self._led:
            return None
        queues, links = self._router().behind(posting.exchange)
        if queues:
            self.outlet.declare(queues, links)
            self._led.add(posting.exchange)
        return None

    def declare_all(self, queues: Iterable[Queue]) -> None:
        """Make queues exist, with their bindings, but for those that workers make."""
        for queue in queues:
            if queue not in self._made and not queue.per_run:
                self.outlet.declare([queue.name], queue.links)
                self._made.add(queue)

    def _forget_declared(self) -> None:
        self.declared, self._led, self._made = set(), set(), set()

    def close(self) -> None:
        """Close what is open; a later use opens anew."""
        with self._lock:
            drivers = [*self._let_go(), *self._replaced]
            self._forget_declared()
            self._opened_with = ()
            self._replaced = []
        for driver in drivers:
            driver.close()

    def _let_go(self) -> list[BrokerDriver | ResultStore]:
        """Nothing is open any more; what was."""
        broker, outlet, store = self._broker, self._outlet, self._store
        self._broker = self._outlet = self._store = None
        apart = None if outlet is broker else outlet
        return [driver for driver in (store, apart, broker) if driver is not None]

    def check_options(self) -> None:
        """Warn, once each, of transport options that the drivers don't have."""
        sent, kept = (
            self._conf.broker_transport_options,
            self._conf.result_backend_transport_options,
        )
        for setting, options, known, url in (
            ("broker_transport_options", sent, _TRANSPORT_OPTIONS, self.broker_url),
            ("broker_transport_options", sent, _TRANSPORT_OPTIONS, self.outlet_url),
            ("result_backend_transport_options", kept, _STORE_OPTIONS, self.store_url),
        ):
            scheme = (url or "disabled").partition(":")[0].partition("+")[0]
            self._check_options(setting, options, scheme, known.get(scheme, ()))

    def _check_options(
        self, setting: str, options: Iterable[str], scheme: str, known: Sequence[str]
    ) -> None:
        for name in options:
            sentence = (
                f"{setting} has {name!r}, which changes nothing for {scheme}://; known there: "
                f"{', '.join(known) or 'nothing'}"
            )
            if name not in known and sentence not in self._warned_options:
                self._warned_options.add(sentence)
                warnings.warn(sentence, LaterSetting, stacklevel=2)

    def _open_broker(self) -> BrokerDriver:
        with self._lock:
            if self._broker is None:
                self._broker = self._open(self.broker_url)
            return self._broker

    def _open_outlet(self) -> BrokerDriver:
        with self._lock:
            if self._outlet is None:
                is_one = self.outlet_url == self.broker_url
                self._outlet = self.broker if is_one else self._open(self.outlet_url)
            return self._outlet

    def _open(self, url: str) -> BrokerDriver:
        self._check_fork(url)
        if not self.names_a_broker:
            self._say_default()
        self.check_options()
        transport = self._conf.broker_transport_options
        broker = make_broker(url, self._options(), self._clock, transport)
        broker.open()
        self._opened_with = self.urls
        return broker

    def _open_store(self) -> ResultStore | None:
        url = self.store_url
        if url is None:
            return None
        with self._lock:
            if self._store is None:
                self._check_fork(url)
                self.check_options()
                store = make_store(url, self._conf, self._clock, self._results())
                patience = Patience.of(self._conf, url)
                if patience.retries > 0:
                    store = PatientStore(store, patience, self._waits_for_stores)
                store.open()
                self._store, self._opened_with = store, self.urls
            return self._store

    def _waits_for_stores(self) -> bool:
        # A worker has its own way of waiting for a store, which minds that it may have to stop.
        return not self.in_worker or executing() is not None

    def _options(self) -> BrokerOptions:
        conf = self._conf
        return BrokerOptions(
            lease_time=conf.worker_lease_time,
            dead_max_count=conf.dead_letters_max_count,
            dead_max_age=conf.dead_letters_max_age,
            dead_max_bytes=conf.dead_letters_max_bytes,
        )

    def unopened(self) -> BrokerDriver:
        """A driver of the broker that isn't opened, to be asked what it is."""
        self._check_default()
        return make_broker(self.broker_url, BrokerOptions(), self._clock)

    def _check_default(self) -> None:
        if not self.names_a_broker and self._default_url != DEFAULT_URL:
            raise ImproperlyConfigured(
                f"no broker is named, and this app's default is Celery's, {self._default_url}, "
                "which comes with the release 'RabbitMQ'. Name one, for example with "
                "broker='sqlite:///tasks.db', the setting broker_url or the environment variable "
                "CELERY_BROKER_URL"
            )

    def _say_default(self) -> None:
        self._check_default()
        if not self._warned_default:
            self._warned_default = True
            path = os.path.abspath(DEFAULT_URL.removeprefix("sqlite:///"))
            logger.info("No broker is named, so messages and results are kept in %s", path)

    def _check_fork(self, url: str) -> None:
        if url in self._bereft:
            raise ImproperlyConfigured(self._bereft[url])

    def _after_fork(self) -> None:
        drivers = self._broker, self._store, self._outlet
        self._lock = threading.RLock()
        self._inherited += [*self._let_go(), *self._replaced]
        self._replaced = []
        self._forget_declared()
        for driver, url in zip(drivers, self._opened_with, strict=False):
            if driver is not None and url is not None and lives_in_one_process(url):
                self._bereft[url] = (
                    f"{url} lives in the process that opened it (pid {os.getppid()}), and this is "
                    f"a fork of it (pid {os.getpid()}): nobody would see what is sent or kept "
                    "here. Name one that processes share, for example sqlite:///tasks.db"
                )


def _store_url(conf: Settings) -> str | None:
    """`result_backend`, or what the older settings for databases and caches make of one."""
    named, database, cache = conf.result_backend, conf.database_url, conf.cache_backend
    if named == "database" and not database:
        raise ImproperlyConfigured(
            "result_backend is 'database' and database_url isn't set; write the database's URL as "
            "result_backend, with db+ before it, such as db+postgresql+psycopg://host/name"
        )
    if named == "cache" and not cache:
        raise ImproperlyConfigured(
            "result_backend is 'cache' and cache_backend isn't set; write the cache's URL as "
            "result_backend, such as cache+memcached://host:11211/"
        )
    if database and named in (None, "database"):
        return database if database.startswith("db+") else f"db+{database}"
    if cache and named in (None, "cache"):
        url = cache if "://" in cache else f"{cache}://"
        return url if url.startswith("cache+") else f"cache+{url}"
    return named


_all: weakref.WeakSet[Connections] = weakref.WeakSet()


def _forked() -> None:
    for connections in list(_all):
        connections._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def _scheme(setting: str, url: str, known: Sequence[str], later: Mapping[str, str]) -> str:
    scheme, separator, _ = url.partition("://")
    # A driver's name may stand behind the scheme, as in db+sqlite.
    family = scheme.partition("+")[0]
    if separator and scheme in known:
        return scheme
    if separator and family in known and family in ("db", "cache"):
        return family
    if separator and family in later:
        raise ImproperlyConfigured(
            f"{setting} {censored(setting, url)!r}: {family}:// comes with the release "
            f"{later[family]!r}. This one has {', '.join(f'{name}://' for name in known)}"
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
