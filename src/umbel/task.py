"""Tasks: functions that can be sent, and what a running one can ask for."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
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
from umbel.canvas import Signature, check_links, chunks, xmap, xstarmap
from umbel.exceptions import NotProvided, Retry
from umbel.message import Posting, Result
from umbel.options import (
    HANDLERS,
    NOTHING,
    SEND_NAMES,
    TASK_NAMES,
    CallKeywords,
    ExceptionTypes,
    Handler,
    Plan,
    RetryKeywords,
    TaskOptions,
    check_call_names,
    check_task_names,
    declared_option,
)
from umbel.portable import reduced_task
from umbel.publish import Args, add_children, new_id
from umbel.replacing import replace, replaced_here, send_in_place, signature_from_request
from umbel.request import Child, Context, Requests, request_of, running
from umbel.result import AsyncResult
from umbel.retrying import make_retry, next_try
from umbel.sending import custom_result
from umbel.stored import encode_meta
from umbel.taskclass import class_options, wrap_options
from umbel.typed import Typed, typed_parameters

if TYPE_CHECKING:
    from umbel.app import Umbel
    from umbel.backend import Backend
    from umbel.eager import EagerResult

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")

_SAME_IN_TWO_WAYS: Final = {"attempts": "max_retries", "max_retries": "attempts"}
_OPTION_NAMES: Final = frozenset(TaskOptions.__struct_fields__)


def no_handler(*_: object, **__: object) -> None:
    """What a handler is until it is set."""


class Task(Generic[P, R_co]):
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
        self.run = functools.partial(fun, self) if bind else fun
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
        self._has_shadow_name = type(self).shadow_name is not Task.shadow_name
        self.__bound__ = True
        self.on_bound(app)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Run the function here and now, as any function."""
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
        return self._send(args, kwargs, new_id(), NOTHING)

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
        return self._send(
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
        return await self._asend(args, kwargs, new_id(), NOTHING)

    async def aapply_async(
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        task_id: str | None = None,
        **options: Unpack[CallKeywords],
    ) -> AsyncResult[Any]:
        """`apply_async` for coroutines; see `adelay`."""
        check_call_names(options, f"aapply_async of task {self.name!r}")
        return await self._asend(
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
        calls = self._checked_calls(calls)
        if self.app.conf.task_always_eager:
            return [self._send(each, {}, new_id(), NOTHING) for each in calls]
        plan = self.plan()
        asks = self.app.router.asks
        prepared = [
            self._prepare(self.plan(NOTHING, each) if asks else plan, each, {}, new_id())
            for each in calls
        ]
        results = [result for _, result in prepared]
        if prepared:
            self.app.publisher.send([posting for posting, _ in prepared], plan.policy)
            add_children(results)
        return results

    async def adelay_many(
        self, calls: Iterable[tuple[Any, ...] | list[Any]]
    ) -> list[AsyncResult[Any]]:
        """`delay_many` for coroutines; see `adelay`."""
        calls = self._checked_calls(calls)
        if self.app.conf.task_always_eager:
            return [await self._asend(each, {}, new_id(), NOTHING) for each in calls]
        plan = self.plan()
        results: list[AsyncResult[Any]] = []

        def make() -> list[Posting]:
            asks = self.app.router.asks
            prepared = [
                self._prepare(self.plan(NOTHING, each) if asks else plan, each, {}, new_id())
                for each in calls
            ]
            results.extend(result for _, result in prepared)
            return [posting for posting, _ in prepared]

        if calls:
            await self.app.publisher.asend(make, plan.policy)
            add_children(results)
        return results

    def _checked_calls(self, calls: Iterable[object]) -> list[tuple[Any, ...]]:
        checked: list[tuple[Any, ...]] = []
        for number, args in enumerate(calls):
            if not isinstance(args, (tuple, list)):
                raise TypeError(
                    f"delay_many of task {self.name!r} got {args!r:.80} as call {number}; expected "
                    "a tuple of positional arguments, such as (1, 2) or (name,)"
                )
            checked.append(tuple(args))
        return checked

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

    def signature_from_request(
        self,
        request: Context | None = None,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        queue: str | None = None,
        **options: Any,
    ) -> Signature:
        """A call as the one that runs here: its id, arguments, links and options.

        Of another `request`, with other arguments or options, where they are given.
        """
        return signature_from_request(self, request, args, kwargs, queue, options)

    subtask_from_request = signature_from_request

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

    @property
    def request(self) -> Context:
        """The request that the task runs for here; an empty one where it doesn't run."""
        return request_of(self) or Context()

    @property
    def request_stack(self) -> Requests:
        """The requests that the task runs for here, the innermost on top."""
        return Requests(self)

    def push_request(self, *args: Any, **attributes: Any) -> None:
        """Have the task run for a request with these attributes, until `pop_request`."""
        self.request_stack.push(Context(*args, **attributes))

    def pop_request(self) -> Context | None:
        """End what `push_request` began; its request."""
        return self.request_stack.pop()

    @property
    def backend(self) -> Backend:
        """That of the app."""
        return self.app.backend

    def retry(
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        exc: BaseException | None = None,
        throw: bool = True,
        eta: datetime | date | str | None = None,
        countdown: float | timedelta | None = None,
        max_retries: int | None = None,
        **options: Unpack[RetryKeywords],
    ) -> Retry:
        """End this execution and have the task run again, under the same id.

        Due after `countdown`, at `eta`, by the policy that the task has for `exc`, or after its
        `default_retry_delay`. The worker sends the message in one step with the end of this
        execution. Raises the `Retry` unless `throw` is false, and where no retry is left, `exc`
        or `MaxRetriesExceededError`.
        Outside a worker: raises `exc`, else the exception that is being handled, else `Retry`.
        """
        return make_retry(
            self,
            args,
            kwargs,
            exc,
            throw,
            max_retries,
            {**options, "countdown": countdown, "eta": eta},
        )

    def replace(self, sig: Signature | Mapping[str, Any]) -> Any:
        """End this execution, and have `sig` take its place: ``return self.replace(other.s(1))``.

        Its result is that of this task's id, and what follows from this task follows from it: its
        callbacks and errbacks, the rest of its chain. It is sent in one step with the end of this
        execution. Never returns in a worker; in a task that runs in its caller, `sig` is run there
        and its value returned. Raises `ImproperlyConfigured` for an empty chain.
        """
        return replace(self, sig)

    def on_replace(self, sig: Signature) -> Any:
        """What `replace` does at last with the signature that it has made."""
        if self.request.called_directly or self.request.is_eager:
            return replaced_here(self, sig)
        return send_in_place(self, sig)

    def add_trail(self, result: Child) -> Child:
        """Note a result as a child of this execution, unless `trail` is off; returns it."""
        if self.trail:
            self.request.children.append(result)
        return result

    def update_state(
        self,
        task_id: str | None = None,
        state: str | None = None,
        meta: object = None,
        **_: object,
    ) -> None:
        """Store a state of the task's own while it runs, with `meta` as `AsyncResult.info`.

        Of the message `task_id`, the running one unless given; without a `state` it stays as it
        is. A SUCCESS that is stored stays. A task that runs in the caller stores only with
        `store_eager_result`. Raises `EncodeError` for a `meta` that can't be stored.
        """
        request, app = self.request, self.app
        task_id = request.id if task_id is None else checked_id(task_id)
        if task_id is None:
            raise ValueError(
                f"update_state of task {self.name!r} outside a running task; name a task_id"
            )
        store = app.store
        if store is None or (request.is_eager and not self.options.store_eager_result):
            return
        state = app.AsyncResult(task_id).state if state is None else state
        data = encode_meta(task_id, state, meta, form=app.result_format)
        expires = app.conf.result_expires
        store.put([Result(task_id, state, data, app.clock.wall() + expires if expires else None)])

    def next_try(self, exc: BaseException) -> Retry | None:
        """The retry that `autoretry_for` asks for after `exc`, as `retry` makes it; or None.

        The one place where a task is retried without asking; the executor calls it, within
        `running`, with what the function raised. Raises what `retry` raises for a bad message.
        """
        return next_try(self, exc)

    def __getattr__(self, name: str) -> Any:
        if name in _OPTION_NAMES and "app" in self.__dict__:
            return getattr(self.options, name)
        if name == "attempts" and "app" in self.__dict__:
            retries = self.max_retries
            return None if retries is None else retries + 1
        if name in TASK_NAMES and "_declared" in self.__dict__ and "app" in self.__dict__:
            return declared_option(name, self._declared, self.app.conf)
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

    def _send(
        self,
        args: Args,
        kwargs: Mapping[str, Any],
        task_id: str,
        call: Mapping[str, Any],
    ) -> AsyncResult[Any]:
        if self._has_shadow_name and "shadow" not in call:
            call = {**call, "shadow": self.shadow_name(args, kwargs, call)}
        plan = self.plan(call, args, kwargs)
        if self.app.conf.task_always_eager:
            return self._eager(plan, args, kwargs, task_id, call)
        posting, result = self._prepare(plan, args, kwargs, task_id)
        self.app.publisher.send((posting,), plan.policy)
        if call.get("add_to_parent", True):
            add_children((result,))
        return result

    async def _asend(
        self,
        args: Args,
        kwargs: Mapping[str, Any],
        task_id: str,
        call: Mapping[str, Any],
    ) -> AsyncResult[Any]:
        if self._has_shadow_name and "shadow" not in call:
            call = {**call, "shadow": self.shadow_name(args, kwargs, call)}
        plan = self.plan(call, args, kwargs)
        if self.app.conf.task_always_eager:
            return await self._aeager(plan, args, kwargs, task_id, call)
        results: list[AsyncResult[Any]] = []

        def make() -> tuple[Posting]:
            posting, result = self._prepare(plan, args, kwargs, task_id)
            results.append(result)
            return (posting,)

        await self.app.publisher.asend(make, plan.policy)
        if call.get("add_to_parent", True):
            add_children(results)
        return results[0]

    async def _aeager(
        self,
        plan: Plan,
        args: Args,
        kwargs: Mapping[str, Any],
        task_id: str,
        call: Mapping[str, Any],
    ) -> EagerResult:
        """`_eager`, on the caller's loop."""
        from umbel.eager import aapply, as_sent  # needs this module

        if plan.typing:
            self.check_call(*args, **kwargs)
        args, kwargs = as_sent(self.app, plan, args, kwargs)
        return await aapply(self, args, kwargs, task_id, call, sent=True)

    def _eager(
        self,
        plan: Plan,
        args: Args,
        kwargs: Mapping[str, Any],
        task_id: str,
        call: Mapping[str, Any],
    ) -> EagerResult:
        """Run it instead of sending it, with what a worker would have got."""
        from umbel.eager import apply, as_sent  # needs this module

        if plan.typing:
            self.check_call(*args, **kwargs)
        args, kwargs = as_sent(self.app, plan, args, kwargs)
        return apply(self, args, kwargs, task_id, call, sent=True)

    def _prepare(
        self,
        plan: Plan,
        args: Args,
        kwargs: Mapping[str, Any],
        task_id: str,
    ) -> tuple[Posting, AsyncResult[Any]]:
        if plan.typing:
            self.check_call(*args, **kwargs)
        posting = self.app.publisher.build(plan, args, kwargs, task_id)
        ignored = plan.ignore_result is True
        if "result_cls" in plan.options:
            return posting, custom_result(self.app, plan, task_id)
        return posting, AsyncResult(task_id, app=self.app, task_name=self.name, ignored=ignored)

    # Last, since a class's own names hide the module's below them.
    def AsyncResult(self, task_id: str) -> AsyncResult[Any]:
        """The result of the message of this id."""
        return AsyncResult(task_id, app=self.app, task_name=self.name)
