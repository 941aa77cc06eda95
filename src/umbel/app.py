"""The application: its settings, its tasks, and its way to the broker."""

from __future__ import annotations

import functools
import importlib
import os
import sys
import threading
import uuid
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Concatenate,
    Literal,
    ParamSpec,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from umbel.absent import (
    APP,
    APP_KEYWORDS,
    REPLACED_CLASSES,
    no_steps,
    no_user_options,
    refuse_class,
    refuse_keywords,
    without,
)
from umbel.annotations import annotate
from umbel.arguments import argument_check
from umbel.asyncresult import no_store
from umbel.backend import Backend
from umbel.canvas import Signature, signature
from umbel.clock import SYSTEM, Clock
from umbel.commands import bugreport, command_line
from umbel.configure import (
    Defaults,
    Source,
    Sources,
    find_object,
    from_arguments,
    module_in,
    named_by,
)
from umbel.connect import DEFAULT_URL, BrokerDriver, Connections, Results
from umbel.connection import NAMES as HANDLES
from umbel.connection import Connection, Producer, check_handles, connection_of
from umbel.control import Control
from umbel.current import get_current_task, set_current, set_default
from umbel.dead import DeadLetters
from umbel.discovery import Discovery, Packages
from umbel.formats import CallReader, ResultFormat
from umbel.instants import time_zone
from umbel.keptresults import KeptResults
from umbel.naming import modern
from umbel.options import (
    NO_CALL,
    NOTHING,
    CallKeywords,
    Plan,
    TaskKeywords,
    TaskOptions,
    merge_call,
    merge_task,
)
from umbel.portable import reduced_app
from umbel.ports import ResultStore
from umbel.publish import ORIGIN, Batching, Publisher
from umbel.registry import (
    AnyTask,
    TaskRegistry,
    checked_base,
    task_of_class,
    task_of_function,
    warn_if_taken,
)
from umbel.request import executing
from umbel.result import AsyncResult, ResultSet
from umbel.retry import RetryPolicy
from umbel.revoking import revoke
from umbel.routing import DESTINATION, Address, Call, Router
from umbel.sending import asend_by_name, make_router, send_by_name
from umbel.serialization import JSON
from umbel.serializers import Serializer
from umbel.settings import Settings, from_environment
from umbel.shared import SHARED, Shared
from umbel.signals import Signal
from umbel.task import Task

if TYPE_CHECKING:
    from umbel.waiting import Waiters
    from umbel.why import Why

P = ParamSpec("P")
R = TypeVar("R")


