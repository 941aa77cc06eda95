"""The part of an app that is there for programs written for Celery; nothing else needs it."""

from __future__ import annotations

import functools
import sys
import threading
import uuid
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from umbel.absent import APP, REPLACED_CLASSES, refuse_class, without
from umbel.appsettings import as_app
from umbel.apptasks import WithTasks
from umbel.arguments import listed
from umbel.backend import Backend
from umbel.commands import command_line
from umbel.control import Control
from umbel.current import (
    get_current_task,
    get_current_worker_task,
    set_current,
    set_default,
)
from umbel.handles import Connection, Producer, connection_of
from umbel.publish import ORIGIN
from umbel.result import GroupResult

if TYPE_CHECKING:
    from umbel.task import Task


@without("app", APP)
class CeleryNames(WithTasks):
    """An app under the names that Celery has for what it does."""

    selected_queues: tuple[str, ...] | None = None
    """What `select_queues` named."""
    GroupResult = GroupResult

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        refuse_class(
            cls, REPLACED_CLASSES, "the parts of an app can't be replaced; app.<part> says more"
        )

    def set_current(self) -> None:
        """Make this the current app of this thread; see `umbel.current`."""
        set_current(as_app(self))

    def set_default(self) -> None:
        """Make this the current app of every thread that has none of its own."""
        set_default(as_app(self))

    @property
    def current_task(self) -> Task[..., Any] | None:
        """The task that runs here; None outside tasks."""
        return get_current_task()

    @property
    def current_worker_task(self) -> Task[..., Any] | None:
        """The task that a worker executes here; None in tasks that are called like functions."""
        return get_current_worker_task()

    @functools.cached_property
    def backend(self) -> Backend:
        """Stored results by task id, under the names of Celery's backends."""
        return Backend(as_app(self))

    @functools.cached_property
    def control(self) -> Control:
        """Revoking and purging, under Celery's names."""
        return Control(as_app(self))

    @property
    def oid(self) -> str:
        """The id that this process puts into its messages, as `reply_to`."""
        return ORIGIN.reply_to

    @property
    def thread_oid(self) -> str:
        """As `oid`, for this thread."""
        return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{self.oid}\0{threading.get_ident()}"))

    def connection_for_read(self, url: str | None = None, **options: object) -> Connection:
        """The app's way to its broker; see `Connection.ensure_connection`."""
        return connection_of(as_app(self), url, options)

    def connection_for_write(self, url: str | None = None, **options: object) -> Connection:
        """As `connection_for_read`: an app has one broker."""
        return connection_of(as_app(self), url, options)

    def connection(self, hostname: str | None = None, **options: object) -> Connection:
        """As `connection_for_read`: an app has one broker."""
        return connection_of(as_app(self), hostname, options)

    broker_connection = connection

    def connection_or_acquire(
        self, connection: Connection | None = None, pool: bool = True, *_: object, **__: object
    ) -> Connection:
        """`connection`, or the app's."""
        return connection or Connection(as_app(self))

    default_connection = connection_or_acquire

    def producer_or_acquire(self, producer: Producer | None = None) -> Producer:
        """`producer`, or one to give to calls; sending needs none."""
        return producer or Producer(as_app(self))

    default_producer = producer_or_acquire

    def start(self, argv: Sequence[str] | None = None) -> int:
        """Run the command ``umbel`` with this app and the arguments `argv`; its exit code.

        Without `argv`, those of this program.
        """
        return command_line(as_app(self), sys.argv[1:] if argv is None else argv)

    def worker_main(self, argv: Sequence[str] | None = None) -> int:
        """As `start`, of a worker: `argv` must have ``worker`` in it."""
        arguments = list(sys.argv[1:] if argv is None else argv)
        if "worker" not in arguments:
            raise ValueError(
                f"worker_main({arguments!r:.200}): the arguments must have the command 'worker', "
                "such as app.worker_main(['worker', '--loglevel=INFO'])"
            )
        return self.start(arguments)

    def bugreport(self) -> str:
        """What a report of a mistake should tell of this machine and app, as text."""
        from umbel.report import bugreport  # nothing else needs it

        return bugreport(as_app(self))

    def select_queues(self, queues: Iterable[str] | None = None) -> None:
        """Have workers of this process consume these queues only, unless ``-Q`` names others."""
        expected = "a list of the names of queues, or None for all"
        self.selected_queues = (
            None if queues is None else tuple(listed(queues, "select_queues", expected))
        )
