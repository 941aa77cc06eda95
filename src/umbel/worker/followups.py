"""What follows from the end of a task: its callbacks, the next step of its chain, its errbacks.

Only messages and results are made here. They are sent and stored in one step with the end of the
delivery that they follow from, by its settlement. Each has an id that is worked out from that
delivery's message, unless its sender gave it one: whoever ends the same message once more, after a
crash, sends the same.
"""

from __future__ import annotations

import inspect
import logging
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from umbel.app import Umbel
from umbel.canvas import Signature, chain, from_dict
from umbel.codec import pack
from umbel.exceptions import ImproperlyConfigured, InvalidTaskError
from umbel.message import Message, Posting
from umbel.request import Context, running
from umbel.task import Task
from umbel.typed import signature_of

logger = logging.getLogger("umbel.worker")


@dataclass(frozen=True, slots=True)
class Errback:
    """A task that is called here, with the request, the exception and the traceback as text."""

    task: Task[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def check(request: Context) -> None:
    """Raises `InvalidTaskError` for a request with something behind it that can't be run here."""
    if request.chord:
        raise InvalidTaskError(_refusal("'chord'"))
    for part in ("callbacks", "errbacks", "chain"):
        for form in getattr(request, part) or ():
            try:
                from_dict(form)
            except TypeError as error:
                raise InvalidTaskError(f"{part} in the body: {error}") from error
            except ImproperlyConfigured as error:
                kind = form.get("subtask_type") or "chord"
                raise InvalidTaskError(_refusal(f"a {kind} in its {part}")) from error


def _refusal(what: str) -> str:
    return (
        f"the message carries {what}, which this release doesn't run; "
        "send it to a worker that does, or requeue it after an upgrade"
    )


class FollowUps:
    """Makes them, for one worker process."""

    def __init__(self, app: Umbel) -> None:
        self._app = app

    def of_success(self, request: Context, value: object) -> list[Posting]:
        """The callbacks, then the next step of the chain. Raises what can't be sent."""
        postings = []
        for place, form in enumerate(request.callbacks or ()):
            postings.append(self._posting(form, (value,), request, f"link {place}"))
        if request.chain:
            *behind, following = request.chain
            postings.append(self._posting(following, (value,), request, "chain", behind))
        return postings

    def of_failure(self, request: Context, *, surely: bool = False) -> list[Posting]:
        """The errbacks that are sent. One that can't be sent is logged, and holds up no other.

        `surely` leaves out what goes through an exchange, which may know no queue for it.
        """
        postings = []
        for place, form in enumerate(request.errbacks or ()):
            try:
                if self._called_here(form) is not None:
                    continue
                posting = self._posting(form, (request.id,), request, f"link_error {place}")
                pack(posting.message)
                if surely and posting.exchange:
                    raise ValueError(f"the exchange {posting.exchange!r} may know no queue for it")
            except Exception:
                logger.exception("An errback of task %s[%s] can't be sent.", *_names(request))
                continue
            postings.append(posting)
        return postings

    def called_here(self, request: Context) -> tuple[Errback, ...]:
        """The errbacks that are called in this process."""
        found = []
        for form in request.errbacks or ():
            try:
                errback = self._called_here(form)
            except (TypeError, ImproperlyConfigured):
                continue  # said by `of_failure`
            if errback is not None:
                found.append(errback)
        return tuple(found)

    def behind(self, request: Context) -> Iterator[Signature]:
        """The steps after this one that somebody may wait for: they have an id already."""
        for form in reversed(request.chain or ()):
            try:
                step = from_dict(form, self._app)
            except (TypeError, ImproperlyConfigured):
                continue
            for each in step.unchained() if isinstance(step, chain) else (step,):
                if isinstance(each.id, str) and each.id:
                    yield each

    def _called_here(self, form: Mapping[str, Any]) -> Errback | None:
        errback = from_dict(form, self._app)
        task = self._app.tasks.get(errback.task)
        if task is None or task.bound or task.is_async:
            return None
        if _positional(task.run) - len(errback.args) <= 1:
            return None
        return Errback(task, errback.args, errback.kwargs)

    def _posting(
        self,
        form: Mapping[str, Any],
        args: tuple[Any, ...],
        request: Context,
        place: str,
        behind: Sequence[Mapping[str, Any]] = (),
    ) -> Posting:
        app = self._app
        options: dict[str, Any] = {
            "root_id": request.root_id or request.id,
            "parent_id": request.id,
        }
        if behind:
            options["chain"] = list(behind)
        step = from_dict(form, app).prepared(args, None, options, _ids(request, place))
        task = app.tasks.get(step.task)
        with running(task, request):  # as for what the task itself sends
            plan = app.plan(step.task, step.options, task, step.args, step.kwargs)
        return app.publisher.build(plan, step.args, step.kwargs, str(step.id))


def _names(request: Context) -> tuple[str | None, str | None]:
    return request.task, request.id


def _ids(request: Context, place: str) -> Callable[[], str]:
    """Ids for what follows from this very message at `place`."""
    message = request.delivery.message if request.delivery is not None else None
    tag = message.properties.get("delivery_tag") if isinstance(message, Message) else ""
    numbers = count()
    base = f"{request.id}\0{tag}\0{request.retries}\0{place}"
    return lambda: str(uuid.uuid5(uuid.NAMESPACE_OID, f"{base}\0{next(numbers)}"))


def _positional(function: Callable[..., object]) -> float:
    """How many positional arguments it can take."""
    try:
        parameters = signature_of(function).parameters.values()
    except (TypeError, ValueError):
        return 0
    kinds = [each.kind for each in parameters]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return float("inf")
    return sum(
        kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        for kind in kinds
    )
