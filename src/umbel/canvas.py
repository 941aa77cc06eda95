"""Signatures: calls that are written down, to be sent later, linked and chained.

::

    add.s(2)                      a call with its last arguments; what comes before is put first
    add.si(2, 2)                  one that takes nothing from before
    add.s(2, 2) | add.s(3)        a chain: the second gets what the first has returned

In messages a signature is an object with exactly six keys::

    {"task": name, "args": [], "kwargs": {}, "options": {}, "subtask_type": null,
     "immutable": false}

A chain is one of the task ``celery.chain`` with ``{"tasks": [signature, ...]}`` as its kwargs. It
is never a message of its own: its first step is sent, and carries the others in reverse order.
"""

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
from umbel.stamping import NAMES, StampingVisitor, added, put

if TYPE_CHECKING:
    from umbel.app import Umbel
    from umbel.task import Task

KEYS: Final = ("task", "args", "kwargs", "options", "subtask_type", "immutable")
CHAIN: Final = "celery.chain"
_LATER: Final = frozenset({"group", "chord", "chunks", "xmap", "xstarmap"})


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
                self.options[option] = [form_of(each) for each in _listed(self.options[option])]
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
        made = self.clone(args, kwargs, **_given(options))
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
        stamped = own.get(NAMES) or ()
        kept = {name: own[name] for name in ("group_id", *stamped) if name in own}
        if stamped:
            kept[NAMES] = list(dict.fromkeys([*stamped, *(options.get(NAMES) or ())]))
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
            return chain(self, other)
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


