"""The options that a task, a call of it and a retry can have, with their types.

Below each that its name doesn't explain stands what it means; the page of options is made of that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, timedelta
from typing import Any, Final, TypedDict

from umbel.instants import When
from umbel.retry import Backoff
from umbel.routing import Exchange, Queue

Handler = Callable[..., object]


class RetryKeywords(TypedDict, total=False):
    """What `Task.retry` takes beside its own parameters."""

    expires: When | None
    """Seconds from now, or an instant, after which it isn't started any more; naive times are in
    the app's zone."""
    queue: str | Queue | None
    exchange: str | Exchange | None
    exchange_type: str | None
    routing_key: str | None
    declare: Iterable[str | Queue | Exchange] | None
    """Queues that are made to exist before it is sent."""
    priority: int | None
    """0 to 9; 9 is served first."""
    headers: Mapping[str, Any] | None
    time_limit: float | None
    soft_time_limit: float | None
    retry: bool | None
    """Repeat the publish where the broker is away, by `retry_policy`."""
    retry_policy: Mapping[str, object] | None
    shadow: str | None
    ignore_result: bool | None
    argsrepr: str | None
    kwargsrepr: str | None
    root_id: str | None
    parent_id: str | None
    group_id: str | None
    group_index: int | None
    reply_to: str | None
    add_to_parent: bool
    serializer: str | None
    compression: str | None


class CallKeywords(RetryKeywords, total=False):
    """The options of one call, as `Task.apply_async` and `Umbel.send_task` take them."""

    link: Any
    """A signature, or a list of them: sent with the return value, once the task has succeeded."""
    link_error: Any
    """The same, for when it has failed for good."""
    chain: Any
    """Signatures of what comes after it, the last one first."""
    retries: int | None
    """The retries that it counts as having behind it."""
    replaced_task_nesting: int | None
    result_cls: type[Any] | None
    """The class of the result, in place of `AsyncResult`."""
    route_name: str | None
    """The name that it is routed by, in place of the task's."""
    stamped_headers: Iterable[str] | None
    """The names of the options that are stamps: they go with the message as they are."""
    connection: Any
    producer: Any
    publisher: Any
    """What the app's `connection_for_write` or `producer_or_acquire` gave; it changes nothing."""
    mandatory: bool | None
    """Changes nothing: a message that no queue takes is always `Unroutable`."""
    timeout: float | None
    confirm_timeout: float | None

    delivery_mode: int | str | None
    """2 (``"persistent"``) or 1 (``"transient"``): may a broker that can forget it do so? A retry
    keeps it."""
    countdown: float | timedelta | None
    """Seconds until it is due; wins over `eta`, unless it is 0."""
    eta: datetime | date | str | None
    """When it is due; naive times are in the app's zone."""


class TaskKeywords(TypedDict, total=False):
    """The options of a task, as ``@app.task(...)`` takes them; None leaves it to the setting."""

    name: str | None
    base: type[Any] | None
    """The class of the task: `umbel.Task`, or one derived from it."""
    filter: Callable[[Any], Any] | None
    """What the decorator gives is made of the task by this."""
    typing: bool | None
    pydantic: bool
    """Arguments are validated as the models they are annotated with; needs the package."""
    pydantic_strict: bool
    pydantic_context: Mapping[str, Any] | None
    pydantic_dump_kwargs: Mapping[str, Any] | None
    rate_limit: str | float | None
    """``"10/m"``; has no effect yet."""
    max_retries: int | None
    """None: no limit."""
    attempts: int | None
    """All runs: `max_retries` and one."""
    default_retry_delay: float
    ignore_result: bool | None
    trail: bool
    store_errors_even_if_ignored: bool | None
    store_eager_result: bool | None
    track_started: bool | None
    acks_late: bool | None
    acks_on_failure: bool | None
    acks_on_timeout: bool | None
    acks_on_failure_or_timeout: bool | None
    reject_on_worker_lost: bool | None
    retry_on_worker_lost: bool | None
    max_redeliveries: int | None
    dead_letters: bool | None
    throws: type[BaseException] | Iterable[type[BaseException]]
    resultrepr_maxsize: int
    autoretry_for: (
        type[BaseException] | Iterable[type[BaseException]] | Mapping[type[BaseException], Backoff]
    )
    """Classes, or for each class its policy."""
    dont_autoretry_for: type[BaseException] | Iterable[type[BaseException]]
    retry_kwargs: Mapping[str, object]
    retry_backoff: bool | float | Backoff
    """True, a factor, a policy of `umbel.retry`, or a function ``(retries, exc) -> seconds``."""
    retry_backoff_max: float
    retry_jitter: bool
    retry_max_elapsed: float | None
    """Seconds from the start of the first run, after which no next run is to start."""
    dead_letter_for: type[BaseException] | Iterable[type[BaseException]]
    """Never retried, not even where the task asks for it."""
    queue: str | Queue | None
    exchange: str | Exchange | None
    exchange_type: str | None
    routing_key: str | None
    priority: int | None
    expires: When | None
    time_limit: float | None
    soft_time_limit: float | None
    serializer: str | None
    compression: str | None
    shared: bool
    lazy: bool
    send_events: bool
    before_start: Handler
    on_success: Handler
    on_retry: Handler
    on_failure: Handler
    after_return: Handler


CALL_NAMES: Final = frozenset(CallKeywords.__annotations__)
RETRY_NAMES: Final = CALL_NAMES - {
    "link", "link_error", "chain", "delivery_mode", "retries", "replaced_task_nesting",
    "result_cls", "route_name", "stamped_headers",
}  # fmt: skip
"""A retry keeps these of its task."""
TASK_NAMES: Final = frozenset(TaskKeywords.__annotations__) - {"base", "filter"}
HANDLERS: Final = ("before_start", "on_success", "on_retry", "on_failure", "after_return")
SEND_NAMES: Final = CALL_NAMES & TASK_NAMES - {"ignore_result"}
"""Options of a task that are the defaults of its calls."""
