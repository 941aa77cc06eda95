"""The application: its settings, its tasks, and its way to the broker."""

from __future__ import annotations

import functools
import importlib
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, tzinfo
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Literal,
    ParamSpec,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from umbel.annotations import annotate
from umbel.arguments import checked_id, named_arguments, positional_arguments
from umbel.canvas import Signature, check_links, signature
from umbel.clock import SYSTEM, Clock
from umbel.configure import Defaults, Source, evaluated, named_by
from umbel.connect import BrokerDriver, Connections, Results
from umbel.current import get_current_task, set_current, set_default
from umbel.dead import DeadLetters
from umbel.discovery import Discovery, Packages
from umbel.exceptions import (
    AlwaysEagerIgnored,
    DuplicateTaskNameWarning,
    ImproperlyConfigured,
    NotRegistered,
    TaskRevokedError,
)
from umbel.formats import CallReader, ResultFormat
from umbel.message import Result
from umbel.naming import modern
from umbel.options import (
    NOTHING,
    CallKeywords,
    Plan,
    TaskKeywords,
    TaskOptions,
    check_call_names,
    merge_call,
    merge_task,
)
from umbel.ports import ResultStore, Revocation
from umbel.publish import Publisher, add_children, new_id, time_zone
from umbel.result import AsyncResult, revocation_payload, signal_name
from umbel.retry import RetryPolicy
from umbel.routing import DESTINATION, Address, Router
from umbel.serialization import JSON
from umbel.serializers import Serializer
from umbel.settings import FROM_DEFAULTS, FROM_OBJECT, Settings, from_environment
from umbel.shared import SHARED, Shared
from umbel.signals import Signal
from umbel.states import READY_STATES, REVOKED
from umbel.stored import encode_meta
from umbel.task import Task
from umbel.taskclass import class_name

if TYPE_CHECKING:
    from umbel.why import Why

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")

AnyTask = TypeVar("AnyTask", bound=Task[..., Any])

CONTROL_CHANNEL = "control"