class chain(Signature):
    """Tasks one after the other, each with the return value of the one before.

    ``chain(a, b, c)`` is ``a | b | c``; one iterable of signatures will do, too. `link` goes to the
    last step, `link_error` to each, `task_id` is the last one's, all other options of a call are
    for the first. Its result is the last step's, with the others as its `parent`.
    """

    __slots__ = ()

    def __init__(self, *tasks: Any, app: Umbel | None = None, **options: Any) -> None:
        if len(tasks) == 1 and not isinstance(tasks[0], (Signature, Mapping)):
            tasks = tuple(tasks[0])
        steps = [step for each in tasks for step in _steps_of(signature(each, app=app))]
        found = next((each._app for each in steps if each._app is not None), app)
        super().__init__(
            CHAIN, (), {"tasks": steps}, options, subtask_type="chain", app=app or found
        )

    @property
    def tasks(self) -> list[Signature]:
        """Its steps, in their order."""
        steps: list[Signature] = self.kwargs["tasks"]
        return steps

    def delay(self, *args: Any, **kwargs: Any) -> Any:
        """Send it, with these arguments for the first step; None where it has no steps."""
        return self.apply_async(args, kwargs)

    def apply_async(
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        """Send the first step, with the others in it; None where there is none."""
        if not self.tasks:
            return None
        step = self.prepared(args, kwargs, options)
        return self._result_of(step, step.apply_async())

    async def adelay(self, *args: Any, **kwargs: Any) -> Any:
        """`delay` for coroutines; see `Task.adelay`."""
        return await self.aapply_async(args, kwargs)

    async def aapply_async(
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        """`apply_async` for coroutines; see `Task.adelay`."""
        if not self.tasks:
            return None
        step = self.prepared(args, kwargs, options)
        return self._result_of(step, await step.aapply_async())

    def _result_of(self, step: Signature, first: AsyncResult[Any]) -> AsyncResult[Any]:
        """The last step's, of a chain that was sent as `step`, with the others as its parents."""
        if self.app.conf.task_always_eager:
            from umbel.eager import last_of  # needs this module

            return last_of(first)
        later = [each["options"]["task_id"] for each in reversed(step.options.get("chain") or ())]
        own = later[: len(self.tasks) - 1]
        names = [each.task for each in self.tasks[1:]]
        result = first
        for task_id, name in zip(own, names, strict=True):
            result = AsyncResult(task_id, app=self.app, task_name=name, parent=result)
        return result

    def apply(
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        """Run the steps here and now, one after the other; the last one's `EagerResult`.

        Where a step fails, it is the last; None where there is no step.
        """
        result, given, options = None, tuple(args or ()), _given(options)
        for step in self.clone(None, kwargs, **_of_steps(options)).unchained():
            before, result = result, step.apply(given, **options if result is None else {})
            result.parent = before
            if not result.successful():
                break
            given = (result.result,)
        return result

    def prepared(
        self,
        args: Sequence[Any] | None,
        kwargs: Mapping[str, Any] | None,
        options: Mapping[str, Any],
        make_id: Callable[[], str] = new_id,
    ) -> Signature:
        """The first step, with the others as its option `chain`, all with their ids."""
        options = _given(options)
        steps = self.clone(args, kwargs, **_of_steps(options)).unchained()
        if not steps:
            raise ValueError("the chain has no steps; expected at least one")
        for step in steps:
            step.options.setdefault("task_id", make_id())
            step.options.setdefault("reply_to", ORIGIN.reply_to)
        first, *others = steps
        first_only = {name: value for name, value in options.items() if name not in _FOR_STEPS}
        own = {name: value for name, value in self.options.items() if name not in _FOR_STEPS}
        own.update(first_only)
        first.set(**own)
        behind = [form_of(each) for each in _listed(options.get("chain") or ())]
        rest = [*behind, *(each.embedded() for each in reversed(others))]
        if rest:
            first.options["chain"] = rest
        return first

    def unchained(self) -> list[Signature]:
        """Copies of its steps, with what the chain itself is given: arguments, links, id."""
        steps = [each.clone() for each in self.tasks]
        if not steps:
            return []
        named = {name: value for name, value in self.kwargs.items() if name != "tasks"}
        steps[0] = steps[0].clone(self.args, named)
        for errback in self.options.get("link_error") or ():
            for step in steps:
                step.link_error(errback)
        for callback in self.options.get("link") or ():
            steps[-1].link(callback)
        if self.options.get("task_id") is not None:
            steps[-1].options["task_id"] = self.options["task_id"]
        return steps

    def freeze(
        self,
        _id: str | None = None,
        group_id: str | None = None,
        root_id: str | None = None,
        parent_id: str | None = None,
        group_index: int | None = None,
    ) -> AsyncResult[Any]:
        """Give each step the id that it will be sent under; the result of the last."""
        if not self.tasks:
            raise ValueError("the chain has no steps; expected at least one")
        *others, last = self.tasks
        for step in others:
            step.freeze(root_id=root_id)
        self.tasks[0].freeze(root_id=root_id, parent_id=parent_id)
        result = last.freeze(_id or self.id, group_id, root_id, None, group_index)
        self.options["task_id"] = result.id
        return result

    def stamp(
        self, visitor: StampingVisitor | None = None, append_stamps: bool = False, **headers: Any
    ) -> Self:
        """Give each step stamps, and what is linked to it; itself."""
        if visitor is not None:
            headers = added(headers, visitor.on_chain_start(self, **headers))
        self.stamp_links(visitor, append_stamps, **headers)
        for step in self.tasks:
            step.stamp(visitor, append_stamps, **headers)
        if visitor is not None:
            visitor.on_chain_end(self, **headers)
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As `apply_async`."""
        return self.apply_async(args, kwargs)

    def _copy(self) -> Self:
        made = super()._copy()
        made.kwargs["tasks"] = [step.clone() for step in self.tasks]
        return made

    def __json__(self) -> dict[str, Any]:
        return self._form([step.__json__() for step in self.tasks])

    def embedded(self) -> dict[str, Any]:
        return self._form([step.embedded() for step in self.tasks])

    def _form(self, steps: list[dict[str, Any]]) -> dict[str, Any]:
        form = super().__json__()
        return {**form, "kwargs": {**form["kwargs"], "tasks": steps}}

    def __len__(self) -> int:
        return len(self.tasks)

    def reprcall(self, *args: Any, **kwargs: Any) -> str:
        """How a call of it with these arguments looks."""
        steps = self.clone(args, kwargs).unchained() if args or kwargs else self.tasks
        return " | ".join(map(repr, steps)) or "chain()"


_FOR_STEPS: Final = frozenset({"link", "link_error", "task_id", "chain"})


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _of_steps(options: Mapping[str, Any]) -> dict[str, Any]:
    """What of a chain's call is for its steps: links in a call add to none, they replace."""
    return {name: options[name] for name in _FOR_STEPS - {"chain"} if name in options}


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
    if kind in _LATER or options_have_chord(options):
        _refuse(str(kind if kind in _LATER else "chord"))
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
        return _chain_of(kwargs, args, options, app)
    immutable = bool(form.get("immutable"))
    return Signature(task, args, kwargs, options, subtask_type=kind, immutable=immutable, app=app)


def options_have_chord(options: object) -> bool:
    """Whether a signature's options make it a part of a chord."""
    return isinstance(options, Mapping) and options.get("chord") is not None


def _chain_of(
    kwargs: Mapping[str, Any], args: Sequence[Any], options: Mapping[str, Any], app: Umbel | None
) -> chain:
    tasks = kwargs.get("tasks")
    if not isinstance(tasks, (list, tuple)) or not all(isinstance(e, Mapping) for e in tasks):
        raise TypeError(f"a chain has the tasks {safe_repr(tasks, 80)}; expected signatures")
    made = chain(*tasks, app=app) if len(tasks) != 1 else chain(list(tasks), app=app)
    made.args = tuple(args)
    made.kwargs.update({name: value for name, value in kwargs.items() if name != "tasks"})
    made.set(**options)
    return made


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
        **{name: [form_of(each) for each in _listed(options[name])] for name in given},
    }


def _listed(value: Any) -> Iterable[Any]:
    return value if isinstance(value, (list, tuple)) else (value,)


def _steps_of(each: Signature) -> Iterator[Signature]:
    if isinstance(each, chain):
        yield from each.unchained()
    else:
        yield each


def _refuse(kind: str) -> NoReturn:
    raise ImproperlyConfigured(
        f"{kind} comes with the release 'Workflows'. Until then, chain plain tasks (a | b), or "
        "send them one by one"
    )


def group(*_: Any, **__: Any) -> NoReturn:
    """Tasks side by side; it comes with the release 'Workflows'."""
    _refuse("group")


def chord(*_: Any, **__: Any) -> NoReturn:
    """A task after all of a group; it comes with the release 'Workflows'."""
    _refuse("chord")


def chunks(*_: Any, **__: Any) -> NoReturn:
    """Many calls in few messages; it comes with the release 'Workflows'."""
    _refuse("chunks")


def xmap(*_: Any, **__: Any) -> NoReturn:
    """Many calls in one message; it comes with the release 'Workflows'."""
    _refuse("xmap")


def xstarmap(*_: Any, **__: Any) -> NoReturn:
    """As `xmap`, with several arguments; it comes with the release 'Workflows'."""
    _refuse("xstarmap")
