"""The settings of an application: one typed value per known name.

`settings_table` lists them, `settings_kinds` checks their values. Nothing here looks at the
environment or at files; `from_environment` is handed what it reads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import tzinfo
from typing import Literal, NamedTuple

from umbel.exceptions import ImproperlyConfigured, LaterSetting, UnknownSetting
from umbel.naming import BY_OLD_NAME, modern
from umbel.settings_kinds import Setting, State, WrongValue
from umbel.settings_table import CELERY_SETTINGS, UMBEL_SETTINGS, UNDECLARED_CELERY_SETTINGS
from umbel.states import FAILURE
from umbel.warning import warn

__all__ = [
    "CELERY_SETTINGS",
    "SETTINGS",
    "UMBEL_SETTINGS",
    "UNDECLARED_CELERY_SETTINGS",
    "Setting",
    "Settings",
    "State",
    "censored",
    "from_environment",
    "resolve_acks_on_failure",
    "resolve_acks_on_timeout",
]

SETTINGS: Mapping[str, Setting] = {
    setting.name: setting
    for setting in sorted(
        (*CELERY_SETTINGS, *UNDECLARED_CELERY_SETTINGS, *UMBEL_SETTINGS), key=lambda s: s.name
    )
}
"""Every known setting by name, in alphabetical order."""

FROM_OBJECT, FROM_DEFAULTS = 0, 1
"""The layers below what is set by name, the upper one first."""


class FoundOption(NamedTuple):
    """A setting, and its name in two parts: ``task`` and ``acks_late``."""

    namespace: str
    name: str
    option: Setting


class Settings:
    """One value per known setting, checked when it is set.

    The value is the first that there is of: what was set here, by whichever name; what
    `Umbel.config_from_object` found (`FROM_OBJECT`); what `Umbel.add_defaults` gave
    (`FROM_DEFAULTS`); the default. Celery's old names (``CELERY_ACKS_LATE``) are names too.

    Values are plain attributes. ``conf.x = v``, ``conf["x"] = v`` and ``conf.update(x=v)`` are the
    same: they raise `UnknownSetting` for a name that doesn't exist and `ImproperlyConfigured` for
    a value that can't be, and then change nothing; they warn with `LaterSetting`, once per name
    and object, of what isn't honoured in this release, unless it is the default anyway. Deleting a
    setting brings back what is below it.

    Seconds are floats and "no limit" is None, whichever way they were given. `defaults` are others
    than Umbel's.
    """

    # The types of what this release honours; everything else is an object to a type checker.
    accept_content: tuple[str, ...]
    broker_connection_max_retries: int | None
    broker_connection_retry: bool
    broker_connection_retry_on_startup: bool | None
    broker_host: str | None
    broker_connection_timeout: float | None
    broker_failover_strategy: object
    broker_password: str | None
    broker_pool_acquire_timeout: float | None
    broker_pool_limit: int | None
    broker_port: int | str | None
    broker_read_url: str | None
    broker_transport: str | None
    broker_transport_options: Mapping[str, object]
    broker_url: str | None
    broker_use_ssl: bool | Mapping[str, object]
    broker_user: str | None
    broker_vhost: str | None
    broker_write_url: str | None
    cache_backend: str | None
    cache_backend_options: Mapping[str, object]
    control_exchange: str
    database_create_tables_at_setup: bool
    database_engine_callback: object
    database_engine_options: Mapping[str, object]
    database_short_lived_sessions: bool
    database_table_names: Mapping[str, object] | None
    database_table_schemas: Mapping[str, object] | None
    database_url: str | None
    dead_letters_max_age: float
    dead_letters_max_bytes: int
    dead_letters_max_count: int
    enable_utc: bool
    imports: tuple[str, ...]
    include: tuple[str, ...]
    result_backend: str | None
    result_backend_always_retry: bool
    result_backend_base_sleep_between_retries_ms: int
    result_backend_max_retries: float
    result_backend_max_sleep_between_retries_ms: int
    result_backend_transport_options: Mapping[str, object]
    redis_backend_credential_provider: object
    redis_backend_health_check_interval: float | None
    redis_backend_use_ssl: bool | Mapping[str, object] | None
    redis_client_name: str | None
    redis_db: int | str | None
    redis_host: str | None
    redis_max_connections: int | None
    redis_password: str | None
    redis_port: int | str | None
    redis_retry_on_timeout: bool
    redis_socket_connect_timeout: float | None
    redis_socket_keepalive: bool
    redis_socket_timeout: float | None
    redis_username: str | None
    result_accept_content: tuple[str, ...] | None
    result_compression: str | None
    result_cache_max: int
    result_expires: float | None
    result_extended: bool
    result_failure_expires: float | None
    result_keep: int | None
    result_serializer: str
    security_cert_store: str | None
    security_certificate: str | None
    security_digest: str
    security_key: str | None
    security_key_password: str | bytes | None
    task_acks_late: bool
    task_acks_on_failure: bool | None
    task_acks_on_failure_or_timeout: bool
    task_acks_on_timeout: bool | None
    task_always_eager: bool
    task_annotations: object
    task_compression: str | None
    task_create_missing_queue_exchange_type: str | None
    task_create_missing_queues: bool
    task_dead_letters: bool
    task_default_delivery_mode: Literal[1, 2]
    task_default_exchange: str | None
    task_default_exchange_type: str
    task_default_priority: int | None
    task_default_queue: str
    task_default_routing_key: str | None
    task_eager_propagates: bool
    task_eta_in_broker: bool
    task_ignore_result: bool
    task_inherit_parent_priority: bool
    task_max_message_size: int
    task_max_redeliveries: int
    task_protocol: Literal[2]
    task_publish_retry: bool
    task_publish_retry_policy: Mapping[str, object]
    task_queue_max_priority: int | None
    task_queues: Iterable[object] | Mapping[str, object] | None
    task_reject_on_worker_lost: bool | None
    task_repr_maxlevels: int
    task_retry_on_worker_lost: bool
    task_routes: object
    task_serializer: str
    task_soft_time_limit: float | None
    task_store_eager_result: bool
    task_store_errors_even_if_ignored: bool
    task_time_limit: float | None
    task_track_started: bool
    task_unknown_wait: float
    timezone: str | tzinfo | None
    worker_concurrency: int | None
    worker_deduplicate_successful_tasks: bool
    worker_direct: bool
    worker_enable_remote_control: bool
    worker_enable_soft_shutdown_on_idle: bool
    worker_hijack_root_logger: bool
    worker_lease_time: float
    worker_log_color: bool | None
    worker_log_datefmt: str | None
    worker_log_format: str
    worker_log_json: bool
    redis_priority_order: str
    worker_max_memory_per_child: int | None
    worker_max_tasks_per_child: int | None
    worker_pool: Literal["prefork", "threads", "asyncio", "solo"]
    worker_prefetch_multiplier: int | None
    worker_processes: int
    worker_proc_alive_timeout: float
    worker_redirect_stdouts: bool
    worker_redirect_stdouts_level: str | int
    worker_soft_shutdown_timeout: float
    worker_task_log_datefmt: str | None
    worker_task_log_format: str

    _defaults: dict[str, object]
    _warned: set[str]
    _version: int
    _set: set[str]
    _layers: tuple[dict[str, object], dict[str, object]]

    def __init__(self, defaults: Mapping[str, object] | None = None) -> None:
        values = self.__dict__
        values["_defaults"] = dict(defaults or {})
        values["_warned"] = set()
        values["_version"] = 0
        values["_set"] = set()
        values["_layers"] = ({}, {})
        for name, setting in SETTINGS.items():
            values[name] = self._defaults.get(name, _default_of(setting))

    def update(
        self,
        changes: Mapping[str, object] | Iterable[tuple[str, object]] | None = None,
        /,
        **more: object,
    ) -> None:
        """Set all of these, or none where one of them can't be."""
        accepted = self._change(modern({**dict(changes or ()), **more}))
        self._set.update(accepted)
        self._put(accepted)

    def __setattr__(self, name: str, value: object) -> None:
        accepted = self._change({name: value})
        self._set.update(accepted)
        self._put(accepted)

    __setitem__ = __setattr__

    def lay(self, layer: int, changes: Mapping[str, object], *, anew: bool = True) -> None:
        """Fill a layer (`FROM_OBJECT`, `FROM_DEFAULTS`): `anew`, or over what it has.

        Changes nothing that was set here. Raises as `update` does.
        """
        accepted = self._change(changes)
        kept = self._layers[layer]
        before = set(kept) if anew else set()
        if anew:
            kept.clear()
        kept.update(accepted)
        self._put({name: self._below(name) for name in (before | set(accepted)) - self._set})

    def __delattr__(self, name: str) -> None:
        name = self.describe(name).name
        self._set.discard(name)
        self._put({name: self._below(name)})

    __delitem__ = __delattr__

    def __getattr__(self, name: str) -> object:
        # Only names that aren't in __dict__ come here. Underscored ones are asked for by copy
        # and pickle before there is anything to compare them with.
        if name.startswith("_"):
            raise AttributeError(name)
        return self[name]

    def __getitem__(self, name: str) -> object:
        return self.__dict__[self.describe(name).name]

    def __contains__(self, name: object) -> bool:
        return name in SETTINGS or name in BY_OLD_NAME

    def __iter__(self) -> Iterator[str]:
        return iter(SETTINGS)

    def __len__(self) -> int:
        return len(SETTINGS)

    def __repr__(self) -> str:
        return f"<Settings {self.table()!r}>"

    @property
    def version(self) -> int:
        """Rises with every change, so that what was worked out from settings can be kept."""
        return self._version

    def get(self, name: str, default: object = None) -> object:
        """The value of a setting, `default` for a name that doesn't exist."""
        return self[name] if name in self else default  # noqa: SIM401  # this is get itself

    def keys(self) -> Iterable[str]:
        """The names of all settings."""
        return SETTINGS.keys()

    def values(self) -> list[object]:
        """The values of all settings, in the order of `keys`."""
        return [self.__dict__[name] for name in SETTINGS]

    def items(self) -> list[tuple[str, object]]:
        """(name, value) of all settings."""
        return [(name, self.__dict__[name]) for name in SETTINGS]

    def setdefault(self, name: str, default: object = None) -> object:
        """Set a setting that has its default still; its value."""
        if not self.value_set_for(name):
            self[name] = default
        return self[name]

    def add_defaults(
        self, defaults: Mapping[str, object] | Callable[[], Mapping[str, object]]
    ) -> None:
        """Put these settings, or what the function gives, below all others; as
        `Umbel.add_defaults`, at once."""
        given = defaults() if callable(defaults) else defaults
        self.lay(FROM_DEFAULTS, modern(given), anew=False)

    def find_option(self, name: str, namespace: str = "") -> FoundOption:
        """The setting that `name` is in `namespace`, else by itself, else in any namespace.

        ``find_option("acks_late")`` and ``find_option("acks_late", "task")`` find
        `task_acks_late`. Raises `UnknownSetting`.
        """
        plain = name.lower()
        ends = (known for known in SETTINGS if known.endswith(f"_{plain}"))
        for found in (f"{namespace.lower()}_{plain}", plain, BY_OLD_NAME.get(name, ""), *ends):
            if found in SETTINGS:
                part, _, key = found.partition("_")
                return FoundOption(part, key, SETTINGS[found])
        raise _unknown(name)

    def get_by_parts(self, *parts: str) -> object:
        """``get_by_parts("task", "acks_late")`` is `task_acks_late`."""
        return self["_".join(part for part in parts if part)]

    def value_set_for(self, name: str) -> bool:
        """Whether anything but the default gave the setting its value."""
        name = self.describe(name).name
        return name in self._set or any(name in layer for layer in self._layers)

    def describe(self, name: str) -> Setting:
        """What is known of the setting `name`; raises `UnknownSetting`."""
        try:
            return SETTINGS[BY_OLD_NAME.get(name, name)]
        except (KeyError, TypeError):
            raise _unknown(name) from None

    def non_defaults(self) -> dict[str, object]:
        """The settings that differ from their defaults, by name; secrets are in clear."""
        return {
            name: self.__dict__[name]
            for name, setting in SETTINGS.items()
            if self.__dict__[name] != self._defaults.get(name, setting.default)
        }

    without_defaults = non_defaults

    def table(self, with_defaults: bool = False, censored: bool = True) -> dict[str, object]:
        """The settings to show to people, by name, with passwords made unreadable.

        `with_defaults` adds those that weren't changed; without `censored` secrets are in clear.
        """
        shown = {name: self.__dict__[name] for name in SETTINGS}
        return {
            name: _hidden(name, value) if censored else value
            for name, value in (shown if with_defaults else self.non_defaults()).items()
        }

    def humanize(self, with_defaults: bool = False, censored: bool = True) -> str:
        """`table` as text, a line ``name: value`` for each."""
        table = self.table(with_defaults, censored)
        return "\n".join(f"{name}: {value!r}" for name, value in table.items())

    def _below(self, name: str) -> object:
        """What a setting is where it isn't set here."""
        for layer in self._layers:
            if name in layer:
                return layer[name]
        return self._defaults.get(name, _default_of(SETTINGS[name]))

    def _put(self, values: Mapping[str, object]) -> None:
        self.__dict__.update(values)
        self.__dict__["_version"] += 1

    def _change(self, changes: Mapping[str, object]) -> dict[str, object]:
        """`changes` as they are to be, by new names; warns of what has no effect."""
        described = {self.describe(name): value for name, value in changes.items()}
        accepted = {known.name: _accept(known, value) for known, value in described.items()}
        for name in accepted:
            setting = SETTINGS[name]
            if setting.warns and name not in self._warned and _differs(setting, accepted[name]):
                warn(_without_effect(setting), LaterSetting)
                self._warned.add(name)
        return accepted


