"""Tasks: functions that can be sent, and what a running one can ask for."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime
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

from umbel.canvas import Signature, check_links
from umbel.exceptions import MaxRetriesExceededError, Retry
from umbel.message import Posting, Result
from umbel.nexttry import next_posting
from umbel.options import (
    HANDLERS,
    NOTHING,
    RETRY_NAMES,
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
)
from umbel.protocol import first_run_at
from umbel.publish import Args, add_children, due, new_id
from umbel.request import Context, request_of, running
from umbel.result import AsyncResult
from umbel.retry import Backoff, retries_left
from umbel.saferepr import safe_repr
from umbel.serialization import JSON
from umbel.stored import encode_meta
from umbel.taskclass import class_options, wrap_options
from umbel.typed import Typed, signature_of, typed_parameters

if TYPE_CHECKING:
    from umbel.app import Umbel
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
        self._check = _argument_check(self.run, name)
        of_class = getattr(original, "__self__", None) is self
        functools.update_wrapper(self, type(self) if of_class else original, updated=())
        self.__wrapped__ = original
        for handler in HANDLERS:
            if declared.get(handler) is not None:
                setattr(self, handler, declared[handler])

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
        plan = self.plan()
        postings: list[Posting] = []
        results: list[AsyncResult[Any]] = []
        calls = list(calls)
        for number, args in enumerate(calls):
            if not isinstance(args, (tuple, list)):
                raise TypeError(
                    f"delay_many of task {self.name!r} got {args!r:.80} as call {number}; expected "
                    "a tuple of positional arguments, such as (1, 2) or (name,)"
                )
            posting, result = self._prepare(plan, tuple(args), {}, new_id())
            postings.append(posting)
            results.append(result)
        if self.app.conf.task_always_eager:
            return [self._send(tuple(each), {}, new_id(), NOTHING) for each in calls]
        if postings:
            self.app.publisher.send(postings, plan.policy)
            add_children(results)
        return results

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

    def plan(self, call: Mapping[str, Any] = NOTHING) -> Plan:
        """How a call with these options goes out; kept for calls without."""
        version = self.app.conf.version
        kept = self._plan
        if kept is not None and kept[0] == version and not call:
            return kept[1]
        made = self.app.plan(self.name, call, self)
        if not call:
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

    def retry(
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        exc: BaseException | None = None,
        throw: bool = True,
        eta: datetime | str | None = None,
        countdown: float | None = None,
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
        request = self.request
        current = sys.exc_info()[1]
        if request.called_directly:
            _raise(
                exc or current or Retry("The task was called directly, not by a worker"), current
            )
        check_call_names(options, f"retry of task {self.name!r}", RETRY_NAMES)
        call = {**options, "countdown": countdown, "eta": eta}
        cause = exc or current or Retry()
        backoff = None
        if countdown is None and eta is None:
            backoff = self.options.auto.named_backoff(cause)
        allowed = self.max_retries if max_retries is None else max_retries
        timed = self._timed(request, cause, call, allowed, backoff)
        if timed is None:
            final = self.options.auto.is_final(cause)
            _raise(exc or (cause if final else self._exhausted(request, allowed)), current)
        countdown = timed["countdown"]
        retry = Retry(exc=exc, when=countdown if countdown is not None else _instant_of(eta))
        if request.is_eager:
            retry.is_eager = True
            if args is not None or kwargs is not None:
                retry.sig = self._next_arguments(request, args, kwargs)
            if throw:
                raise retry
            return retry
        retry.posting = self._next_posting(request, args, kwargs, timed)
        request.follow_ups.append(retry.posting)
        if throw:
            raise retry
        return retry

    def update_state(
        self,
        task_id: str | None = None,
        state: str | None = None,
        meta: object = None,
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
        auto = self.options.auto
        if not auto.wants(exc):
            return None
        allowed = auto.max_retries(self.max_retries)
        timed = self._timed(self.request, exc, auto.retry_kwargs, allowed, auto.backoff(exc))
        if timed is None:
            return None
        retry: Callable[..., Retry] = self.retry
        return retry(**{**timed, "exc": exc, "throw": False})

    def __getattr__(self, name: str) -> Any:
        if name in _OPTION_NAMES and "app" in self.__dict__:
            return getattr(self.options, name)
        if name == "attempts" and "app" in self.__dict__:
            retries = self.max_retries
            return None if retries is None else retries + 1
        if name in TASK_NAMES and "_declared" in self.__dict__:
            return self._declared.get(name)
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

    def __repr__(self) -> str:
        return f"<@task: {self.name} of {self.app.main or 'umbel'}>"

    def _send(
        self,
        args: Args,
        kwargs: Mapping[str, Any],
        task_id: str,
        call: Mapping[str, Any],
    ) -> AsyncResult[Any]:
        plan = self.plan(call)
        if self.app.conf.task_always_eager:
            return self._eager(plan, args, kwargs, task_id, call)
        posting, result = self._prepare(plan, args, kwargs, task_id)
        self.app.publisher.send((posting,), plan.policy)
        if call.get("add_to_parent", True):
            add_children((result,))
        return result

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
            self._check(*args, **kwargs)
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
            self._check(*args, **kwargs)
        posting = self.app.publisher.build(plan, args, kwargs, task_id)
        ignored = plan.ignore_result is True
        return posting, AsyncResult(task_id, self.app, task_name=self.name, ignored=ignored)

    def _timed(
        self,
        request: Context,
        cause: BaseException,
        call: Mapping[str, Any],
        max_retries: int | None,
        backoff: Backoff | None,
    ) -> dict[str, Any] | None:
        """`call` with the time of the next try; None where there must be no next try.

        A `backoff` replaces the time in `call`; else the task's `default_retry_delay` fills it in.
        """
        auto = self.options.auto
        if auto.is_final(cause) or not retries_left(request.retries, max_retries):
            return None
        now = self.app.clock.wall()
        timed = dict(call)
        if backoff is not None:
            import random  # takes 5 ms, which not every caller needs to pay

            timed["countdown"] = auto.delay(backoff, cause, request.retries, random, now)
        elif timed.get("countdown") is None and timed.get("eta") is None:
            timed["countdown"] = self.default_retry_delay
        at = due(timed.get("countdown"), timed.get("eta"), now, self.app.zone)
        return timed if at is None or auto.in_time(at.at, first_run_at(request, now)) else None

    def _exhausted(self, request: Context, max_retries: int | None) -> MaxRetriesExceededError:
        used_up = f"{request.retries} retries"
        if retries_left(request.retries, max_retries):
            used_up = f"time (retry_max_elapsed={self.options.auto.retry_max_elapsed})"
        return MaxRetriesExceededError(
            f"{self.name}[{request.id}] has used up its {used_up}; "
            f"args: {safe_repr(request.args)} kwargs: {safe_repr(request.kwargs)}",
            task_args=request.args or (),
            task_kwargs=request.kwargs or {},
        )

    def _next_posting(
        self,
        request: Context,
        args: Sequence[Any] | None,
        kwargs: Mapping[str, Any] | None,
        call: Mapping[str, Any],
    ) -> Posting:
        new_call: tuple[Args, Mapping[str, Any]] | None = None
        if args is not None or kwargs is not None:
            new_call = self._next_arguments(request, args, kwargs)
        app = self.app
        form = None
        if new_call is not None:
            plan = self.plan(call)
            form = app.publisher.call_format(plan.serializer, plan.compression)
            if plan.typed is not None:
                keeps = (form.serializer if form else JSON).keeps
                new_call = plan.typed.lower(*new_call, keeps)
        now = app.clock.wall()
        limited = self.options.auto.retry_max_elapsed is not None
        return next_posting(
            request,
            call,
            new_call,
            app.address(self.name, call),
            now=now,
            zone=app.zone,
            max_size=app.conf.task_max_message_size,
            repr_levels=app.conf.task_repr_maxlevels,
            eta_in_broker=app.conf.task_eta_in_broker,
            form=form,
            first_run_at=first_run_at(request, now) if limited else None,
        )

    def _next_arguments(
        self,
        request: Context,
        args: Sequence[Any] | None,
        kwargs: Mapping[str, Any] | None,
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The given arguments, with those of the present run that they don't replace.

        For ``f(a, b)`` that runs as ``f(1, b=2)``, ``retry(args=(3, 4))`` is ``f(3, 4)`` and
        for one that runs as ``f(1, 2)``, ``retry(kwargs={"a": 3})`` is ``f(a=3, b=2)``.
        """
        old_args, old_kwargs = tuple(request.args or ()), dict(request.kwargs or {})
        names = self._positional_names()
        if kwargs is None:
            given = positional_arguments(args, self.name)
            taken = names[: len(given)]
            kept = {name: value for name, value in old_kwargs.items() if name not in taken}
            new_args, new_kwargs = tuple(given), kept
        elif args is None:
            named = dict(named_arguments(kwargs, self.name))
            first = next((i for i, name in enumerate(names) if name in named), len(old_args))
            rest = zip(names[first:], old_args[first:], strict=False)
            new_args, new_kwargs = old_args[:first], {**dict(rest), **named}
        else:
            new_args, new_kwargs = tuple(args), dict(kwargs)
        if self.options.typing:
            self._check(*new_args, **new_kwargs)
        return new_args, new_kwargs

    def _positional_names(self) -> tuple[str, ...]:
        try:
            parameters = signature_of(self.run).parameters.values()
        except (TypeError, ValueError):
            return ()
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        return tuple(each.name for each in parameters if each.kind in kinds)

    # Last, since a class's own names hide the module's below them.
    def AsyncResult(self, task_id: str) -> AsyncResult[Any]:
        """The result of the message of this id."""
        return AsyncResult(task_id, self.app, task_name=self.name)