@without("app", APP)
class Umbel:
    """An application: tasks, settings and a broker.

    ``Umbel("tasks", broker="sqlite:///tasks.db")``. `main` is the module name that tasks of a
    script get in place of ``__main__``. Nothing is opened before it is needed.

    A setting is the first that there is of:

    1. what was last assigned to `conf`, or given to ``conf.update``;
    2. the environment: ``UMBEL_BROKER_URL``, ``UMBEL_<SETTING>`` in general, and Celery's
       ``CELERY_BROKER_URL`` and ``CELERY_RESULT_BACKEND``, as they were when the app was made;
    3. the keywords here, and the dict `changes`;
    4. what `config_from_object` (or `config_source`) or `config_from_envvar` named last;
    5. `add_defaults`, the last first;
    6. Umbel's default.

    Without `config_from_object`, the module that the environment variable ``UMBEL_CONFIG_MODULE``,
    or ``CELERY_CONFIG_MODULE``, named when the app was made is read in its place.

    A class of apps derives from this, and may set `task_cls` and override `on_init`,
    `prepare_config`, `gen_task_name` and `create_task_cls`. `fixups` are functions, or their
    dotted names, that are called with the app once it is made.
    """

    task_cls: type[Task[..., Any]] | str = Task
    """The class of the app's tasks, or its dotted name."""
    builtin_fixups: ClassVar[frozenset[str]] = frozenset()
    default_settings: ClassVar[Mapping[str, object]] = {}
    """Defaults of this class of apps, where they aren't Umbel's."""
    default_broker: ClassVar[str] = DEFAULT_URL
    """The broker's URL where none is named."""

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        refuse_class(
            cls, REPLACED_CLASSES, "the parts of an app can't be replaced; app.<part> says more"
        )

    def __init__(
        self,
        main: str | None = None,
        *,
        broker: str | None = None,
        backend: str | None = None,
        include: Iterable[str] | None = None,
        set_as_current: bool = True,
        config_source: object = None,
        config_source_silent: bool = False,
        namespace: str | None = None,
        strict_typing: bool = True,
        task_cls: type[Task[..., Any]] | str | None = None,
        autofinalize: bool = True,
        changes: Mapping[str, object] | None = None,
        fixups: Iterable[Callable[[Umbel], object] | str] | None = None,
        clock: Clock = SYSTEM,
        **settings: Any,
    ) -> None:
        refuse_keywords(settings)
        for part in APP_KEYWORDS:
            settings.pop(part, None)
        self.main = main
        self.clock = clock
        self.namespace = namespace or ""
        self.strict_typing = strict_typing
        self._conf = Settings(self.default_settings)
        self._sources = Sources(self._conf, self.prepare_config)
        given = {"broker_url": broker, "result_backend": backend, "include": include}
        self._conf.update(
            {
                **modern({**(changes or {}), **settings}),
                **{name: value for name, value in given.items() if value is not None},
                **from_environment(os.environ),
            }
        )
        self.on_configure = Signal("on_configure")
        self.on_after_configure = Signal("on_after_configure", ("source",))
        self.on_after_finalize = Signal("on_after_finalize")
        self.on_after_fork = Signal("on_after_fork")
        """Sent in each child that is forked from a process with this app."""
        self.autofinalize = autofinalize
        if task_cls is not None:
            self.task_cls = task_cls
        self.set_as_current = set_as_current
        self.selected_queues: tuple[str, ...] | None = None
        """What `select_queues` named."""
        self.steps = no_steps()
        self.user_options = no_user_options()
        self.configured = False
        """Whether `on_configure` and `on_after_configure` were sent."""
        self.finalized = False
        self._registry = TaskRegistry()
        self._discoveries: list[Discovery] = []
        self._shared_seen = 0
        self.connections = Connections(
            self._conf,
            clock,
            lambda: Results(self.result_format, self.zone),
            self.default_broker,
            lambda: self.router,
        )
        self.serializers: dict[str, Serializer] = {}
        """Serializers of this app alone, by name: `setup_security` adds ``auth``."""
        self.publisher = Publisher(self.connections, self._conf, clock, self.serializers)
        self.dead = DeadLetters(self)
        self._router: tuple[int, Router] | None = None
        self._result_format: tuple[int, ResultFormat] | None = None
        self._kept_results: KeptResults | None = None
        if set_as_current:
            self.set_current()
        if config_source is None:
            config_source = module_in(os.environ)
        if config_source is not None:
            self.config_from_object(config_source, silent=config_source_silent)
        _apps.add(self)
        self.fixups = frozenset(self.builtin_fixups if fixups is None else fixups)
        for fixup in self.fixups:
            (find_object(fixup) if isinstance(fixup, str) else fixup)(self)
        self.on_init()

    def on_init(self) -> None:
        """Called once the app is made; for classes of apps."""

    def prepare_config(self, config: dict[str, Any]) -> Mapping[str, Any]:
        """The settings to take of those that a module, object or dict has; for classes of apps."""
        return config

    # Settings

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

    # Life

    def set_current(self) -> None:
        """Make this the current app of this thread; see `umbel.current`."""
        set_current(self)

    def set_default(self) -> None:
        """Make this the current app of every thread that has none of its own."""
        set_default(self)

    @property
    def current_task(self) -> Task[..., Any] | None:
        """The task that runs here; None outside tasks."""
        return get_current_task()

    @property
    def current_worker_task(self) -> Task[..., Any] | None:
        """The task that a worker executes here; None in tasks that are called like functions."""
        running = executing()
        return None if running is None else cast("Task[..., Any]", running.task)

    def configure(self) -> None:
        """Send `on_configure` and `on_after_configure`, once, before the first real use."""
        if not self.configured:
            self.configured = True
            self.on_configure.send(self)
            self.on_after_configure.send(self, source=self.conf)
            for task in self._registry.values():
                self._annotate(task)

    def finalize(self, auto: bool = False) -> None:
        """End the set-up: send `on_after_finalize`, once. The first look at `tasks` does it.

        `auto` is the look at `tasks`; it raises `RuntimeError` for an app that was made with
        ``autofinalize=False`` and isn't finalized.
        """
        if self.finalized:
            return
        if auto and not self.autofinalize:
            raise RuntimeError(
                f"{self!r} was made with autofinalize=False and isn't finalized; call "
                "app.finalize() before its tasks are used"
            )
        self.finalized = True
        self.configure()
        self.on_after_finalize.send(self)

    # Tasks

    @property
    def tasks(self) -> TaskRegistry:
        """The tasks by name, with those of `shared_task`."""
        if not self.finalized:
            self.finalize(auto=True)
        if self._shared_seen < len(SHARED):
            self._take_shared()
        return self._registry

    def register_task(self, task: AnyTask | type[AnyTask], **options: Any) -> AnyTask:
        """Make a task of a class of tasks, or of its object; it replaces one of the same name.

        Its name is the class's `name`, else ``<module>.<class>``. `options` go above those of
        the class. Returns the task. Raises `TypeError` for what isn't one, or has no `run`.
        """
        made = task_of_class(self, task, options)
        self._annotate(made)
        self._registry[made.name] = made
        return made

    @overload
    def task(self, fun: Callable[P, R], /) -> Task[P, R]: ...

    @overload
    def task(
        self, fun: None = None, /, *, bind: Literal[True], **options: Unpack[TaskKeywords]
    ) -> Callable[[Callable[Concatenate[Any, P], R]], Task[P, R]]: ...

    @overload
    def task(
        self, fun: None = None, /, *, bind: Literal[False] = False, **options: Unpack[TaskKeywords]
    ) -> Callable[[Callable[P, R]], Task[P, R]]: ...

    def task(
        self,
        fun: Callable[..., Any] | None = None,
        /,
        *,
        bind: bool = False,
        **options: Any,
    ) -> Any:
        """Make a function a task: ``@app.task``, or ``@app.task(bind=True, max_retries=5)``.

        With `bind` the function's first parameter is the task itself. The name is
        ``<module>.<function>`` unless given. Of two functions under one name the first stays,
        and the second is warned of (`DuplicateTaskNameWarning`).
        """
        if fun is not None:
            return self._register(fun, bind, options)
        return lambda function: self._register(function, bind, options)

    def gen_task_name(self, name: str, module: str) -> str:
        """The name of a task that is given none."""
        return f"{self.main or module if module == '__main__' else module}.{name}"

    def autodiscover_tasks(
        self,
        packages: Packages | None = None,
        related_name: str | None = "tasks",
        force: bool = False,
    ) -> None:
        """Import the module `related_name` of each package that has one, when a worker starts.

        `packages` may be a function that names them, called only then; `related_name` None
        imports the packages alone; `force` imports at once.
        """
        discovery = Discovery.of(packages, related_name)
        if force:
            discovery.load()
        else:
            self._discoveries.append(discovery)

    def load_modules(self) -> None:
        """Import what `imports`, `include` and `autodiscover_tasks` name: their tasks are known."""
        for name in (*self.conf.imports, *self.conf.include):
            importlib.import_module(name)
        for discovery in self._discoveries:
            discovery.load()

    def send_task(
        self,
        name: str,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        task_id: str | None = None,
        **options: Unpack[CallKeywords],
    ) -> AsyncResult[Any]:
        """Send a message for a task by its name, which needn't be known here."""
        return send_by_name(self, name, args, kwargs, task_id, options)

    async def asend_task(
        self,
        name: str,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        task_id: str | None = None,
        **options: Unpack[CallKeywords],
    ) -> AsyncResult[Any]:
        """`send_task` for coroutines; see `Task.adelay`."""
        return await asend_by_name(self, name, args, kwargs, task_id, options)

    def signature(
        self,
        varies: Signature | Mapping[str, Any] | Task[..., Any] | str,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> Signature:
        """A signature that this app sends; see `umbel.signature`."""
        return signature(varies, args, kwargs, options, app=self, **more)

    @property
    def annotations(self) -> tuple[Any, ...]:
        """What `task_annotations` has, as a tuple."""
        given = self.conf.task_annotations
        if given is None:
            return ()
        return tuple(given) if isinstance(given, (list, tuple)) else (given,)

    def annotate(self, task: Task[..., Any]) -> None:
        """Change a task by `task_annotations`; done for each as it is registered."""
        if self.conf.task_annotations is not None:
            annotate(task, self.conf.task_annotations)

    def batch(self) -> Batching:
        """Send all that is sent inside the ``with`` block in one step, at its end.

        In a coroutine ``async with`` lets the event loop go on at the end of the block.

        Of this app, by this thread or coroutine (and by those that it starts). Where the block
        raises, nothing is sent. A batch inside a batch goes out with the outer one.
        """
        return self.publisher.batch(self._publish_policy())

    # Results, revocations, dead letters

    def ResultSet(self, results: Iterable[AsyncResult[Any]] = ()) -> ResultSet[Any]:
        """Several results, to be waited for together."""
        return ResultSet(results, self)

    def AsyncResult(
        self,
        id: str,
        backend: ResultStore | None = None,
        task_name: str | None = None,
        parent: AsyncResult[Any] | None = None,
    ) -> AsyncResult[Any]:
        """The result of the message of this id."""
        return AsyncResult(id, backend, task_name, self, parent)

    @property
    def waiters(self) -> Waiters:
        """What waits for results for coroutines."""
        kept: Waiters | None = self.__dict__.get("_waiters")
        if kept is None:
            from umbel.waiting import Waiters  # loads asyncio, which others need not

            kept = self.__dict__.setdefault("_waiters", Waiters(self._needed_store))
        return kept

    @property
    def kept_results(self) -> KeptResults | None:
        """The final results that this process remembers (`result_cache_max`); None: it doesn't."""
        most, kept = self.conf.result_cache_max, self._kept_results
        if most < 0:
            return None
        if kept is None or kept.most != most:
            kept = self._kept_results = KeptResults(most)
        return kept

    def revoke(
        self, task_ids: Iterable[str], *, terminate: bool = False, signal: str | int | None = None
    ) -> None:
        """Ask that tasks aren't run; see `AsyncResult.revoke`."""
        revoke(self, task_ids, terminate, signal)

    @functools.cached_property
    def backend(self) -> Backend:
        """Stored results by task id, under the names of Celery's backends."""
        return Backend(self)

    @functools.cached_property
    def control(self) -> Control:
        """Revoking and purging, under Celery's names."""
        return Control(self)

    def why(self, task_id: str) -> Why:
        """Where a task is and why; ``str()`` of the answer is one plain sentence."""
        from umbel.why import why  # not needed to send tasks, so importing umbel leaves it out

        return why(
            self.broker,
            self.store,
            task_id,
            now=self.clock.wall(),
            zone=self.zone,
            results=self.result_format,
        )

    # Settings and connections

    @property
    def broker(self) -> BrokerDriver:
        """The opened broker."""
        self.configure()
        self.connections.refresh()
        return self.connections.broker

    @property
    def store(self) -> ResultStore | None:
        """The opened result store; None where results are disabled."""
        self.configure()
        self.connections.refresh()
        return self.connections.store

    def _needed_store(self) -> ResultStore:
        store = self.store
        if store is None:
            raise no_store()
        return store

    @property
    def zone(self) -> tzinfo:
        """The time zone of naive times."""
        return time_zone(self.conf)

    timezone = zone

    def now(self) -> datetime:
        """The time, aware, in `zone`."""
        return datetime.fromtimestamp(self.clock.wall(), self.zone)

    def uses_utc_timezone(self) -> bool:
        """Whether `zone` is UTC."""
        return self.zone is UTC or str(self.zone) == "UTC"

    def either(self, key: str, *values: Any) -> Any:
        """The first value that isn't None, else the setting `key`."""
        return next((each for each in values if each is not None), self.conf[key])

    @property
    def oid(self) -> str:
        """The id that this process puts into its messages, as `reply_to`."""
        return ORIGIN.reply_to

    @property
    def thread_oid(self) -> str:
        """As `oid`, for this thread."""
        return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{self.oid}\0{threading.get_ident()}"))

    # What stands for Kombu's objects

    def connection_for_read(self, url: str | None = None, **options: object) -> Connection:
        """The app's way to its broker; see `Connection.ensure_connection`."""
        return connection_of(self, url, options)

    def connection_for_write(self, url: str | None = None, **options: object) -> Connection:
        """As `connection_for_read`: an app has one broker."""
        return connection_of(self, url, options)

    def connection(self, hostname: str | None = None, **options: object) -> Connection:
        """As `connection_for_read`: an app has one broker."""
        return connection_of(self, hostname, options)

    broker_connection = connection

    def connection_or_acquire(
        self, connection: Connection | None = None, pool: bool = True, *_: object, **__: object
    ) -> Connection:
        """`connection`, or the app's."""
        return connection or Connection(self)

    default_connection = connection_or_acquire

    def producer_or_acquire(self, producer: Producer | None = None) -> Producer:
        """`producer`, or one to give to calls; sending needs none."""
        return producer or Producer(self)

    default_producer = producer_or_acquire

    # The command line

    def start(self, argv: Sequence[str] | None = None) -> int:
        """Run the command ``umbel`` with this app and the arguments `argv`; its exit code.

        Without `argv`, those of this program.
        """
        return command_line(self, sys.argv[1:] if argv is None else argv)

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
        return bugreport(self)

    def select_queues(self, queues: Iterable[str] | None = None) -> None:
        """Have workers of this process consume these queues only, unless ``-Q`` names others."""
        self.selected_queues = None if queues is None else tuple(queues)

    @property
    def router(self) -> Router:
        """Where messages go, by the settings as they are now."""
        conf, kept = self.conf, self._router
        if kept is None or kept[0] != conf.version:
            kept = self._router = conf.version, make_router(conf)
        return kept[1]

    def plan(
        self,
        name: str,
        call: Mapping[str, Any],
        task: Task[..., Any] | None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] = NOTHING,
    ) -> Plan:
        """How a call of the task of this name goes out; routing functions see its arguments."""
        if not HANDLES.isdisjoint(call):
            check_handles(self, call)
        self.configure()
        self.connections.refresh()
        router = self.router
        return merge_call(
            name,
            call,
            NOTHING if task is None else task.send_options,
            None if task is None else task.options,
            router,
            self.conf,
            self.zone,
            None if task is None or not task.options.typing else task.typed,
            Call(args, kwargs, task) if router.asks else NO_CALL,
        )

    def type_checker(
        self, fun: Callable[..., object], bound: bool = False
    ) -> Callable[..., object]:
        """A function with the parameters of `fun`, without the first where that is `bound`.

        It does nothing; calling it raises `TypeError` for arguments that don't fit.
        """
        return argument_check(functools.partial(fun, None) if bound else fun, fun.__name__)

    def address(self, name: str, call: Mapping[str, Any], told: Call) -> Address | None:
        """Where a call goes that says so; None for one that doesn't."""
        said = {key: call[key] for key in DESTINATION if call.get(key) is not None}
        return self.router.route(name, said, told).address if said else None

    def task_options(self, declared: Mapping[str, Any]) -> TaskOptions:
        """The execution options of a task that declares these."""
        typing = declared.get("typing")
        return merge_task(
            {**declared, "typing": self.strict_typing if typing is None else typing}, self.conf
        )

    # Serializers

    def call_reader(self) -> CallReader:
        """What reads the messages that this app accepts. Raises `ImproperlyConfigured`."""
        conf = self.conf
        return CallReader.accepting(
            conf.accept_content, self.serializers, conf.task_max_message_size
        )

    @property
    def result_format(self) -> ResultFormat:
        """How results are stored and read, by the settings as they are now."""
        conf, kept = self.conf, self._result_format
        if kept is None or kept[0] != conf.version:
            accept = conf.result_accept_content
            made = ResultFormat.find(
                conf.result_serializer,
                conf.result_compression,
                (*conf.accept_content, JSON.name) if accept is None else accept,
                self.serializers,
                conf.task_max_message_size,
            )
            kept = self._result_format = conf.version, made
        return kept[1]

    def setup_security(
        self,
        allowed_serializers: Iterable[str] | None = None,
        key: str | None = None,
        key_password: str | bytes | None = None,
        cert: str | None = None,
        store: str | None = None,
        digest: str | None = None,
        serializer: str = "json",
    ) -> None:
        """Sign what is sent, and run only what is signed: makes the serializer ``auth``.

        What isn't given here are the settings `security_key`, `security_key_password`,
        `security_certificate`, `security_cert_store` and `security_digest`. `serializer` encodes
        what is signed; what is signed may also be of the `allowed_serializers`. Raises
        `ImproperlyConfigured`, also where `task_serializer` isn't ``auth`` or `accept_content`
        takes anything else: unsigned messages would be sent, or run.
        """
        from umbel.security import NAME, auth_by_settings  # only who signs needs it

        self.serializers[NAME] = auth_by_settings(
            self.conf,
            key=key,
            key_password=key_password,
            cert=cert,
            store=store,
            digest=digest,
            serializer=serializer,
            allowed=allowed_serializers or (),
            now=self.clock.wall,
        )
        self._result_format = None

    def close(self) -> None:
        """Close the connections; a later use opens them anew.

        What coroutines send is published first. Whoever waits for results is told.
        """
        self.publisher.close()
        if "_waiters" in self.__dict__:
            self.waiters.close()
        self.connections.close()

    def __enter__(self) -> Umbel:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return reduced_app(self)

    def __repr__(self) -> str:
        return f"<Umbel {self.main or '__main__'}>"

    def _register(
        self, fun: Callable[..., Any], bind: bool, declared: dict[str, Any]
    ) -> Task[..., Any]:
        given = declared.pop("name", None)
        base = declared.pop("base", None) or self._task_cls()
        if not callable(fun) or isinstance(fun, Task):
            raise TypeError(f"@app.task got {fun!r:.80}; expected a function")
        name = given or self.gen_task_name(fun.__name__, fun.__module__)
        if not isinstance(name, str):
            raise TypeError(f"the name of a task is {name!r:.80}; expected a text")
        known = self._registry.get(name)
        if known is not None:
            warn_if_taken(known, fun)
            return known
        made = task_of_function(self, fun, name, base, bind, declared)
        self._annotate(made)
        if declared.get("shared") is True:
            SHARED.append(Shared(fun, bind, {**declared, "name": given, "base": base}))
        return self._registry.setdefault(name, made)

    def add_shared(self, fun: Callable[..., Any], bind: bool, declared: dict[str, Any]) -> None:
        """Make a task of a shared one, unless its name is taken: an app's own task wins."""
        declared.pop("shared", None)
        given = declared.get("name")
        name = given or self.gen_task_name(fun.__name__, fun.__module__)
        if name not in self._registry:
            self._register(fun, bind, declared)

    def _annotate(self, task: Task[..., Any]) -> None:
        if self.configured:
            self.annotate(task)

    def _task_cls(self) -> type[Task[..., Any]]:
        """The class that `task_cls` is or names."""
        given = self.task_cls
        return checked_base(find_object(given) if isinstance(given, str) else given)

    def _take_shared(self) -> None:
        shared = SHARED[self._shared_seen :]
        for each in shared:
            each.add_to(self)
        self._shared_seen += len(shared)

    def _publish_policy(self) -> RetryPolicy | None:
        conf = self.conf
        return RetryPolicy.of(conf.task_publish_retry_policy) if conf.task_publish_retry else None

    def subclass_with_self(
        self, cls: type[Any], name: str | None = None, attribute: str = "app", **attributes: object
    ) -> type[Any]:
        """A class derived from `cls` that has this app as its `attribute`."""
        attributes = {"__module__": cls.__module__, "__doc__": cls.__doc__, **attributes}
        return type(name or cls.__name__, (cls,), {attribute: self, **attributes})

    def create_task_cls(self) -> type[Any]:
        """What `Task` is; for classes of apps."""
        return self.subclass_with_self(self._task_cls(), "Task", __module__=__name__)

    # Last, since a class's own names hide the module's below them.
    @functools.cached_property
    def Task(self) -> type[Any]:
        """The class of this app's tasks, to derive classes from: `task_cls`, with this `app`."""
        return self.create_task_cls()


_apps: weakref.WeakSet[Umbel] = weakref.WeakSet()


def _forked() -> None:
    for app in list(_apps):
        app.on_after_fork.send(app)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