def result_life(settings: Settings, state: str) -> float | None:
    """Seconds that a result of this state is kept; None: it doesn't go by itself."""
    failures = settings.result_failure_expires if state == FAILURE else None
    return failures or settings.result_expires


def resolve_acks_on_failure(
    settings: Settings, own: bool | None = None, own_for_both: bool | None = None
) -> bool:
    """Whether a late task that failed is acknowledged.

    The first that isn't None of: the task's own, the setting, the task's own
    `acks_on_failure_or_timeout`, the setting of that name.
    """
    return _first(
        own,
        settings.task_acks_on_failure,
        own_for_both,
        otherwise=settings.task_acks_on_failure_or_timeout,
    )


def resolve_acks_on_timeout(
    settings: Settings, own: bool | None = None, own_for_both: bool | None = None
) -> bool:
    """Whether a late task that met its hard limit is acknowledged; order as for failures."""
    return _first(
        own,
        settings.task_acks_on_timeout,
        own_for_both,
        otherwise=settings.task_acks_on_failure_or_timeout,
    )


def _first(*values: bool | None, otherwise: bool) -> bool:
    return next((value for value in values if value is not None), otherwise)


_CELERY_VARIABLES = {
    "CELERY_BROKER_URL": "broker_url",
    "CELERY_BROKER_READ_URL": "broker_read_url",
    "CELERY_BROKER_WRITE_URL": "broker_write_url",
    "CELERY_RESULT_BACKEND": "result_backend",
}


