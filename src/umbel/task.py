"""Tasks: functions that can be sent, and what a running one can ask for."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from types import MethodType
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    NoReturn,
    ParamSpec,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from umbel.absent import TASK, refuse_class
from umbel.arguments import (
    argument_check,
    checked_id,
    named_arguments,
    positional_arguments,
)
from umbel.calling import asend, asend_many, send, send_many
from umbel.canvas import Signature, check_links, chunks, xmap, xstarmap
from umbel.exceptions import NotProvided
from umbel.keywords import HANDLERS, SEND_NAMES, TASK_NAMES, CallKeywords, Handler
from umbel.options import (
    Plan,
    TaskOptions,
    check_call_names,
    check_task_names,
    declared_option,
)
from umbel.portable import reduced_task
from umbel.publish import new_id
from umbel.request import Context, enter, running
from umbel.result import AsyncResult
from umbel.retry import ExceptionTypes
from umbel.routes import NOTHING
from umbel.taskclass import class_options, wrap_options
from umbel.typed import Args, Typed, signature_of, typed_parameters
from umbel.whilerunning import WhileRunning

if TYPE_CHECKING:
    from umbel.app import Umbel
    from umbel.eagerresult import EagerResult

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")

_SAME_IN_TWO_WAYS: Final = {"attempts": "max_retries", "max_retries": "attempts"}
_OPTION_NAMES: Final = frozenset(TaskOptions.__struct_fields__)


def no_handler(*_: object, **__: object) -> None:
    """What a handler is until it is set."""


class Task(WhileRunning, Generic[P, R_co]):
    """A function with a name, which can be called here or sent to a worker.

    ``@app.task`` makes one; a class of tasks derives from this, has options and handlers as
    attributes and methods, and is the `base` of a function or has a method `run` itself and is
    given to `Umbel.register_task`. A class needs no ``__init__``; there is one object for each
    task in each process.

    Its options are attributes (``task.max_retries``), as they hold after the settings; assigning
    one changes it. The handlers are called by the worker, and can be assigned too::

        before_start(task_id, args, kwargs)
        on_success(retval, task_id, args, kwargs)
        on_retry(exc, task_id, args, kwargs, einfo)
        on_failure(exc, task_id, args, kwargs, einfo)
        after_return(status, retval, task_id, args, kwargs, einfo)

    A class may also override `shadow_name`, `on_bound` and `on_replace`.
    """

    if TYPE_CHECKING:  # what __getattr__ takes from `options`
        typing: bool
        max_retries: int | None
        attempts: int | None
        default_retry_delay: float
        ignore_result: bool
        trail: bool
        store_errors_even_if_ignored: bool
        store_eager_result: bool
        track_started: bool
        acks_late: bool
        acks_on_failure: bool
        acks_on_timeout: bool
        reject_on_worker_lost: bool
        retry_on_worker_lost: bool
        max_redeliveries: int
        dead_letters: bool
        throws: ExceptionTypes
        resultrepr_maxsize: int
        time_limit: float | None
        soft_time_limit: float | None
        serializer: str
        send_events: bool
        rate_limit: str | float | None

    __name__: str
    __wrapped__: Callable[..., R_co]
    app: Umbel
    name: str
    run: Callable[..., R_co]
    """The function, without `self` where it is bound; or the method of a class of tasks."""
    before_start: Handler = staticmethod(no_handler)
    on_success: Handler = staticmethod(no_handler)
    on_retry: Handler = staticmethod(no_handler)
    on_failure: Handler = staticmethod(no_handler)
    after_return: Handler = staticmethod(no_handler)

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        refuse_class(
            cls, ("Request", "Strategy"), f"nobody would see it. Task.Request {TASK['Request']}"
        )
        wrap_options(cls)

    def set_up(
        self,
        app: Umbel,
        fun: Callable[..., R_co],
        name: str,
        *,
        bind: bool = False,
        declared: Mapping[str, Any] = NOTHING,
    ) -> None:
        """Make this the task `name` of `app`, which runs `fun`.

        `declared` are its options, above those that its class has. Raises for wrong ones.
        """
        own = self.__dict__.get("_declared", NOTHING)
        declared = {**class_options(type(self)), **own, **declared}
        check_task_names(declared, f"task {name!r}")
        self.app = app
        self.name = name
        self.bound = bind
        original = fun
        if declared.get("pydantic"):
            from umbel.models import with_models  # only for those who have pydantic

            fun = with_models(fun, app, name, declared)
        self.run = MethodType(fun, self) if bind else fun
        plain = type(self).__call__ is Task.__call__
        self.entry: Callable[..., R_co] = self.run if plain else self.__call__
        """What a worker calls: `run`, unless the class has a ``__call__`` of its own."""
        self.is_async = inspect.iscoroutinefunction(fun)
        self._declared = dict(declared)
        self._options: tuple[int, TaskOptions] | None = None
        self._plan: tuple[int, Plan] | None = None
        self.check_call = argument_check(self.run, name)
        """Raises `TypeError` for arguments that don't fit; does nothing else."""
        of_class = getattr(original, "__self__", None) is self
        functools.update_wrapper(self, type(self) if of_class else original, updated=())
        self.__wrapped__ = original
        for handler in HANDLERS:
            if declared.get(handler) is not None:
                setattr(self, handler, declared[handler])
        self.has_shadow_name = type(self).shadow_name is not Task.shadow_name
        self.__bound__ = True
        self.on_bound(app)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Run the function here and now, as any function.

        Where a class has a ``__call__`` of its own and a worker executes the task, what that one
        calls is the execution itself: the function sees the worker's request.
        """
        if type(self).__call__ is not Task.__call__ and enter(self):
            return self.run(*args, **kwargs)
        request = Context()
        request.args, request.kwargs = args, kwargs
        with running(self, request):
            return self.run(*args, **kwargs)

    @overload
    def delay(
        self: Task[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs
    ) -> AsyncResult[T]: ...

    @overload
    def delay(self, *args: P.args, **kwargs: P.kwargs) -> AsyncResult[R_co]: ...

    def delay(self, *args: Any, **kwargs: Any) -> AsyncResult[Any]:
        """Send a message that lets a worker run the task with these arguments.

        When this returns, the broker has stored it. Raises `TypeError` where the arguments don't
        fit the function, `EncodeError` where they can't be sent, `Unroutable` where no queue
        takes the message, and `OperationalError` where the broker can't be reached.
        """
        return send(self, args, kwargs, new_id(), NOTHING)

    def shadow_name(
        self, args: Args, kwargs: Mapping[str, Any], options: Mapping[str, Any]
    ) -> str | None:
        """The name that a call is shown by, where it gives no `shadow`; for classes of tasks."""
        return None

    @classmethod
    def bind(cls, app: Umbel) -> Umbel:
        """Make `app` the app of this class of tasks; returns it."""
        if cls is Task:
            raise TypeError("umbel.Task is the base of all apps' tasks; bind a class of your own")
        cls.app = app
        return app

    @classmethod
    def on_bound(cls, app: Umbel) -> None:
        """Called when a task of this class is made for `app`; for classes of tasks."""

    def annotate(self) -> None:
        """Change the task by `task_annotations`; its app does so when it registers it."""
        self.app.annotate(self)

    @classmethod
    def add_around(cls, attr: str, around: Callable[[Any], Any]) -> None:
        """Have the method `attr` of this class be what `around` makes of it; again replaces."""
        original = getattr(cls, attr)
        original = getattr(original, "__wrapped__", original)
        made = around(original)
        made.__wrapped__ = original
        setattr(cls, attr, made)

    def apply_async(
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        task_id: str | None = None,
        **options: Unpack[CallKeywords],
    ) -> AsyncResult[Any]:
        """Send the task, with options of this call; see `CallKeywords`.

        An option that is None takes back what the task says; `eta` and `expires` that are naive
        datetimes are in the app's time zone.
        """
        check_call_names(options, f"apply_async of task {self.name!r}")
        return send(
            self,
            positional_arguments(args, self.name),
            named_arguments(kwargs, self.name),
            checked_id(task_id) if task_id is not None else new_id(),
            check_links(cast("Mapping[str, Any]", options)),
        )

    @overload
    async def adelay(
        self: Task[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs
    ) -> AsyncResult[T]: ...

    @overload
    async def adelay(self, *args: P.args, **kwargs: P.kwargs) -> AsyncResult[R_co]: ...

    async def adelay(self, *args: Any, **kwargs: Any) -> AsyncResult[Any]:
        """`delay` for coroutines: the event loop goes on until the broker has the message.

        What is sent meanwhile, on any loop of this process, is published in one step with it, and
        each caller hears of its own message only. A caller that is cancelled takes its message
        back, unless that is on its way: then it may be stored or not.
        """
        return await asend(self, args, kwargs, new_id(), NOTHING)

    async def aapply_async(
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        task_id: str | None = None,
        **options: Unpack[CallKeywords],
    ) -> AsyncResult[Any]:
        """`apply_async` for coroutines; see `adelay`."""
        check_call_names(options, f"aapply_async of task {self.name!r}")
        return await asend(
            self,
            positional_arguments(args, self.name),
            named_arguments(kwargs, self.name),
            checked_id(task_id) if task_id is not None else new_id(),
            check_links(cast("Mapping[str, Any]", options)),
        )

    def apply(
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        task_id: str | None = None,
        throw: bool | None = None,
        retries: int = 0,
        **options: Any,
    ) -> EagerResult:
        """Run the task here and now, with handlers, signals and retries as in a worker.

        Nothing is sent, a retry doesn't wait. With `throw`, or where it is None and
        `task_eager_propagates` is set, it raises what the task raised.
        """
        from umbel.eager import apply  # needs this module

        name = self.name
        check_call_names(
            {key: each for key, each in options.items() if key not in ("logfile", "loglevel")},
            f"apply of task {name!r}",
        )
        options = dict(check_links(options))
        return apply(
            self,
            positional_arguments(args, name),
            named_arguments(kwargs, name),
            checked_id(task_id) if task_id is not None else new_id(),
            {**options, "throw": throw, "retries": retries},
        )

    def delay_many(self, calls: Iterable[tuple[Any, ...] | list[Any]]) -> list[AsyncResult[Any]]:
        """Send one message for each tuple of positional arguments, all in one step.

        ``add.delay_many([(1, 2), (3, 4)])`` sends ``add(1, 2)`` and ``add(3, 4)``: all of them or,
        where it raises, none. For named arguments and options of calls, see `Umbel.batch`.
        """
        return send_many(self, calls)

    async def adelay_many(
        self, calls: Iterable[tuple[Any, ...] | list[Any]]
    ) -> list[AsyncResult[Any]]:
        """`delay_many` for coroutines; see `adelay`."""
        return await asend_many(self, calls)

    def s(self, *args: Any, **kwargs: Any) -> Signature:
        """A signature: a call with these arguments, after those that it gets when it is sent."""
        return Signature(self, args, kwargs)

    def si(self, *args: Any, **kwargs: Any) -> Signature:
        """An immutable signature: a call with these arguments and no others."""
        return Signature(self, args, kwargs, immutable=True)

    def signature(
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        *,
        immutable: bool = False,
        **more: Any,
    ) -> Signature:
        """A signature, with options for when it is sent."""
        return Signature(self, args, kwargs, options, immutable=immutable, **more)

    subtask = signature

    def chunks(self, it: Iterable[Any], n: int) -> NoReturn:
        """Many calls in few messages; it comes with the release 'Workflows'."""
        chunks()

    def map(self, it: Iterable[Any]) -> NoReturn:
        """Many calls in one message; it comes with the release 'Workflows'."""
        xmap()

    def starmap(self, it: Iterable[Any]) -> NoReturn:
        """As `map`, with several arguments; it comes with the release 'Workflows'."""
        xstarmap()

    def plan(
        self,
        call: Mapping[str, Any] = NOTHING,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] = NOTHING,
    ) -> Plan:
        """How a call with these options goes out; kept for calls without, unless functions in
        `task_routes` are asked about each."""
        version = self.app.conf.version
        kept = self._plan
        if kept is not None and kept[0] == version and not call:
            return kept[1]
        made = self.app.plan(self.name, call, self, args, kwargs)
        if not call and not self.app.router.asks:
            self._plan = version, made
        return made

    @functools.cached_property
    def typed(self) -> Typed | None:
        """The parameters whose arguments are sent as plain data and rebuilt, by annotation.

        Decided once, when the modules that the annotations name are there.
        """
        if self._declared.get("pydantic"):
            from umbel.models import lowered_only

            return lowered_only(typed_parameters(self.run))
        return typed_parameters(self.run)

    @property
    def options(self) -> TaskOptions:
        """The options that hold now: the task's own, the settings', the defaults."""
        version = self.app.conf.version
        kept = self._options
        if kept is None or kept[0] != version:
            kept = self._options = version, self.app.task_options(self._declared)
        return kept[1]

    @property
    def send_options(self) -> dict[str, Any]:
        """The task's own options that are defaults of its calls."""
        return {name: self._declared[name] for name in SEND_NAMES if name in self._declared}

    def __getattr__(self, name: str) -> Any:
        if name in _OPTION_NAMES and "app" in self.__dict__:
            return getattr(self.options, name)
        if name == "attempts" and "app" in self.__dict__:
            retries = self.max_retries
            return None if retries is None else retries + 1
        if name in TASK_NAMES and "_declared" in self.__dict__ and "app" in self.__dict__:
            return declared_option(name, self._declared, self.app.conf)
        # Asked of the object, since `inspect` takes what the class has for that of the class.
        if name == "__signature__" and self.__dict__.get("bound"):
            return signature_of(self.run)
        if name in TASK:
            raise NotProvided(f"task.{name} {TASK[name]}")
        raise AttributeError(f"task {self.__dict__.get('name')!r} has no attribute {name!r}")

    def __setattr__(self, name: str, value: object) -> None:
        if name not in TASK_NAMES or name in HANDLERS or name == "name":
            super().__setattr__(name, value)
            return
        if "_declared" not in self.__dict__:  # a class's own __init__, before it is registered
            super().__setattr__("_declared", {})
        check_task_names({name: value}, f"task {self.__dict__.get('name')!r}")
        self._declared.pop(_SAME_IN_TWO_WAYS.get(name, ""), None)
        self._declared[name] = value
        self._options = self._plan = None

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return reduced_task(self)

    def __repr__(self) -> str:
        return f"<@task: {self.name} of {self.app.main or 'umbel'}>"

    # Last, since a class's own names hide the module's below them.
    def AsyncResult(self, task_id: str) -> AsyncResult[Any]:
        """The result of the message of this id."""
        return AsyncResult(task_id, app=self.app, task_name=self.name)
