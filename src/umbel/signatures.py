"""Signatures: calls that are written down, to be sent later; and their form in messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

from umbel.absent import SIGNATURE, without
from umbel.current import get_current_app
from umbel.exceptions import ImproperlyConfigured
from umbel.publish import ORIGIN, new_id
from umbel.result import AsyncResult
from umbel.saferepr import safe_repr
from umbel.serialization import JSON
from umbel.stamping import NAMES, StampingVisitor, added, checked_names, put

if TYPE_CHECKING:
    from umbel.app import Umbel
    from umbel.chains import chain
    from umbel.task import Task

KEYS: Final = ("task", "args", "kwargs", "options", "subtask_type", "immutable")
CHAIN: Final = "celery.chain"
LATER: Final = frozenset({"group", "chord", "chunks", "xmap", "xstarmap"})


class Kind:
    """A kind of signature that is made of others, which `umbel.chains` fills in."""

    join: Callable[..., Any]
    """Makes one of several signatures."""
    read: Callable[..., Signature]
    """Makes one of what its form has: kwargs, args, options, app."""


CHAINS: Final = Kind()


@without("signature", SIGNATURE)
class Signature:
    """One call: a task's name, arguments, options. Equal to another, or its dict, of the same form.

    `args` are what comes after the arguments that the call itself brings; an `immutable` one takes
    none from it. `kwargs` of the call win over these. `dict(signature)` is its form in messages.
    """

    __slots__ = ("_app", "args", "immutable", "kwargs", "options", "subtask_type", "task")
    __hash__ = None  # type: ignore[assignment]  # it can be changed

    def __init__(
        self,
        task: Task[..., Any] | str,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        *,
        subtask_type: str | None = None,
        immutable: bool = False,
        app: Umbel | None = None,
        **more: Any,
    ) -> None:
        if isinstance(task, str):
            name = task
        else:
            name, app = task.name, app or task.app
        self.task = name
        self.args: tuple[Any, ...] = tuple(args or ())
        self.kwargs: dict[str, Any] = dict(kwargs or {})
        self.options: dict[str, Any] = {**(options or {}), **more}
        for option in ("link", "link_error"):
            if self.options.get(option) is not None:
                self.options[option] = [form_of(each) for each in listed(self.options[option])]
        self.subtask_type = subtask_type
        self.immutable = immutable
        self._app = app

    @property
    def app(self) -> Umbel:
        """The app that it is sent by: its task's, or the current one."""
        return self._app or get_current_app()

    @property
    def type(self) -> Task[..., Any]:
        """The task. Raises `NotRegistered` where it isn't known here."""
        return self.app.tasks[self.task]

    @property
    def name(self) -> str:
        return self.task

    @property
    def id(self) -> str | None:
        """The id that it will have, once it is frozen."""
        return self.options.get("task_id")

    @property
    def parent_id(self) -> str | None:
        return self.options.get("parent_id")

    @property
    def root_id(self) -> str | None:
        return self.options.get("root_id")

    # Sending

    def delay(self, *args: Any, **kwargs: Any) -> AsyncResult[Any]:
        """Send it, with these arguments before its own."""
        return self.apply_async(args, kwargs)

    def apply_async(
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> AsyncResult[Any]:
        """Send it, with `args` before its own, and `options` that win over its own.

        An option that is None is left to the signature.
        """
        step = self.prepared(args, kwargs, options)
        app, task = self.app, self.app.tasks.get(step.task)
        if task is not None:
            return task.apply_async(step.args, step.kwargs, **step.options)
        return app.send_task(step.task, step.args, step.kwargs, **step.options)

    async def adelay(self, *args: Any, **kwargs: Any) -> AsyncResult[Any]:
        """`delay` for coroutines; see `Task.adelay`."""
        return await self.aapply_async(args, kwargs)

    async def aapply_async(
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> AsyncResult[Any]:
        """`apply_async` for coroutines; see `Task.adelay`."""
        step = self.prepared(args, kwargs, options)
        app, task = self.app, self.app.tasks.get(step.task)
        if task is not None:
            return await task.aapply_async(step.args, step.kwargs, **step.options)
        return await app.asend_task(step.task, step.args, step.kwargs, **step.options)

    def apply(
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        """Run the task here and now, as `Task.apply` does; an `EagerResult`."""
        step = self.prepared(args, kwargs, options)
        return step.type.apply(step.args, step.kwargs, **step.options)

    def prepared(
        self,
        args: Sequence[Any] | None,
        kwargs: Mapping[str, Any] | None,
        options: Mapping[str, Any],
        make_id: Callable[[], str] = new_id,
    ) -> Signature:
        """What is sent when it is applied so: the call of one task, with its id."""
        made = self.clone(args, kwargs, **given_only(options))
        made.options.setdefault("task_id", make_id())
        return made

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the task here and now."""
        call = self.clone(args, kwargs)
        return call.type(*call.args, **call.kwargs)

    def __invert__(self) -> Any:
        """``~sig``: send it and wait for its value."""
        return self.delay().get()

    # Making others of it

    def clone(
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Self:
        """A copy, with `args` before its own."""
        made = self._copy()
        if not self.immutable:
            made.args = (*(args or ()), *self.args)
            made.kwargs.update(kwargs or {})
        made.set(**{**options, **self._kept(options)})
        return made

    partial = clone

    def _kept(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options that a call can't replace once a signature has them: its group and stamps."""
        own = self.options
        stamped = checked_names(own.get(NAMES))
        kept = {name: own[name] for name in ("group_id", *stamped) if name in own}
        if stamped:
            kept[NAMES] = list(dict.fromkeys([*stamped, *checked_names(options.get(NAMES))]))
        return kept

    def replace(
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Self:
        """A copy with other arguments or options, where they are given."""
        made = self._copy()
        if args is not None:
            made.args = tuple(args)
        if kwargs is not None:
            made.kwargs = dict(kwargs)
        if options is not None:
            made.options = dict(options)
        return made

    def __or__(self, other: object) -> chain:
        if isinstance(other, Signature):
            made: chain = CHAINS.join(self, other)
            return made
        return NotImplemented

    # Changing it

    def set(self, immutable: bool | None = None, **options: Any) -> Self:
        """Add options; itself."""
        if immutable is not None:
            self.immutable = immutable
        self.options.update(Signature("", options=options).options)
        return self

    def set_immutable(self, immutable: bool) -> None:
        self.immutable = immutable

    def link(self, callback: Signature | Mapping[str, Any]) -> Signature | Mapping[str, Any]:
        """Have `callback` sent with the return value, once this has succeeded; `callback`."""
        self._append("link", callback)
        return callback

    def link_error(self, errback: Signature | Mapping[str, Any]) -> Signature | Mapping[str, Any]:
        """Have `errback` called once this has failed for good; `errback`.

        One that takes a request, an exception and a traceback is called in the worker; any other
        is sent, with the id of the task that has failed.
        """
        self._append("link_error", errback)
        return errback

    def on_error(self, errback: Signature | Mapping[str, Any]) -> Self:
        """As `link_error`; itself."""
        self.link_error(errback)
        return self

    def stamp(
        self, visitor: StampingVisitor | None = None, append_stamps: bool = False, **headers: Any
    ) -> Self:
        """Give it stamps, and what is linked to it: values that go with the message; itself.

        ``sig.stamp(customer="acme")``, or those that a `StampingVisitor` says. A stamp replaces
        one of its name; with `append_stamps` both stay, as a list. A task finds its stamps in
        ``self.request.stamps``.
        """
        self.stamp_links(visitor, append_stamps, **headers)
        if visitor is not None:
            headers = added(headers, visitor.on_signature(self, **headers))
        put(self.options, headers, append_stamps)
        return self

    def stamp_links(
        self, visitor: StampingVisitor | None = None, append_stamps: bool = False, **headers: Any
    ) -> None:
        """`stamp` what is linked to it, but not itself."""
        for option in ("link", "link_error"):
            linked = self.options.get(option)
            if not linked:
                continue
            forms = []
            for form in linked:
                each, given = from_dict(form, self._app), headers
                if visitor is not None:
                    ask = visitor.on_callback if option == "link" else visitor.on_errback
                    given = added(headers, ask(each, **headers))
                forms.append(form_of(each.stamp(visitor, append_stamps, **given)))
            self.options[option] = forms

    def flatten_links(self) -> list[Signature]:
        """Itself and what is linked to it for success, and what is linked to that."""
        linked = (from_dict(form, self._app) for form in self.options.get("link") or ())
        return [self, *(each for link in linked for each in link.flatten_links())]

    def freeze(
        self,
        _id: str | None = None,
        group_id: str | None = None,
        root_id: str | None = None,
        parent_id: str | None = None,
        group_index: int | None = None,
    ) -> AsyncResult[Any]:
        """Give it the id that it will be sent under, unless it has one; its result."""
        options = self.options
        task_id: str = options.setdefault("task_id", _id or new_id())
        options.setdefault("reply_to", ORIGIN.reply_to)
        given = {
            "group_id": group_id,
            "root_id": root_id,
            "parent_id": parent_id,
            "group_index": group_index,
        }
        options.update({name: value for name, value in given.items() if value is not None})
        return AsyncResult(task_id, app=self.app, task_name=self.task)

    # Its form

    def __json__(self) -> dict[str, Any]:
        return {
            "task": self.task,
            "args": list(self.args),
            "kwargs": dict(self.kwargs),
            "options": dict(self.options),
            "subtask_type": self.subtask_type,
            "immutable": self.immutable,
        }

    def embedded(self) -> dict[str, Any]:
        """Its form, with the arguments that its task annotates as plain data.

        One argument comes before them when it is called, unless it is immutable.
        """
        form = self.__json__()
        task = None if self._app is None else self._app.tasks.get(self.task)
        if task is None or task.typed is None or not task.options.typing:
            return form
        typed = task.typed
        if not self.immutable:
            typed = replace(typed, positional=typed.positional[1:])
        args, kwargs = typed.lower(self.args, self.kwargs, JSON.keeps)
        return {**form, "args": list(args), "kwargs": dict(kwargs)}

    @classmethod
    def from_dict(cls, d: Mapping[str, Any], app: Umbel | None = None) -> Signature:
        """The signature that has this form."""
        return from_dict(d, app)

    def keys(self) -> tuple[str, ...]:
        return KEYS

    def values(self) -> tuple[Any, ...]:
        return tuple(self.__json__().values())

    def items(self) -> tuple[tuple[str, Any], ...]:
        return tuple(self.__json__().items())

    def get(self, key: str, default: Any = None) -> Any:
        """The part of its form that is named, or `default`."""
        return self.__json__().get(key, default)

    def __getitem__(self, key: str) -> Any:
        return self.__json__()[key]

    def __setitem__(self, key: str, value: Any) -> None:
        if key not in KEYS:
            raise KeyError(f"a signature has no {key!r}; it has {', '.join(KEYS)}")
        setattr(self, key, tuple(value) if key == "args" else value)

    def __contains__(self, key: object) -> bool:
        return key in KEYS

    def __iter__(self) -> Iterator[str]:
        return iter(KEYS)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Signature):
            return self.__json__() == other.__json__()
        return self.__json__() == other if isinstance(other, dict) else NotImplemented

    def __repr__(self) -> str:
        return self.reprcall()

    def reprcall(self, *args: Any, **kwargs: Any) -> str:
        """How a call of it with these arguments looks."""
        call = self.clone(args, kwargs) if args or kwargs else self
        named = [f"{name}={safe_repr(value, 80)}" for name, value in call.kwargs.items()]
        return f"{call.task}({', '.join([*(safe_repr(each, 80) for each in call.args), *named])})"

    def _copy(self) -> Self:
        made = object.__new__(type(self))
        Signature.__init__(
            made,
            self.task,
            self.args,
            self.kwargs,
            self.options,
            subtask_type=self.subtask_type,
            immutable=self.immutable,
            app=self._app,
        )
        return made

    # Last, since a class's own names hide the module's below them.
    def AsyncResult(self, task_id: str) -> AsyncResult[Any]:
        """The result of a message of its task."""
        return AsyncResult(task_id, app=self.app, task_name=self.task)

    def _append(self, option: str, other: Signature | Mapping[str, Any]) -> None:
        form, linked = form_of(other), self.options.setdefault(option, [])
        if form not in linked:
            linked.append(form)


def given_only(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def signature(
    varies: Signature | Mapping[str, Any] | Task[..., Any] | str,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    *,
    app: Umbel | None = None,
    **more: Any,
) -> Signature:
    """A signature of a task, by the task or its name; a copy of one; or one of its dict."""
    if isinstance(varies, Signature):
        return varies.clone(args, kwargs, **(options or {}))
    if isinstance(varies, Mapping):
        return from_dict(varies, app=app)
    if not isinstance(varies, str) and not hasattr(varies, "apply_async"):
        raise TypeError(
            f"{safe_repr(varies, 80)} is no signature; expected one such as add.s(2), a task, or "
            "a task's name"
        )
    return Signature(varies, args, kwargs, options, app=app, **more)


def from_dict(form: Mapping[str, Any], app: Umbel | None = None) -> Signature:
    """The signature that `form` stands for.

    Raises `TypeError` where it stands for none, and `ImproperlyConfigured` for a group or chord.
    """
    if not isinstance(form, Mapping):
        raise TypeError(f"{safe_repr(form, 80)} is no signature; expected an object")
    kind, task = form.get("subtask_type"), form.get("task")
    args, kwargs = form.get("args") or (), form.get("kwargs") or {}
    options = form.get("options") or {}
    if kind in LATER or options_have_chord(options):
        refuse_kind(str(kind if kind in LATER else "chord"))
    if not (
        isinstance(task, str)
        and task
        and isinstance(args, (list, tuple))
        and isinstance(kwargs, Mapping)
        and isinstance(options, Mapping)
        and all(isinstance(name, str) for name in (*kwargs, *options))
    ):
        raise TypeError(
            f"{safe_repr(dict(form), 200)} is no signature; expected an object with the keys "
            f"{', '.join(KEYS)}"
        )
    if kind == "chain" or task == CHAIN:
        return CHAINS.read(kwargs, args, options, app)
    immutable = bool(form.get("immutable"))
    return Signature(task, args, kwargs, options, subtask_type=kind, immutable=immutable, app=app)


def options_have_chord(options: object) -> bool:
    """Whether a signature's options make it a part of a chord."""
    return isinstance(options, Mapping) and options.get("chord") is not None


def form_of(each: Signature | Mapping[str, Any]) -> dict[str, Any]:
    """The form of a callback in messages. Raises `TypeError` for what is none."""
    if isinstance(each, Signature):
        return each.embedded()
    if isinstance(each, Mapping) and isinstance(each.get("task"), str):
        return dict(each)
    raise TypeError(
        f"{safe_repr(each, 80)} is no signature; expected one such as add.s(2), or its dict"
    )


def check_links(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Options of a call with signatures as plain data. Raises `TypeError` for what is none."""
    given = [name for name in ("link", "link_error", "chain") if options.get(name) is not None]
    if not given:
        return options
    return {
        **options,
        **{name: [form_of(each) for each in listed(options[name])] for name in given},
    }


def listed(value: Any) -> Iterable[Any]:
    return value if isinstance(value, (list, tuple)) else (value,)


def refuse_kind(kind: str) -> NoReturn:
    raise ImproperlyConfigured(
        f"{kind} comes with the release 'Workflows'. Until then, chain plain tasks (a | b), or "
        "send them one by one"
    )