def from_environment(environ: Mapping[str, str]) -> dict[str, object]:
    """The settings that environment variables give, by name.

    ``UMBEL_<NAME>`` in upper case for each setting that one word can carry, and the four names
    that Celery reads; Umbel's win, an empty variable is none. Raises `ImproperlyConfigured`.
    """
    found: dict[str, object] = {}
    for variable, name in _CELERY_VARIABLES.items():
        if text := environ.get(variable):
            found[name] = _parse(f"environment variable {variable}", SETTINGS[name], text)
    for name, setting in SETTINGS.items():
        variable = f"UMBEL_{name.upper()}"
        if setting.kind.parse is not None and (text := environ.get(variable)):
            found[name] = _parse(f"environment variable {variable}", setting, text)
    return found


def _parse(where: str, setting: Setting, text: str) -> object:
    assert setting.kind.parse is not None
    try:
        return setting.kind.accept(setting.kind.parse(text))
    except ValueError as error:
        hint = str(error) if isinstance(error, WrongValue) else ""
        raise _wrong(where, setting, text, hint) from None


def parse_text(name: str, text: str) -> object:
    """The value of a setting that is written as text, as an environment variable's is.

    Raises `UnknownSetting` and `ImproperlyConfigured`.
    """
    if name not in SETTINGS:
        raise _unknown(name)
    setting = SETTINGS[name]
    if setting.kind.parse is None:
        raise _wrong(f"setting {name!r}", setting, text, "that can't be written as text")
    return _parse(f"setting {name!r}", setting, text)


