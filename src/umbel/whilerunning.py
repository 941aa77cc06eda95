"""The part of a task that is what it can ask for while it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Unpack, cast

from umbel.arguments import checked_id, checked_state
from umbel.canvas import Signature
from umbel.exceptions import Retry
from umbel.keywords import RetryKeywords
from umbel.message import Result
from umbel.replacing import replace, replaced_here, send_in_place, signature_from_request
from umbel.request import Child, Context, Requests, request_of
from umbel.retrying import make_retry, next_try
from umbel.settings import result_life
from umbel.stored import encode_meta

if TYPE_CHECKING:
    from umbel.app import Umbel
    from umbel.backend import Backend
    from umbel.task import Task


class WhileRunning:
    """A task, as far as it runs here. `Task` derives from this."""

    app: Umbel
    name: str

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
            as_task(self),
            args,
            kwargs,
            exc,
            throw,
            max_retries,
            {**options, "countdown": countdown, "eta": eta},
        )

    def next_try(self, exc: BaseException) -> Retry | None:
        """The retry that `autoretry_for` asks for after `exc`, as `retry` makes it; or None.

        The one place where a task is retried without asking; the executor calls it, within
        `running`, with what the function raised. Raises what `retry` raises for a bad message.
        """
        return next_try(as_task(self), exc)

    def replace(self, sig: Signature | Mapping[str, Any]) -> Any:
        """End this execution, and have `sig` take its place: ``return self.replace(other.s(1))``.

        Its result is that of this task's id, and what follows from this task follows from it: its
        callbacks and errbacks, the rest of its chain. It is sent in one step with the end of this
        execution. Never returns in a worker; in a task that runs in its caller, `sig` is run there
        and its value returned. Raises `ImproperlyConfigured` for an empty chain.
        """
        return replace(as_task(self), sig)

    def on_replace(self, sig: Signature) -> Any:
        """What `replace` does at last with the signature that it has made."""
        if self.request.called_directly or self.request.is_eager:
            return replaced_here(as_task(self), sig)
        return send_in_place(as_task(self), sig)

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
        return signature_from_request(as_task(self), request, args, kwargs, queue, options)

    subtask_from_request = signature_from_request

    def add_trail(self, result: Child) -> Child:
        """Note a result as a child of this execution, unless `trail` is off; returns it."""
        if as_task(self).trail:
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
        if store is None or (request.is_eager and not as_task(self).options.store_eager_result):
            return
        if state is None:
            state = app.AsyncResult(task_id).state
        else:
            checked_state(state, f"update_state of task {self.name!r}")
        data = encode_meta(task_id, state, meta, form=app.result_format)
        life = result_life(app.conf, state)
        store.put([Result(task_id, state, data, app.clock.wall() + life if life else None)])


def as_task(part: WhileRunning) -> Task[..., Any]:
    """The task that `part` is a part of."""
    return cast("Task[..., Any]", part)
