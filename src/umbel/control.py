"""``app.control``: what can be asked of workers, as far as this release has it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from umbel.absent import CONTROL, INSPECT, without
from umbel.arguments import listed
from umbel.asking import Answer, ask
from umbel.exceptions import ImproperlyConfigured
from umbel.mailbox import Audience, Command

if TYPE_CHECKING:
    from umbel.app import Umbel


@without("app.control.inspect()", INSPECT)
class Inspect:
    """Questions to workers, to those that are named or whose names fit; made by
    `Control.inspect`."""

    def __init__(
        self,
        destination: str | Iterable[str] | None = None,
        timeout: float = 1.0,
        callback: Callable[[Answer], object] | None = None,
        connection: object = None,
        app: Umbel | None = None,
        limit: int | None = None,
        pattern: str | None = None,
        matcher: str | None = None,
    ) -> None:
        if app is None:
            raise ImproperlyConfigured("Inspect() has no app; make it by app.control.inspect()")
        self.app = app
        self.destination = destination
        self.timeout = timeout
        self.callback = callback
        self.limit = limit
        self.pattern = pattern
        self.matcher = matcher

    def ping(self, destination: str | Iterable[str] | None = None) -> dict[str, Any] | None:
        """``{node: {"ok": "pong"}}`` of the workers that answer; None where none does."""
        named = self.destination if destination is None else destination
        answers = ask(
            self.app,
            Command("ping", audience=_audience(named, self.pattern, self.matcher)),
            timeout=self.timeout,
            limit=self.limit,
            callback=self.callback,
        )
        found = {node: answer for each in answers for node, answer in each.items()}
        return found or None


@without("app.control", CONTROL)
class Control:
    """Asking who is there, revoking, terminating, purging."""

    def __init__(self, app: Umbel) -> None:
        self.app = app

    def ping(
        self,
        destination: str | Iterable[str] | None = None,
        timeout: float = 1.0,
        *,
        limit: int | None = None,
        callback: Callable[[Answer], object] | None = None,
        pattern: str | None = None,
        matcher: str | None = None,
        **options: object,
    ) -> list[Answer]:
        """A ``{node: {"ok": "pong"}}`` for each worker that answers, Celery's too.

        Where Celery can be at the broker, this takes `timeout` seconds after the last answer,
        unless as many have come as `destination` names, or `limit`.
        """
        return ask(
            self.app,
            Command("ping", audience=_audience(destination, pattern, matcher)),
            timeout=timeout,
            limit=limit,
            callback=callback,
        )

    def inspect(
        self,
        destination: str | Iterable[str] | None = None,
        timeout: float = 1.0,
        callback: Callable[[Answer], object] | None = None,
        connection: object = None,
        app: Umbel | None = None,
        limit: int | None = None,
        pattern: str | None = None,
        matcher: str | None = None,
    ) -> Inspect:
        """Questions to workers."""
        return Inspect(
            destination, timeout, callback, connection, app or self.app, limit, pattern, matcher
        )

    def revoke(
        self,
        task_id: str | Iterable[str],
        destination: Iterable[str] | None = None,
        terminate: bool = False,
        signal: str | None = None,
        **options: object,
    ) -> None:
        """`Umbel.revoke`, also of a single id. A revocation holds for all workers."""
        if destination is not None:
            raise ImproperlyConfigured(
                f"revoke(destination={destination!r:.80}): a revocation is kept in the broker and "
                "holds for every worker; leave destination out"
            )
        ids = [task_id] if isinstance(task_id, str) else task_id
        self.app.revoke(ids, terminate=terminate, signal=signal)

    def terminate(
        self,
        task_id: str | Iterable[str],
        destination: Iterable[str] | None = None,
        signal: str | None = None,
        **options: object,
    ) -> None:
        """`revoke`, with the end of what runs already."""
        self.revoke(task_id, destination, terminate=True, signal=signal)

    def purge(self, connection: object = None) -> int:
        """Delete what waits in the app's queues; how many messages. Workers keep what they hold."""
        app = self.app
        return app.broker.purge([queue.name for queue in app.router.select()])

    discard_all = purge


def _audience(
    destination: str | Iterable[str] | None, pattern: str | None, matcher: str | None
) -> Audience:
    """Raises `TypeError` for a destination that isn't one."""
    if isinstance(destination, str):
        destination = [destination]
    if destination is not None:
        destination = listed(destination, "destination", "the names of workers, such as umbel@host")
    return Audience(destination, pattern, matcher)
