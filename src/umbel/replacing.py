"""A running task that lets another call take its place (`Task.replace`), and its request as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from umbel.canvas import Signature, chain, options_have_chord, signature
from umbel.exceptions import Ignore, ImproperlyConfigured, Replaced
from umbel.request import Context

if TYPE_CHECKING:
    from umbel.task import Task


def replace(task: Task[..., Any], sig: Signature | Mapping[str, Any]) -> Any:
    """What `Task.replace` does."""
    made = signature(sig, app=task.app)
    if isinstance(made, chain) and not made.tasks:
        raise ImproperlyConfigured(
            f"task {task.name!r} can't be replaced with an empty chain; expected one with a step"
        )
    if options_have_chord(made.options):
        raise ImproperlyConfigured(
            f"task {task.name!r} can't be replaced with a part of a chord: {made!r}"
        )
    request = task.request
    if not (request.called_directly or request.is_eager):
        made = _in_place_of(request, made)
    return task.on_replace(made)


def replaced_here(task: Task[..., Any], sig: Signature) -> Any:
    """Run `sig`, in a task that runs in the caller itself. Returns its value, or has the eager run
    take it, where there is one."""
    result = sig.apply()
    if task.request.is_eager:
        raise Replaced(result)
    return result.get()


def send_in_place(task: Task[..., Any], sig: Signature) -> NoReturn:
    """Have `sig` sent in one step with the end of this execution, which ends here."""
    app, request = task.app, task.request
    step = sig.prepared(None, None, {})
    known = app.tasks.get(step.task)
    plan = app.plan(step.task, step.options, known)
    if known is not None and plan.typing:
        known.check_call(*step.args, **step.kwargs)
    request.follow_ups.append(app.publisher.build(plan, step.args, step.kwargs, str(step.id)))
    raise Ignore("Replaced by new task")


def _in_place_of(request: Context, sig: Signature) -> Signature:
    """`sig` with what follows from `request` behind it, and the id that its sender waits for."""
    for callback in request.callbacks or ():
        sig.link(callback)
    for errback in request.errbacks or ():
        sig.link_error(errback)
    options: dict[str, Any] = {
        "group_id": request.group,
        "group_index": request.group_index,
        "root_id": request.root_id,
        "reply_to": request.reply_to,
    }
    options = {name: value for name, value in options.items() if value is not None}
    sig.set(task_id=request.id)
    whole = sig if not request.chain else chain(sig, *reversed(request.chain), app=sig.app)
    return whole.set(replaced_task_nesting=request.replaced_task_nesting + 1, **options)


def signature_from_request(
    task: Task[..., Any],
    request: Context | None,
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
    queue: str | None,
    options: Mapping[str, Any],
) -> Signature:
    """What `Task.signature_from_request` does."""
    request = task.request if request is None else request
    given = {**request.as_execution_options(), **options}
    routing = request.delivery_info or {}
    queue = queue or routing.get("routing_key")
    if queue is not None:
        given["queue"] = queue
    return Signature(
        task,
        request.args if args is None else args,
        request.kwargs if kwargs is None else kwargs,
        given,
    )
