"""The opened drivers of an app, once per process.

Drivers are opened when they are first needed, and never carried through a fork: a child opens its
own. What it inherits is kept aside untouched, since closing it would talk on the parent's behalf.

What is sent goes to `broker_write_url`, what is taken and looked at comes from `broker_read_url`;
without them both are the one that `umbel.urls` finds.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable

from umbel.clock import Clock
from umbel.drivers import BrokerDriver, Results, make_broker, make_store, without_effect
from umbel.exceptions import BrokerUnavailable, ImproperlyConfigured, LaterSetting
from umbel.message import Posting
from umbel.patientstore import Patience, PatientStore
from umbel.ports import BrokerOptions, ResultStore
from umbel.request import executing
from umbel.routing import Queue, Router
from umbel.settings import Settings
from umbel.urls import DEFAULT_URL, DISABLED, broker_url, lives_in_one_process, store_url
from umbel.warning import warn

logger = logging.getLogger("umbel")


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
        self._refused: tuple[float, BrokerUnavailable] | None = None
        """When it last wasn't to be opened, and why."""
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
        return broker_url(self._conf)

    @property
    def store_url(self) -> str | None:
        """Where results are kept; None where they are disabled."""
        url = store_url(self._conf) or self.broker_url
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
        for setting, options, url in (
            ("broker_transport_options", self._conf.broker_transport_options, self.broker_url),
            ("broker_transport_options", self._conf.broker_transport_options, self.outlet_url),
            (
                "result_backend_transport_options",
                self._conf.result_backend_transport_options,
                self.store_url,
            ),
        ):
            for sentence in without_effect(setting, options, url or "disabled"):
                if sentence not in self._warned_options:
                    self._warned_options.add(sentence)
                    warn(sentence, LaterSetting)

    def _open_broker(self) -> BrokerDriver:
        asked_at = time.monotonic()
        with self._lock:
            if self._broker is None:
                self._fail_as_others_did(asked_at)
                self._broker = self._open(self.broker_url)
            return self._broker

    def _open_outlet(self) -> BrokerDriver:
        asked_at = time.monotonic()
        with self._lock:
            if self._outlet is None:
                self._fail_as_others_did(asked_at)
                is_one = self.outlet_url == self.broker_url
                self._outlet = self.broker if is_one else self._open(self.outlet_url)
            return self._outlet

    def _open(self, url: str) -> BrokerDriver:
        self._check_fork(url)
        if not self.names_a_broker:
            self._say_default()
        self.check_options()
        broker = make_broker(url, self._conf, self._clock, self._options())
        try:
            broker.open()
        except BrokerUnavailable as error:
            self._refused = time.monotonic(), error
            raise
        self._opened_with = self.urls
        return broker

    def _fail_as_others_did(self, asked_at: float) -> None:
        """Where it was tried in vain while this thread waited for its turn. Else a crowd of threads
        would try one after the other, and the last one have its answer after minutes."""
        if self._refused is not None and self._refused[0] > asked_at:
            error = self._refused[1]
            raise BrokerUnavailable(str(error)) from error

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
        return make_broker(self.broker_url, self._conf, self._clock)

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


_all: weakref.WeakSet[Connections] = weakref.WeakSet()


def _forked() -> None:
    for connections in list(_all):
        connections._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
