"""Send calls of a task, one or many; or run them here, where the settings say so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from umbel.arguments import listed
from umbel.message import Posting
from umbel.options import Plan
from umbel.publish import add_children, new_id
from umbel.result import AsyncResult
from umbel.routes import NOTHING
from umbel.sending import custom_result
from umbel.typed import Args

if TYPE_CHECKING:
    from umbel.task import Task


def send(
    task: Task[..., Any],
    args: Args,
    kwargs: Mapping[str, Any],
    task_id: str,
    call: Mapping[str, Any],
) -> AsyncResult[Any]:
    """Send one call; see `Task.delay`."""
    if task.has_shadow_name and "shadow" not in call:
        call = {**call, "shadow": task.shadow_name(args, kwargs, call)}
    plan = task.plan(call, args, kwargs)
    if task.app.conf.task_always_eager:
        from umbel.eager import apply_unsent  # needs this module

        return apply_unsent(task, plan, args, kwargs, task_id, call)
    add_to_parent = bool(call.get("add_to_parent", True))  # may raise, so before it is sent
    posting, result = _prepare(task, plan, args, kwargs, task_id)
    task.app.publisher.send((posting,), plan.policy)
    if add_to_parent:
        add_children((result,))
    return result


async def asend(
    task: Task[..., Any],
    args: Args,
    kwargs: Mapping[str, Any],
    task_id: str,
    call: Mapping[str, Any],
) -> AsyncResult[Any]:
    """`send` for coroutines; see `Task.adelay`."""
    if task.has_shadow_name and "shadow" not in call:
        call = {**call, "shadow": task.shadow_name(args, kwargs, call)}
    plan = task.plan(call, args, kwargs)
    if task.app.conf.task_always_eager:
        from umbel.eager import aapply_unsent  # needs this module

        return await aapply_unsent(task, plan, args, kwargs, task_id, call)
    add_to_parent = bool(call.get("add_to_parent", True))  # as `send`
    results: list[AsyncResult[Any]] = []

    def make() -> tuple[Posting]:
        posting, result = _prepare(task, plan, args, kwargs, task_id)
        results.append(result)
        return (posting,)

    await task.app.publisher.asend(make, plan.policy)
    if add_to_parent:
        add_children(results)
    return results[0]


def send_many(
    task: Task[..., Any], calls: Iterable[tuple[Any, ...] | list[Any]]
) -> list[AsyncResult[Any]]:
    """Send many calls; see `Task.delay_many`."""
    calls = _checked(task, calls)
    if task.app.conf.task_always_eager:
        return [send(task, each, {}, new_id(), NOTHING) for each in calls]
    plan = task.plan()
    asks = task.app.router.asks
    postings: list[Posting] = []
    results: list[AsyncResult[Any]] = []
    for each in calls:
        its_plan = task.plan(NOTHING, each) if asks else plan
        posting, result = _prepare(task, its_plan, each, NOTHING, new_id())
        postings.append(posting)
        results.append(result)
    if postings:
        task.app.publisher.send(postings, plan.policy)
        add_children(results)
    return results


async def asend_many(
    task: Task[..., Any], calls: Iterable[tuple[Any, ...] | list[Any]]
) -> list[AsyncResult[Any]]:
    """`send_many` for coroutines; see `Task.adelay`."""
    calls = _checked(task, calls)
    if task.app.conf.task_always_eager:
        return [await asend(task, each, {}, new_id(), NOTHING) for each in calls]
    plan = task.plan()
    results: list[AsyncResult[Any]] = []

    def make() -> list[Posting]:
        asks = task.app.router.asks
        prepared = [
            _prepare(task, task.plan(NOTHING, each) if asks else plan, each, {}, new_id())
            for each in calls
        ]
        results.extend(result for _, result in prepared)
        return [posting for posting, _ in prepared]

    if calls:
        await task.app.publisher.asend(make, plan.policy)
        add_children(results)
    return results


def _checked(task: Task[..., Any], calls: Iterable[object]) -> list[tuple[Any, ...]]:
    checked: list[tuple[Any, ...]] = []
    for number, args in enumerate(
        listed(calls, f"delay_many of task {task.name!r}", "a list of tuples such as (1, 2)")
    ):
        if not isinstance(args, (tuple, list)):
            raise TypeError(
                f"delay_many of task {task.name!r} got {args!r:.80} as call {number}; expected "
                "a tuple of positional arguments, such as (1, 2) or (name,)"
            )
        checked.append(tuple(args))
    return checked


def _prepare(
    task: Task[..., Any],
    plan: Plan,
    args: Args,
    kwargs: Mapping[str, Any],
    task_id: str,
) -> tuple[Posting, AsyncResult[Any]]:
    if plan.typing:
        task.check_call(*args, **kwargs)
    posting = task.app.publisher.build(plan, args, kwargs, task_id)
    ignored = plan.ignore_result is True
    if "result_cls" in plan.options:
        return posting, custom_result(task.app, plan, task_id)
    return posting, AsyncResult(task_id, app=task.app, task_name=task.name, ignored=ignored)