def _accept(setting: Setting, value: object) -> object:
    try:
        accepted = setting.kind.accept(value)
    except WrongValue as error:
        raise _wrong(f"setting {setting.name!r}", setting, value, str(error)) from None
    return accepted


def _wrong(what: str, setting: Setting, value: object, hint: str) -> ImproperlyConfigured:
    return ImproperlyConfigured(
        f"{what} can't be {_shown(setting.name, value)}: expected {setting.type}"
        + (f"; {hint}" if hint else "")
    )


def _shown(name: str, value: object) -> str:
    try:
        text = repr(censored(name, value))
    except RecursionError:
        return f"a {type(value).__name__} that contains itself"
    return text if len(text) <= 200 else f"{text[:200]}…"


def _differs(setting: Setting, value: object) -> bool:
    """Whether `value` is another one than the default."""
    default = _default_of(setting)
    # Of one type, since what is compared may be any object, with an `==` of its own.
    return value is not default and (type(value) is not type(default) or value != default)


def _without_effect(setting: Setting) -> str:
    when = "yet" if setting.state is State.LATER else "and never will"
    return f"setting {setting.name!r} has no effect {when}: {setting.sentence}"


def _default_of(setting: Setting) -> object:
    # A dict of one's own, since people write conf.beat_schedule["x"] = …
    return dict(setting.default) if isinstance(setting.default, Mapping) else setting.default


