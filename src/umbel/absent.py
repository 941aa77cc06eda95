"""What Celery's objects have and Umbel's don't, with what to use in its place.

One table for each kind of object. Reading such a name raises `NotProvided`, which is an
`AttributeError` too, so that ``hasattr`` and ``getattr`` with a default do as they should.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn, TypeVar

from umbel.exceptions import ImproperlyConfigured, NotProvided

C = TypeVar("C", bound=type)

_EVENTS: Final = "comes with the release 'Events and remote control'"
_SCHEDULER: Final = "comes with the release 'Scheduler'"
_WORKFLOWS: Final = "comes with the release 'Workflows'"
_NO_STEPS: Final = (
    "isn't there: a worker has no bootsteps. Signals do their work: celeryd_init, worker_init, "
    "worker_process_init, worker_ready, worker_shutting_down, worker_shutdown"
)
_NO_KOMBU: Final = "isn't there: Umbel's brokers have no channels and producers"

APP: Final[Mapping[str, str]] = {
    "amqp": f"{_NO_KOMBU}. app.router says where a call goes, app.broker has the queues, "
    "task_queues declares them",
    "pool": f"{_NO_KOMBU}. Sending is thread-safe and needs no pool of connections",
    "producer_pool": f"{_NO_KOMBU}. Sending is thread-safe and needs no pool; app.batch() sends "
    "many messages in one step",
    "events": _EVENTS,
    "log": "isn't there: a worker sets up logging (worker_log_format, worker_task_log_format, the "
    "signals setup_logging, after_setup_logger and after_setup_task_logger); "
    "umbel.get_task_logger gives a task its logger",
    "loader": "isn't there: app.config_from_object takes settings, and app.load_modules imports "
    "the modules with tasks",
    "add_periodic_task": _SCHEDULER,
    "Beat": _SCHEDULER,
    "Worker": "isn't there: app.worker_main(['worker']) or the command `umbel worker` runs one",
    "WorkController": "isn't there: app.worker_main(['worker']) or the command `umbel worker` runs "
    "a worker, and the signals of umbel.signals tell of its life",
}

TASKS: Final[Mapping[str, str]] = {
    "register": "isn't there: app.register_task(task) makes a class of tasks, or its object, known",
    "regular": "isn't there: app.tasks is a dict of all tasks by name",
    "periodic": _SCHEDULER,
    "filter_types": "isn't there: app.tasks is a dict of all tasks by name",
}

TASK: Final[Mapping[str, str]] = {
    "Strategy": "isn't there: what becomes of a message is decided by umbel.outcome; the signals "
    "task_received and task_prerun see each one",
    "Request": "isn't there: override the handlers before_start, on_success, on_retry, on_failure "
    "and after_return, or connect the signals task_received, task_failure and task_revoked",
    "start_strategy": "isn't there: workers of Umbel have no start strategies",
    "from_config": "isn't there: an option that a task doesn't have is read from its setting, "
    "task_<option>",
    "send_event": _EVENTS,
    "add_to_chord": _WORKFLOWS,
}

SIGNATURE: Final[Mapping[str, str]] = {
    "election": _EVENTS,
    "register_type": "isn't there: the kinds of signatures are fixed",
}

CONTROL: Final[Mapping[str, str]] = dict.fromkeys(
    (
        "broadcast", "election", "revoke_by_stamped_headers", "rate_limit",
        "time_limit", "enable_events", "disable_events", "add_consumer", "cancel_consumer",
        "pool_grow", "pool_shrink", "pool_restart", "autoscale", "shutdown", "heartbeat",
        "mailbox", "Mailbox",
    ),
    f"{_EVENTS}. Until then: `umbel status`, `umbel queues` and `umbel why`",
)  # fmt: skip

INSPECT: Final[Mapping[str, str]] = dict.fromkeys(
    (
        "active", "active_queues", "clock", "conf", "hello", "memdump", "memsample", "objgraph",
        "query_task", "registered", "registered_tasks", "report", "reserved", "revoked",
        "scheduled", "stats",
    ),
    f"{_EVENTS}. Until then: `umbel status`, `umbel queues` and `umbel why`",
)  # fmt: skip

CONNECTION: Final = (
    f"{_NO_KOMBU}. This object can say whether the broker is there: ensure_connection()"
)

REPLACED_CLASSES: Final = (
    "amqp_cls", "backend_cls", "control_cls", "events_cls", "loader_cls", "log_cls", "registry_cls",
)  # fmt: skip
"""Class attributes by which a Celery app's parts are replaced."""

APP_KEYWORDS: Final[Mapping[str, str]] = {
    "loader": APP["loader"],
    "amqp": APP["amqp"],
    "events": APP["events"],
    "log": APP["log"],
    "control": "isn't there: app.control can't be replaced",
    "tasks": "isn't there: every app has a registry of its own; shared=True or shared_task makes "
    "a task that all have",
}


class Absent:
    """A name that an object doesn't have, as an attribute of its class.

    An attribute rather than a ``__getattr__``, which would hide the `UnknownSetting` of a property.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def __get__(self, owner: object, cls: type | None = None) -> NoReturn:
        raise NotProvided(self._text)


def without(what: str, names: Mapping[str, str]) -> Callable[[C], C]:
    """Have reading each of these names of an object of the class raise `NotProvided`."""

    def add(cls: C) -> C:
        for name, sentence in names.items():
            setattr(cls, name, Absent(f"{what}.{name} {sentence}"))
        return cls

    return add


def refuse_keywords(settings: Mapping[str, object]) -> None:
    """Raises `ImproperlyConfigured` for a keyword of an app that would replace a part of it."""
    for name, sentence in APP_KEYWORDS.items():
        if settings.get(name) is not None:
            raise ImproperlyConfigured(f"Umbel({name}=…) {sentence}")


def refuse_class(cls: type, names: tuple[str, ...], kept: str) -> None:
    """Raises `ImproperlyConfigured` for a class that sets one of `names`: nobody would see it."""
    for name in names:
        if vars(cls).get(name) is not None:
            raise ImproperlyConfigured(f"class {cls.__name__} sets {name}; {kept}")


class Unextendable(dict[str, Any]):
    """A place where Celery's apps are extended: it can be read, and takes nothing."""

    def __init__(self, where: str, sentence: str, parts: tuple[str, ...]) -> None:
        self._refusal = f"{where} {sentence}"
        super().__init__((part, Refusing(self._refusal)) for part in parts)

    def __setitem__(self, key: str, value: object) -> NoReturn:
        raise ImproperlyConfigured(self._refusal)

    def update(self, *_: object, **__: object) -> NoReturn:
        raise ImproperlyConfigured(self._refusal)


class Refusing(set[Any]):
    """An empty set that stays empty, and says why."""

    def __init__(self, refusal: str) -> None:
        self._refusal = refusal
        super().__init__()

    def add(self, element: object, /) -> NoReturn:
        raise ImproperlyConfigured(self._refusal)

    def update(self, *others: object) -> NoReturn:
        raise ImproperlyConfigured(self._refusal)

    def __ior__(self, other: object) -> NoReturn:
        raise ImproperlyConfigured(self._refusal)


def no_steps() -> Unextendable:
    """What `Umbel.steps` is."""
    return Unextendable("app.steps", _NO_STEPS, ("worker", "consumer"))


def no_user_options() -> Unextendable:
    """What `Umbel.user_options` is."""
    return Unextendable(
        "app.user_options",
        "isn't there: Umbel's commands take no options of an app. Read an environment variable, or "
        "write a command of your own that calls app.worker_main([...])",
        ("preload", "worker", "beat", "events"),
    )
