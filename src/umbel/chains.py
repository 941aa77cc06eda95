"""Chains: tasks one after the other, each with what the one before has returned.

In messages a chain is a signature of the task ``celery.chain`` with ``{"tasks": [signature, ...]}``
as its kwargs. It is never a message of its own: its first step is sent, and carries the others in
reverse order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Self

from umbel.eagerresult import last_of
from umbel.publish import ORIGIN, new_id
from umbel.result import AsyncResult
from umbel.saferepr import safe_repr
from umbel.signatures import CHAIN, CHAINS, Signature, form_of, given_only, listed, signature
from umbel.stamping import StampingVisitor, added

if TYPE_CHECKING:
    from umbel.app import Umbel

_FOR_STEPS: Final = frozenset({"link", "link_error", "task_id", "chain"})


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
        result, given, options = None, tuple(args or ()), given_only(options)
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
        options = given_only(options)
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
        behind = [form_of(each) for each in listed(options.get("chain") or ())]
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


def _of_steps(options: Mapping[str, Any]) -> dict[str, Any]:
    """What of a chain's call is for its steps: links in a call add to none, they replace."""
    return {name: options[name] for name in _FOR_STEPS - {"chain"} if name in options}


def _steps_of(each: Signature) -> Iterator[Signature]:
    if isinstance(each, chain):
        yield from each.unchained()
    else:
        yield each


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


CHAINS.join, CHAINS.read = chain, _chain_of