def _unknown(name: object) -> UnknownSetting:
    if not isinstance(name, str):
        return UnknownSetting(f"setting {name!r} doesn't exist: the name of a setting is a str")
    plain = name.lower()
    for candidate in (plain, plain.removeprefix("celery_"), plain.removeprefix("umbel_")):
        if candidate in SETTINGS:
            return UnknownSetting(f"setting {name!r} doesn't exist; write {candidate!r}")
    from difflib import get_close_matches  # only a mistake pays for its import

    plain = plain.removeprefix("celery_")
    near = get_close_matches(plain, SETTINGS, cutoff=0.8) or get_close_matches(plain, SETTINGS)
    question = (
        f"did you mean {' or '.join(map(repr, near))}?"
        if near
        else "`umbel settings` lists those that do."
    )
    return UnknownSetting(
        f"setting {name!r} doesn't exist; {question} Values of your own belong in a module of "
        "your own"
    )


_SECRET_NAME = re.compile(
    r"password|passwd|secret|token|credential|(?:access|api|private)_?key", re.I
)
_SECRET_IN_QUERY = re.compile(r"(?i)([?&](?:password|passwd|secret|token|sig)=)[^&;\s]+")
# Greedy to the last @, so that a password with a raw @ or / in it doesn't show its tail.
_SECRET_IN_URL = re.compile(r"(://[^:/?#\s]*:).*@")
_STARS = "********"


def censored(name: str, value: object) -> object:
    """`value` with stars for passwords: of secret settings, in URLs, in dicts and lists."""
    if _SECRET_NAME.search(name) and isinstance(value, (str, bytes)) and value:
        return _STARS
    if isinstance(value, str):
        return _SECRET_IN_URL.sub(rf"\1{_STARS}@", _SECRET_IN_QUERY.sub(rf"\1{_STARS}", value))
    if isinstance(value, Mapping):
        return {key: censored(str(key), part) for key, part in value.items()}
    if isinstance(value, list):
        return [censored(name, part) for part in value]
    if isinstance(value, tuple):
        return tuple(censored(name, part) for part in value)
    return value


_hidden = censored  # for methods with a parameter of that name
