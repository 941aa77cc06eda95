"""The part of an app that is its settings, and what follows from them alone."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING, Any, ClassVar, cast

from umbel.clock import Clock
from umbel.configure import Defaults, Source, Sources, from_arguments, named_by
from umbel.instants import time_zone
from umbel.settings import Settings, from_environment

if TYPE_CHECKING:
    from umbel.app import Umbel


class Configured:
    """An app, as far as it has settings. `Umbel` derives from this, and says which ones hold."""

    default_settings: ClassVar[Mapping[str, object]] = {}
    """Defaults of this class of apps, where they aren't Umbel's."""
    hands_back: ClassVar[bool] = False
    """Whether the last worker that stops leaves its queues to Celery's (`umbel.handback`)."""

    def __init__(self, namespace: str, clock: Clock, given: Mapping[str, Any]) -> None:
        self.namespace = namespace
        self.clock = clock
        self.configured = False
        """Whether `on_configure` and `on_after_configure` were sent."""
        self._conf = Settings(self.default_settings)
        self._sources = Sources(self._conf, self.prepare_config)
        self._conf.update({**given, **from_environment(os.environ)})

    def prepare_config(self, config: dict[str, Any]) -> Mapping[str, Any]:
        """The settings to take of those that a module, object or dict has; for classes of apps."""
        return config

    @functools.cached_property
    def conf(self) -> Settings:
        """The settings; the first look reads what `config_from_object` named."""
        self._sources.read()
        return self._conf

    def config_from_object(
        self,
        obj: object,
        silent: bool = False,
        force: bool = False,
        namespace: str | None = None,
    ) -> None:
        """Take settings from a module, an object or a dict, or from the name of one of them.

        Names are ``proj.settings`` and ``proj.settings:Production``. With a `namespace` ``CELERY``
        they are written ``CELERY_TASK_ACKS_LATE`` there, and all else is left alone. Read when a
        setting is first needed, at once with `force`; `silent`: a module may be missing. It
        replaces what an earlier call took. Reading raises `UnknownSetting` and
        `ImproperlyConfigured`, also for a mixture of old names and new ones.
        """
        source = Source(obj, self.namespace if namespace is None else namespace, silent)
        self._sources.take(source)
        self._unread()
        if force or self.configured:
            self.conf  # noqa: B018  # the look reads it

    def config_from_envvar(
        self, variable_name: str, silent: bool = False, force: bool = False
    ) -> None:
        """`config_from_object` with the module that the environment variable names.

        Raises `ImproperlyConfigured` where it isn't set, unless `silent`.
        """
        name = named_by(variable_name, silent)
        if name is not None:
            self.config_from_object(name, silent=silent, force=force)

    def config_from_cmdline(self, argv: Iterable[str], namespace: str = "celery") -> None:
        """Set settings that are written ``task.acks_late=true`` or ``task_acks_late=true``.

        Values are written as in environment variables. Raises `UnknownSetting` and
        `ImproperlyConfigured`.
        """
        self.conf.update(from_arguments(argv, namespace))

    def add_defaults(self, defaults: Defaults) -> None:
        """Put these settings, or what the function gives, below all others."""
        self._sources.add_defaults(defaults)
        self._unread()

    def _unread(self) -> None:
        self.__dict__.pop("conf", None)  # the next look at it reads what was named

    @property
    def annotations(self) -> tuple[Any, ...]:
        """What `task_annotations` has, as a tuple."""
        given = self.conf.task_annotations
        if given is None:
            return ()
        return tuple(given) if isinstance(given, (list, tuple)) else (given,)

    @property
    def zone(self) -> tzinfo:
        """The time zone of naive times."""
        return time_zone(self.conf)

    timezone = zone
    call_zone = zone
    """The zone of naive times in calls, and of those that a call writes."""

    def now(self) -> datetime:
        """The time, aware, in `zone`."""
        return datetime.fromtimestamp(self.clock.wall(), self.zone)

    def uses_utc_timezone(self) -> bool:
        """Whether `zone` is UTC."""
        return self.zone is UTC or str(self.zone) == "UTC"

    def either(self, key: str, *values: Any) -> Any:
        """The first value that isn't None, else the setting `key`."""
        return next((each for each in values if each is not None), self.conf[key])


def as_app(layer: Configured) -> Umbel:
    """The app that `layer` is a part of."""
    return cast("Umbel", layer)
