"""The application: its settings, its tasks, and its way to the broker."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    ParamSpec,
    Self,
    TypeVar,
    Unpack,
)

from umbel.absent import (
    APP_KEYWORDS,
    no_steps,
    no_user_options,
    refuse_keywords,
)
from umbel.batches import Batching
from umbel.canvas import Signature, signature
from umbel.celerynames import CeleryNames
from umbel.clock import SYSTEM, Clock
from umbel.configure import (
    find_object,
    source_in,
)
from umbel.connections import Connections
from umbel.dead import DeadLetters
from umbel.drivers import BrokerDriver, Results
from umbel.formats import CallReader, ResultFormat
from umbel.handles import check_handles
from umbel.keptresults import KeptResults
from umbel.keywords import CallKeywords
from umbel.naming import modern
from umbel.options import Plan, TaskOptions, merge_call, merge_task
from umbel.portable import reduced_app
from umbel.ports import ResultStore
from umbel.publish import Publisher
from umbel.result import AsyncResult, ResultSet
from umbel.resultstate import store_of
from umbel.retry import RetryPolicy
from umbel.revoking import revoke
from umbel.routes import NO_CALL, NOTHING
from umbel.routing import DESTINATION, Address, Call, Router
from umbel.sending import asend_by_name, send_by_name
from umbel.serialization import JSON
from umbel.serializers import Serializer
from umbel.signals import Signal
from umbel.task import Task
from umbel.urls import DEFAULT_URL
from umbel.waiting import Waiters

if TYPE_CHECKING:
    from umbel.why import Why

P = ParamSpec("P")
R = TypeVar("R")


class Umbel(CeleryNames):
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

    builtin_fixups: ClassVar[frozenset[str]] = frozenset()
    default_broker: ClassVar[str] = DEFAULT_URL
    """The broker's URL where none is named."""

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
        named = {"broker_url": broker, "result_backend": backend, "include": include}
        given = {
            **modern({**(changes or {}), **settings}),
            **{name: value for name, value in named.items() if value is not None},
        }
        super().__init__(main, task_cls, autofinalize, namespace or "", clock, given)
        self.strict_typing = strict_typing
        self.on_after_fork = Signal("on_after_fork")
        """Sent in each child that is forked from a process with this app."""
        self.set_as_current = set_as_current
        self.steps = no_steps()
        self.user_options = no_user_options()
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
        self.waiters = Waiters(partial(store_of, self))
        """What waits for results for coroutines."""
        self._router: tuple[int, Router] | None = None
        self._result_format: tuple[int, ResultFormat] | None = None
        self._kept_results: KeptResults | None = None
        if set_as_current:
            self.set_current()
        if config_source is not None:
            self.config_from_object(config_source, silent=config_source_silent)
        elif (source := source_in(os.environ)) is not None:
            self._sources.take(source)
        _apps.add(self)
        self.fixups = frozenset(self.builtin_fixups if fixups is None else fixups)
        for fixup in self.fixups:
            (find_object(fixup) if isinstance(fixup, str) else fixup)(self)
        self.on_init()

    def on_init(self) -> None:
        """Called once the app is made; for classes of apps."""

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
    def router(self) -> Router:
        """Where messages go, by the settings as they are now."""
        conf, kept = self.conf, self._router
        if kept is None or kept[0] != conf.version:
            kept = self._router = conf.version, Router.of(conf)
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
            self.call_zone,
            None if task is None or not task.options.typing else task.typed,
            Call(args, kwargs, task) if router.asks else NO_CALL,
        )

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
        self.waiters.close()
        self.connections.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __deepcopy__(self, memo: object) -> Umbel:
        return self  # so that a copy of a signature or a result is of the same app

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return reduced_app(self)

    def __repr__(self) -> str:
        return f"<Umbel {self.main or '__main__'}>"

    def _publish_policy(self) -> RetryPolicy | None:
        conf = self.conf
        return RetryPolicy.of(conf.task_publish_retry_policy) if conf.task_publish_retry else None


_apps: weakref.WeakSet[Umbel] = weakref.WeakSet()


def _forked() -> None:
    for app in list(_apps):
        app.on_after_fork.send(app)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
