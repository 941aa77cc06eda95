"""Send a task by its name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from umbel.arguments import checked_id, named_arguments, positional_arguments
from umbel.canvas import check_links
from umbel.exceptions import AlwaysEagerIgnored
from umbel.message import Posting
from umbel.options import Plan, check_call_names
from umbel.publish import add_children, new_id
from umbel.result import AsyncResult
from umbel.saferepr import safe_repr
from umbel.typed import Args
from umbel.warning import warn

if TYPE_CHECKING:
    from umbel.app import Umbel


class Named(NamedTuple):
    """A call of a task by its name, checked and ready to be made a message."""

    app: Umbel
    plan: Plan
    args: Args
    kwargs: Mapping[str, Any]
    task_id: str
    add_to_parent: bool

    def make(self) -> tuple[Posting]:
        """Its message."""
        return (self.app.publisher.build(self.plan, self.args, self.kwargs, self.task_id),)

    def result(self) -> AsyncResult[Any]:
        """What its caller gets, once it is sent."""
        plan = self.plan
        result: AsyncResult[Any]
        if "result_cls" in plan.options:
            result = custom_result(self.app, plan, self.task_id)
        else:
            ignored = plan.ignore_result is True
            result = AsyncResult(self.task_id, app=self.app, task_name=plan.task, ignored=ignored)
        if self.add_to_parent:
            add_children((result,))
        return result


def send_by_name(
    app: Umbel,
    name: str,
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
    task_id: str | None,
    options: Mapping[str, Any],
) -> AsyncResult[Any]:
    """What `Umbel.send_task` does, which calls it."""
    call = _named(app, name, args, kwargs, task_id, options)
    app.publisher.send(call.make(), call.plan.policy)
    return call.result()


async def asend_by_name(
    app: Umbel,
    name: str,
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
    task_id: str | None,
    options: Mapping[str, Any],
) -> AsyncResult[Any]:
    """What `Umbel.asend_task` does, which calls it."""
    call = _named(app, name, args, kwargs, task_id, options)
    await app.publisher.asend(call.make, call.plan.policy)
    return call.result()


def _named(
    app: Umbel,
    name: str,
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
    task_id: str | None,
    options: Mapping[str, Any],
) -> Named:
    check_call_names(options, f"send_task of {name!r}")
    if app.conf.task_always_eager:
        warn(
            f"send_task({name!r}) sends a message although task_always_eager is set, since it "
            "takes names, not tasks; tests may want app.tasks[name].apply_async()",
            AlwaysEagerIgnored,
        )
    if not isinstance(name, str) or not name:
        raise TypeError(f"the name of a task is {name!r:.80}; expected a text")
    args, kwargs = positional_arguments(args, name), named_arguments(kwargs, name)
    return Named(
        app,
        app.plan(name, check_links(options), app.tasks.get(name), args, kwargs),
        args,
        kwargs,
        new_id() if task_id is None else checked_id(task_id),
        bool(options.get("add_to_parent", True)),
    )


def custom_result(app: Umbel, plan: Plan, task_id: str) -> AsyncResult[Any]:
    """The result of a call that names its class (`result_cls`)."""
    cls = plan.options["result_cls"]
    if isinstance(cls, type) and issubclass(cls, AsyncResult):
        return cls(task_id, app=app, task_name=plan.task, ignored=plan.ignore_result is True)
    if not callable(cls):
        raise TypeError(f"result_cls is {safe_repr(cls, 80)}; expected a class such as AsyncResult")
    return cast("AsyncResult[Any]", cls(task_id))