class TaskRegistry(dict[str, Task[..., Any]]):
    """The tasks of an app by name."""

    def __missing__(self, name: str) -> Task[..., Any]:
        from difflib import get_close_matches  # only a mistake pays for its import

        near = get_close_matches(str(name), self, n=3)
        question = (
            f"did you mean {' or '.join(map(repr, near))}?"
            if near
            else "import the module that defines it, or name it in include="
        )
        raise NotRegistered(f"task {name!r} isn't known here; {question}")


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
    """

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
        task_cls: type[Task[..., Any]] = Task,
        autofinalize: bool = True,
        changes: Mapping[str, object] | None = None,
        clock: Clock = SYSTEM,
        **settings: object,
    ) -> None:
        self.main = main
        self.clock = clock
        self.namespace = namespace or ""
        self.strict_typing = strict_typing
        self._conf = Settings()
        self._sources: list[tuple[int, Source | Defaults]] = []
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
        self.autofinalize = autofinalize
        self.task_cls = task_cls
        self.configured = False
        """Whether `on_configure` and `on_after_configure` were sent."""
        self.finalized = False
        self._registry = TaskRegistry()
        self._discoveries: list[Discovery] = []
        self._shared_seen = 0
        self.connections = Connections(
            self._conf, clock, lambda: Results(self.result_format, self.zone)
        )
        self.serializers: dict[str, Serializer] = {}
        """Serializers of this app alone, by name: `setup_security` adds ``auth``."""
        self.publisher = Publisher(self.connections, self._conf, clock, self.serializers)
        self.dead = DeadLetters(self)
        self._router: tuple[int, Router] | None = None
        self._result_format: tuple[int, ResultFormat] | None = None
        if set_as_current:
            self.set_current()
        if config_source is not None:
            self.config_from_object(config_source, silent=config_source_silent)

    # Settings

    @functools.cached_property
    def conf(self) -> Settings:
        """The settings; the first look reads what `config_from_object` named."""
        self._read_sources()
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
        self._sources = [each for each in self._sources if each[0] != FROM_OBJECT]
        self._add_source(FROM_OBJECT, source)
        if force or self.configured:
            self._read_sources()

    def config_from_envvar(
        self, variable_name: str, silent: bool = False, force: bool = False
    ) -> None:
        """`config_from_object` with the module that the environment variable names.

        Raises `ImproperlyConfigured` where it isn't set, unless `silent`.
        """
        name = named_by(variable_name, silent)
        if name is not None:
            self.config_from_object(name, silent=silent, force=force)

    def add_defaults(self, defaults: Defaults) -> None:
        """Put these settings, or what the function gives, below all others."""
        self._add_source(FROM_DEFAULTS, defaults)

    def _add_source(self, layer: int, source: Source | Defaults) -> None:
        self._sources.append((layer, source))
        self.__dict__.pop("conf", None)  # the next look at it reads them

    def _read_sources(self) -> None:
        # Taken first: what is imported here may look at the settings itself.
        sources, self._sources = self._sources, []
        try:
            for layer, source in sources:
                if isinstance(source, Source):
                    self._conf.lay(layer, source.read())
                else:
                    self._conf.lay(layer, modern(evaluated(source)), anew=False)
        except BaseException:
            self._sources = sources  # so that the next look says the same
            self.__dict__.pop("conf", None)
            raise

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
        made = task() if isinstance(task, type) else task
        cls = type(made)
        if not isinstance(made, Task) or not callable(getattr(made, "run", None)):
            raise TypeError(
                f"register_task got {task!r:.80}; expected a subclass of umbel.Task with a method "
                "run, or an object of one"
            )
        if made.__dict__.get("app", self) is not self:
            raise TypeError(f"{made!r} is a task of another app; register its class: {cls!r}")
        name = options.pop("name", None) or class_name(cls)
        name = name or self.gen_task_name(cls.__name__, cls.__module__)
        made.set_up(self, made.run, name, declared=options)
        self._annotate(made)
        self._registry[name] = made
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
        check_call_names(options, f"send_task of {name!r}")
        if self.conf.task_always_eager:
            warnings.warn(
                f"send_task({name!r}) sends a message although task_always_eager is set, since it "
                "takes names, not tasks; tests may want app.tasks[name].apply_async()",
                AlwaysEagerIgnored,
                stacklevel=2,
            )
        if not isinstance(name, str) or not name:
            raise TypeError(f"the name of a task is {name!r:.80}; expected a text")
        task = self.tasks.get(name)
        call = check_links(cast("Mapping[str, Any]", options))
        plan = self.plan(name, call, task)
        task_id = new_id() if task_id is None else checked_id(task_id)
        posting = self.publisher.build(
            plan, positional_arguments(args, name), named_arguments(kwargs, name), task_id
        )
        self.publisher.send((posting,), plan.policy)
        result: AsyncResult[Any] = AsyncResult(
            task_id, self, task_name=name, ignored=plan.ignore_result is True
        )
        if options.get("add_to_parent", True):
            add_children((result,))
        return result

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

    def batch(self) -> AbstractContextManager[None]:
        """Send all that is sent inside the ``with`` block in one step, at its end.

        Of this app, by this thread or coroutine (and by those that it starts). Where the block
        raises, nothing is sent. A batch inside a batch goes out with the outer one.
        """
        return self.publisher.batch(self._publish_policy())

    # Results, revocations, dead letters

    def AsyncResult(self, id: str) -> AsyncResult[Any]:
        """The result of the message of this id."""
        return AsyncResult(id, self)

    def revoke(
        self, task_ids: Iterable[str], *, terminate: bool = False, signal: str | None = None
    ) -> None:
        """Ask that tasks aren't run; see `AsyncResult.revoke`."""
        name = signal_name(signal)
        if isinstance(task_ids, str):
            raise TypeError(f"revoke got the text {task_ids!r:.80}; expected a list of task ids")
        revocations = [Revocation(checked_id(task_id), terminate, name) for task_id in task_ids]
        broker = self.broker
        self._store_revoked(broker.revoke(revocations))
        if terminate:
            for revocation in revocations:
                broker.broadcast(CONTROL_CHANNEL, revocation_payload(revocation))

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

    @property
    def zone(self) -> tzinfo:
        """The time zone of naive times."""
        return time_zone(self.conf)

    @property
    def router(self) -> Router:
        """Where messages go, by the settings as they are now."""
        conf, kept = self.conf, self._router
        if kept is None or kept[0] != conf.version:
            router = Router(
                conf.task_routes,
                conf.task_queues,
                default_queue=conf.task_default_queue,
                default_exchange=conf.task_default_exchange,
                default_routing_key=conf.task_default_routing_key,
                create_missing=conf.task_create_missing_queues,
            )
            kept = self._router = conf.version, router
        return kept[1]

    def plan(self, name: str, call: Mapping[str, Any], task: Task[..., Any] | None) -> Plan:
        """How a call of the task of this name goes out."""
        self.configure()
        self.connections.refresh()
        return merge_call(
            name,
            call,
            NOTHING if task is None else task.send_options,
            None if task is None else task.options,
            self.router,
            self.conf,
            self.zone,
            None if task is None or not task.options.typing else task.typed,
        )

    def address(self, name: str, call: Mapping[str, Any]) -> Address | None:
        """Where a call goes that says so; None for one that doesn't."""
        said = {key: call[key] for key in DESTINATION if call.get(key) is not None}
        return self.router.route(name, said).address if said else None

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
        from umbel.security import NAME, make_auth  # only who signs needs it

        conf = self.conf
        if conf.task_serializer != NAME or tuple(conf.accept_content) != (NAME,):
            raise ImproperlyConfigured(
                f"task_serializer is {conf.task_serializer!r} and accept_content is "
                f"{list(conf.accept_content)}; before setup_security() set task_serializer='auth' "
                "and accept_content=['auth'], so that nothing unsigned is sent or run"
            )
        files = {
            "security_key": key or conf.security_key,
            "security_certificate": cert or conf.security_certificate,
            "security_cert_store": store or conf.security_cert_store,
        }
        missing = [name for name, value in files.items() if not value]
        if missing:
            raise ImproperlyConfigured(
                f"signing needs {', '.join(missing)}; set it, or give it to setup_security()"
            )
        self.serializers[NAME] = make_auth(
            key=files["security_key"] or "",
            key_password=key_password or conf.security_key_password,
            certificate=files["security_certificate"] or "",
            store=files["security_cert_store"] or "",
            digest=digest or conf.security_digest,
            serializer=serializer,
            allowed=allowed_serializers or (),
            now=self.clock.wall,
        )
        self._result_format = None

    def close(self) -> None:
        """Close the connections; a later use opens them anew."""
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

    def __repr__(self) -> str:
        return f"<Umbel {self.main or '__main__'}>"

    def _register(
        self, fun: Callable[..., Any], bind: bool, declared: dict[str, Any]
    ) -> Task[..., Any]:
        given = declared.pop("name", None)
        base = declared.pop("base", None) or self.task_cls
        if not callable(fun) or isinstance(fun, Task):
            raise TypeError(f"@app.task got {fun!r:.80}; expected a function")
        name = given or self.gen_task_name(fun.__name__, fun.__module__)
        if not isinstance(name, str):
            raise TypeError(f"the name of a task is {name!r:.80}; expected a text")
        known = self._registry.get(name)
        if known is None:
            made = _task_class(base)()
            made.set_up(self, fun, name, bind=bind, declared=declared)
            self._annotate(made)
            if declared.get("shared") is True:
                SHARED.append(Shared(fun, bind, {**declared, "name": given, "base": base}))
            return self._registry.setdefault(name, made)
        if not _same_function(known.__wrapped__, fun):
            warnings.warn(
                f"task name {name!r} is taken by {known.__wrapped__!r}, which stays; {fun!r} is "
                "not registered. Give it a name of its own: @app.task(name=...)",
                DuplicateTaskNameWarning,
                stacklevel=3,
            )
        return known

    def add_shared(self, fun: Callable[..., Any], bind: bool, declared: dict[str, Any]) -> None:
        """Make a task of a shared one, unless its name is taken: an app's own task wins."""
        declared.pop("shared", None)
        given = declared.get("name")
        name = given or self.gen_task_name(fun.__name__, fun.__module__)
        if name not in self._registry:
            self._register(fun, bind, declared)

    def _annotate(self, task: Task[..., Any]) -> None:
        if self.configured and self.conf.task_annotations is not None:
            annotate(task, self.conf.task_annotations)

    def _take_shared(self) -> None:
        shared = SHARED[self._shared_seen :]
        for each in shared:
            each.add_to(self)
        self._shared_seen += len(shared)

    def _publish_policy(self) -> RetryPolicy | None:
        conf = self.conf
        return RetryPolicy.of(conf.task_publish_retry_policy) if conf.task_publish_retry else None

    def _store_revoked(self, task_ids: Iterable[str]) -> None:
        """Store REVOKED for what was found waiting, unless a final state is stored already."""
        ids = sorted(task_ids)
        store = self.store
        if store is None or not ids:
            return
        final = {
            record.task_id
            for record in store.get(ids)
            if record is not None and record.state in READY_STATES
        }
        done = datetime.fromtimestamp(self.clock.wall(), self.zone).isoformat()
        expires = self.conf.result_expires
        results = [
            Result(
                task_id=task_id,
                state=REVOKED,
                meta=encode_meta(
                    task_id,
                    REVOKED,
                    TaskRevokedError("revoked"),
                    date_done=done,
                    form=self.result_format,
                ),
                expires_at=self.clock.wall() + expires if expires else None,
            )
            for task_id in ids
            if task_id not in final
        ]
        if results:
            store.put(results)

    # Last, since a class's own names hide the module's below them.
    @functools.cached_property
    def Task(self) -> type[Any]:
        """The class of this app's tasks, to derive classes from: `task_cls`, with this `app`."""
        return type("Task", (self.task_cls,), {"__module__": __name__, "app": self})


def _task_class(base: object) -> type[Task[..., Any]]:
    if isinstance(base, type) and issubclass(base, Task):
        return base
    raise TypeError(f"base is {base!r:.80}; expected umbel.Task or a class derived from it")


def _same_function(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """The same, or the same lines of the same file, imported once more."""
    if one is other:
        return True
    places = [
        (code.co_filename, code.co_firstlineno)
        for code in (getattr(each, "__code__", None) for each in (one, other))
        if code is not None
    ]
    return len(places) == 2 and places[0] == places[1]