def checked_id(task_id: object) -> str:
    """`task_id`, if it can be one. Raises `TypeError`."""
    if isinstance(task_id, str) and task_id and (task_id.isascii() or _is_unicode(task_id)):
        return task_id
    raise TypeError(
        f"task_id is {task_id!r:.80}; expected a text that isn't empty, in Unicode: str(value)"
    )


def _is_unicode(text: str) -> bool:
    """Whether there is no half of a surrogate pair in it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def positional_arguments(args: object, name: str) -> Args:
    """`args` as given to a call, () for None. Raises `TypeError`."""
    if args is None:
        return ()
    if isinstance(args, (tuple, list)):
        return args
    raise TypeError(
        f"args of task {name!r} is {args!r:.80}; expected a tuple or list, such as (name,)"
    )


def named_arguments(kwargs: object, name: str) -> Mapping[str, Any]:
    """`kwargs` as given to a call, {} for None. Raises `TypeError`."""
    if kwargs is None:
        return {}
    if isinstance(kwargs, dict):
        return kwargs
    raise TypeError(f"kwargs of task {name!r} is {kwargs!r:.80}; expected a dict")


def _instant_of(eta: datetime | str | None) -> datetime | None:
    return datetime.fromisoformat(eta) if isinstance(eta, str) else eta


def _raise(error: BaseException, cause: BaseException | None) -> NoReturn:
    if cause is None or cause is error:
        raise error
    raise error from cause


def _argument_check(fun: Callable[..., object], name: str) -> Callable[..., object]:
    """A function that does nothing, with the parameters of `fun`: calling it checks arguments.

    The interpreter's own check takes 0.1 µs; `inspect.Signature.bind` takes 5.
    """
    try:
        signature = signature_of(fun)
    except (TypeError, ValueError):
        return no_handler  # written in C without a signature: the worker finds out
    plain = [
        each.replace(
            annotation=each.empty, default=each.empty if each.default is each.empty else None
        )
        for each in signature.parameters.values()
    ]
    text = str(inspect.Signature(plain))[1:-1]
    check: Callable[..., object] = eval(f"lambda {text}: None")
    check.__name__ = check.__qualname__ = name
    return check
