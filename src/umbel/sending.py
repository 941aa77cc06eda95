"""Send a task by its name, and find out where the messages of an app go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from umbel.arguments import checked_id, named_arguments, positional_arguments
from umbel.canvas import check_links
from umbel.exceptions import AlwaysEagerIgnored
from umbel.options import check_call_names
from umbel.publish import add_children, new_id
from umbel.result import AsyncResult
from umbel.routing import Router
from umbel.settings import Settings
from umbel.warning import warn

if TYPE_CHECKING:
    from umbel.app import Umbel


def send_by_name(
    app: Umbel,
    name: str,
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
    task_id: str | None,
    options: Mapping[str, Any],
) -> AsyncResult[Any]:
    """What `Umbel.send_task` does, which calls it."""
    check_call_names(options, f"send_task of {name!r}")
    if app.conf.task_always_eager:
        warn(
            f"send_task({name!r}) sends a message although task_always_eager is set, since it "
            "takes names, not tasks; tests may want app.tasks[name].apply_async()",
            AlwaysEagerIgnored,
        )
    if not isinstance(name, str) or not name:
        raise TypeError(f"the name of a task is {name!r:.80}; expected a text")
    task = app.tasks.get(name)
    call = check_links(options)
    plan = app.plan(name, call, task)
    task_id = new_id() if task_id is None else checked_id(task_id)
    posting = app.publisher.build(
        plan, positional_arguments(args, name), named_arguments(kwargs, name), task_id
    )
    app.publisher.send((posting,), plan.policy)
    result: AsyncResult[Any] = AsyncResult(
        task_id, app, task_name=name, ignored=plan.ignore_result is True
    )
    if options.get("add_to_parent", True):
        add_children((result,))
    return result


def make_router(conf: Settings) -> Router:
    """Where messages go by these settings. Raises `ImproperlyConfigured`."""
    return Router(
        conf.task_routes,
        conf.task_queues,
        default_queue=conf.task_default_queue,
        default_exchange=conf.task_default_exchange,
        default_routing_key=conf.task_default_routing_key,
        create_missing=conf.task_create_missing_queues,
    )
