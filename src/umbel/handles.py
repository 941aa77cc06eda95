"""What stands for Kombu's connection and producer in programs that ask an app for one.

Umbel needs neither: an app opens its broker when it first sends, and any thread may send. So
these only say whether the broker is there, and can be given to calls (``connection=``,
``producer=``), which go through the app's broker anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NoReturn

from umbel.absent import CONNECTION
from umbel.exceptions import BrokerUnavailable, ImproperlyConfigured, NotProvided
from umbel.settings import censored

if TYPE_CHECKING:
    from umbel.app import Umbel

_OPTIONS: Final = frozenset({"connection", "producer", "publisher"})
"""The options of a call that take one."""


class Handle:
    """What a connection and a producer have in common: nothing of their own to close."""

    def __init__(self, app: Umbel) -> None:
        self.app = app

    def release(self) -> None:
        """Nothing is held: `Umbel.close` closes the app's connections."""

    close = release

    def __enter__(self) -> Any:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()

    if not TYPE_CHECKING:  # which are to see what isn't there

        def __getattr__(self, name: str) -> NoReturn:
            raise NotProvided(f"{type(self).__name__.lower()}.{name} {CONNECTION}")


class Connection(Handle):
    """The app's way to its broker."""

    def ensure_connection(
        self,
        errback: Callable[[Exception, float], object] | None = None,
        max_retries: int | None = None,
        interval_start: float = 2,
        interval_step: float = 2,
        interval_max: float = 30,
        *_: object,
        **__: object,
    ) -> Connection:
        """Ask the broker whether it is there; itself.

        Repeated `max_retries` times, for ever where that is None or 0, after
        `interval_start` seconds, `interval_step` more each time, up to `interval_max`; `errback` is
        called with the error and that wait. Raises `BrokerUnavailable`.
        """
        from time import sleep

        wait, tries = interval_start, 0
        while True:
            try:
                self.app.broker.queues()
            except BrokerUnavailable as error:
                tries += 1
                if max_retries and tries > max_retries:
                    raise
                if errback is not None:
                    errback(error, wait)
                sleep(wait)
                wait = min(wait + interval_step, interval_max)
            else:
                return self

    def connect(self) -> Connection:
        """`ensure_connection` without repeating."""
        self.app.broker.queues()
        return self

    @property
    def connected(self) -> bool:
        """Whether the broker answers."""
        try:
            self.connect()
        except BrokerUnavailable:
            return False
        return True

    def as_uri(self, include_password: bool = False) -> str:
        """The broker's URL."""
        url = self.app.connections.broker_url
        return url if include_password else str(censored("broker_url", url))

    def __repr__(self) -> str:
        return f"<Connection: {self.as_uri()}>"


class Producer(Handle):
    """What sends an app's messages: the app."""

    @property
    def connection(self) -> Connection:
        return Connection(self.app)

    def __repr__(self) -> str:
        return f"<Producer: {self.connection.as_uri()}>"


def connection_of(app: Umbel, url: str | None, options: Mapping[str, object]) -> Connection:
    """The app's connection. Raises `ImproperlyConfigured` where another is asked for."""
    other = {name: value for name, value in options.items() if value is not None}
    if url is not None and url != app.connections.broker_url:
        other = {"url": url, **other}
    if other:
        raise ImproperlyConfigured(
            f"a connection with {', '.join(sorted(other))} of its own isn't there; an app has one "
            "broker (broker_url). For another broker, make another app"
        )
    return Connection(app)


def check_handles(app: Umbel, call: Mapping[str, Any]) -> None:
    """Raises `ImproperlyConfigured` where a call is to go through another broker than the app's."""
    for name in _OPTIONS & call.keys():
        value = call[name]
        if value is None or (isinstance(value, Handle) and value.app is app):
            continue
        what = f"one of {value.app!r}" if isinstance(value, Handle) else f"{value!r:.80}"
        raise ImproperlyConfigured(
            f"{name} is {what}; messages of {app!r} go through its own broker. Leave it out, or "
            "send with an app of the other broker"
        )
