"""``celery.app.base``: the app of programs that were written for Celery."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, tzinfo
from typing import Any, ClassVar, Final

from umbel.app import Umbel
from umbel.clock import SYSTEM, Clock
from umbel.compat.missing import guard
from umbel.task import Task

__all__ = ["App", "Celery"]

CONSERVATIVE: Final[Mapping[str, object]] = {
    "task_eta_in_broker": False,
    "redis_priority_order": "low-first",
}
"""Where an app's queues may be shared with workers that know nothing of Umbel, what is sent has to
be as they send it."""


class Celery(Umbel):
    """An `Umbel` with Celery's parameters, which may share its queues with Celery's workers.

    It differs in its defaults: what is due later travels as Celery's (`task_eta_in_broker` is
    off), priorities on Redis have Celery's order (`redis_priority_order` is ``"low-first"``), and
    the broker, where none is named, is Celery's ``amqp://``. The last worker that stops hands
    back what only Umbel's would run (``umbel handback``). And an `eta` or `expires` without a
    zone is UTC, whatever `timezone` says.
    """

    default_settings: ClassVar[Mapping[str, object]] = CONSERVATIVE
    default_broker: ClassVar[str] = "amqp://"
    hands_back: ClassVar[bool] = True

    def __init__(
        self,
        main: str | None = None,
        loader: object = None,
        backend: str | None = None,
        amqp: object = None,
        events: object = None,
        log: object = None,
        control: object = None,
        set_as_current: bool = True,
        tasks: object = None,
        broker: str | None = None,
        include: Iterable[str] | None = None,
        changes: Mapping[str, object] | None = None,
        config_source: object = None,
        fixups: Iterable[Callable[[Umbel], object] | str] | None = None,
        task_cls: type[Task[..., Any]] | str | None = None,
        autofinalize: bool = True,
        namespace: str | None = None,
        strict_typing: bool = True,
        config_source_silent: bool = False,
        clock: Clock = SYSTEM,
        **settings: Any,
    ) -> None:
        super().__init__(
            main,
            broker=broker,
            backend=backend,
            include=include,
            set_as_current=set_as_current,
            config_source=config_source,
            config_source_silent=config_source_silent,
            namespace=namespace,
            strict_typing=strict_typing,
            task_cls=task_cls,
            autofinalize=autofinalize,
            changes=changes,
            fixups=fixups,
            clock=clock,
            loader=loader,
            amqp=amqp,
            events=events,
            log=log,
            control=control,
            tasks=tasks,
            **settings,
        )

    @property
    def call_zone(self) -> tzinfo:
        """UTC, as in Celery."""
        return UTC

    def __repr__(self) -> str:
        return f"<Celery {self.main or '__main__'}>"


App = Celery

guard(__name__)
