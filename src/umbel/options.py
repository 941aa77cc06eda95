"""What holds for a task and for one call of it: the one place where options are merged.

The options that there are stand in `umbel.keywords`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from datetime import tzinfo
from typing import Any, Final, cast

import msgspec

from umbel.compression import find_compression
from umbel.exceptions import ImproperlyConfigured, LaterSetting
from umbel.instants import When
from umbel.keywords import CALL_NAMES, TASK_NAMES
from umbel.protocol import Draft
from umbel.request import executing
from umbel.retry import AutoRetry, ExceptionTypes, RetryPolicy
from umbel.retry.auto import check_together, max_retries_of
from umbel.retry.checks import exception_types
from umbel.routes import NO_CALL
from umbel.routing import Address, Call, Router
from umbel.saferepr import safe_repr
from umbel.settings import Settings, resolve_acks_on_failure, resolve_acks_on_timeout
from umbel.settings_kinds import DELIVERY_MODE, WrongValue
from umbel.stamping import checked_names
from umbel.typed import Typed
from umbel.warning import warn

_AUTORETRY = tuple(each.name for each in fields(AutoRetry))
_BOOLEAN: Final = frozenset(
    {
        "acks_late", "acks_on_failure", "acks_on_timeout", "acks_on_failure_or_timeout",
        "reject_on_worker_lost", "retry_on_worker_lost", "ignore_result", "track_started", "trail",
        "store_errors_even_if_ignored", "store_eager_result", "send_events", "dead_letters",
        "typing", "retry_jitter",
    }
)  # fmt: skip
_SETTING_OF: Final[Mapping[str, str]] = {
    "serializer": "task_serializer",
    "compression": "task_compression",
    "priority": "task_default_priority",
    "rate_limit": "task_default_rate_limit",
    "acks_on_failure_or_timeout": "task_acks_on_failure_or_timeout",
}
_DEFAULT_OF: Final[Mapping[str, Any]] = {
    **{each.name: getattr(AutoRetry(), each.name) for each in fields(AutoRetry)},
    "send_events": True,
}
_NOT_YET: Final[Mapping[str, str]] = {
    "rate_limit": "the release that brings rate limits",
    "timeout": "the release that brings RabbitMQ",
    "confirm_timeout": "the release that brings RabbitMQ",
}
"""Known options that have no effect, and what honours them."""
_REFUSED: Final[Mapping[str, str]] = {
    "backend": "the results of all tasks are kept by their app (result_backend); for another "
    "store, make another app",
    "chord": "chords come with the release 'Workflows'",
    "declare": "calls have it: apply_async(declare=[…])",
    "immediate": "no broker keeps it: messages wait for a worker",
    "router": "routers are named in task_routes",
    "task_type": "the name says which task it is",
}
"""Known options that would change a task if they were left out silently, and why."""
_CHANGES_NOTHING: Final[tuple[object, ...]] = (None, False, [], ())


class TaskOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a task is executed, once its own options, the settings and the defaults are merged."""

    typing: bool
    max_retries: int | None
    default_retry_delay: float
    ignore_result: bool
    trail: bool
    store_errors_even_if_ignored: bool
    store_eager_result: bool
    track_started: bool
    acks_late: bool
    acks_on_failure: bool
    acks_on_timeout: bool
    reject_on_worker_lost: bool
    retry_on_worker_lost: bool
    max_redeliveries: int
    dead_letters: bool
    throws: ExceptionTypes
    resultrepr_maxsize: int
    time_limit: float | None
    soft_time_limit: float | None
    auto: AutoRetry


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How a message goes out, once the options of the call and all below them are merged."""

    task: str
    typing: bool
    """The arguments are checked against the function's parameters."""
    address: Address
    options: Mapping[str, Any]
    """What the call, the task or the route say beyond the fields here; none of them None."""
    priority: int
    expires: When | None
    time_limit: float | None
    soft_time_limit: float | None
    ignore_result: bool | None
    policy: RetryPolicy | None
    """How a refused publish is repeated; None: not at all."""
    max_size: int
    repr_levels: int
    zone: tzinfo
    serializer: str
    compression: str | None
    typed: Typed | None
    """The parameters whose arguments are lowered to plain data."""
    delivery_mode: int
    draft: Draft | None
    """What all messages of plain calls share: there are no `options`, and the body is JSON."""


def merge_task(declared: Mapping[str, Any], conf: Settings) -> TaskOptions:
    """The execution options of a task: its own > the setting > the default.

    An own option of None leaves it to the setting, except `max_retries`, where it means no limit.
    Raises `ValueError` for a soft time limit above the hard one.
    """

    def own(name: str, otherwise: Any) -> Any:
        value = declared.get(name)
        return otherwise if value is None else value

    both = declared.get("acks_on_failure_or_timeout")
    options = TaskOptions(
        typing=own("typing", True),
        max_retries=_max_retries(declared),
        default_retry_delay=own("default_retry_delay", 180.0),
        ignore_result=own("ignore_result", conf.task_ignore_result),
        trail=own("trail", True),
        store_errors_even_if_ignored=own(
            "store_errors_even_if_ignored", conf.task_store_errors_even_if_ignored
        ),
        store_eager_result=own("store_eager_result", conf.task_store_eager_result),
        track_started=own("track_started", conf.task_track_started),
        acks_late=own("acks_late", conf.task_acks_late),
        acks_on_failure=resolve_acks_on_failure(conf, declared.get("acks_on_failure"), both),
        acks_on_timeout=resolve_acks_on_timeout(conf, declared.get("acks_on_timeout"), both),
        reject_on_worker_lost=own("reject_on_worker_lost", bool(conf.task_reject_on_worker_lost)),
        retry_on_worker_lost=own("retry_on_worker_lost", conf.task_retry_on_worker_lost),
        max_redeliveries=own("max_redeliveries", conf.task_max_redeliveries),
        dead_letters=own("dead_letters", conf.task_dead_letters),
        throws=exception_types("throws", own("throws", ())),
        resultrepr_maxsize=own("resultrepr_maxsize", 1024),
        time_limit=own("time_limit", conf.task_time_limit),
        soft_time_limit=own("soft_time_limit", conf.task_soft_time_limit),
        auto=AutoRetry(**{name: declared[name] for name in _AUTORETRY if name in declared}),
    )
    _check_limits(options)
    return options


def merge_call(
    task_name: str,
    call: Mapping[str, Any],
    declared: Mapping[str, Any],
    task: TaskOptions | None,
    router: Router,
    conf: Settings,
    zone: tzinfo,
    typed: Typed | None = None,
    told: Call = NO_CALL,
) -> Plan:
    """How one call goes out: its own option > the task's > the route's > the setting > default.

    An option that the call gives as None counts as given: it takes back what the task says.
    `declared` are the task's own options, `task` is None for a name that isn't known here; of
    such a task the limits and `ignore_result` are left to the worker. `told` is for functions in
    `task_routes`.
    Raises `TypeError` and `ValueError` for options that can't be, and what `Router.route` raises.
    """
    given = {**declared, **call}
    name = call.get("route_name")
    if name is not None and not isinstance(name, str):
        raise TypeError(
            f"route_name is {safe_repr(name, 80)}; expected the name of a task, as in task_routes"
        )
    address, routed = router.route(name or task_name, given, told)

    def limit(name: str) -> float | None:
        value = routed.get(name)
        if value is None and name not in given and task is not None:
            return cast("float | None", getattr(task, name))
        return seconds_option(name, value)

    priority = routed.get("priority")
    if priority is None and conf.task_inherit_parent_priority:
        priority = _priority_of_parent()
    delivery_mode = routed.get("delivery_mode")
    ignore_result = routed.get("ignore_result", None if task is None else task.ignore_result)
    retry = routed.get("retry", conf.task_publish_retry)
    priority = priority_option((conf.task_default_priority or 0) if priority is None else priority)
    if address.top is not None and priority > address.top:
        priority = address.top
    serializer = cast("str | None", routed.get("serializer")) or conf.task_serializer
    compression = cast("str | None", routed.get("compression")) or conf.task_compression
    time_limit, soft_time_limit = limit("time_limit"), limit("soft_time_limit")
    mode = (
        conf.task_default_delivery_mode
        if delivery_mode is None
        else delivery_mode_option(delivery_mode)
    )
    is_plain = not routed and serializer == "json" and compression is None and typed is None
    draft = None
    if is_plain:
        draft = Draft(
            task=task_name,
            routing_key=address.routing_key,
            exchange=address.exchange,
            priority=priority,
            time_limit=time_limit,
            soft_time_limit=soft_time_limit,
            ignore_result=cast("bool | None", ignore_result),
            delivery_mode=mode,
        )
    return Plan(
        task=task_name,
        typing=task is not None and task.typing,
        address=address,
        options=routed,
        priority=priority,
        expires=cast("When | None", routed.get("expires")),
        time_limit=time_limit,
        soft_time_limit=soft_time_limit,
        ignore_result=cast("bool | None", ignore_result),
        policy=_policy(routed, conf) if retry else None,
        max_size=conf.task_max_message_size,
        repr_levels=conf.task_repr_maxlevels,
        zone=zone,
        serializer=serializer,
        compression=compression,
        typed=typed,
        delivery_mode=mode,
        draft=draft,
    )


def check_call_names(
    options: Mapping[str, object], where: str, names: frozenset[str] = CALL_NAMES
) -> None:
    """Raises for an option of a call that there isn't; warns of one that isn't honoured yet."""
    for name, value in options.items():
        if name not in names:
            if name not in checked_names(options.get("stamped_headers")):
                _refuse(name, value, where, names)
        elif name in _NOT_YET:
            _warn(name, value, where)


def check_task_names(options: Mapping[str, object], where: str) -> None:
    """Raises for an option of a task that there isn't; warns of one that isn't honoured yet."""
    for name, value in options.items():
        if name not in TASK_NAMES:
            _refuse(name, value, where, TASK_NAMES)
        elif name in _NOT_YET:
            _warn(name, value, where)
    AutoRetry(**{name: cast(Any, options[name]) for name in _AUTORETRY if name in options})
    _max_retries(options)
    for name in ("max_retries", "max_redeliveries"):
        _count_option(name, options.get(name), "None for no limit" if name == "max_retries" else "")
    for name in _BOOLEAN.intersection(options):
        value = options[name]
        if value is not None and not (isinstance(value, int) and value in (0, 1)):
            raise ValueError(
                f"{name} is {safe_repr(value, 80)}; expected True or False, or None for what the "
                "setting says"
            )
    check_together(options, where)
    exception_types("throws", options.get("throws", ()))
    if options.get("compression") is not None:
        find_compression(options["compression"])
    delay = options.get("default_retry_delay", 0)
    if isinstance(delay, bool) or not isinstance(delay, (int, float)) or not 0 <= delay < 1e9:
        raise ValueError(
            f"default_retry_delay is {delay!r}; expected a number of seconds, such as 180"
        )
    for name in ("time_limit", "soft_time_limit"):
        seconds_option(name, options.get(name))
    priority = options.get("priority")
    if priority is not None:
        priority_option(priority)


def _count_option(name: str, value: object, none: str) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(
            f"{name} is {safe_repr(value, 80)}; expected a whole number from 0"
            + (f", or {none}" if none else "")
        )


def _refuse(name: str, value: object, where: str, known: Iterable[str]) -> None:
    if name in _NOT_YET:
        return _warn(name, value, where)
    if name in _REFUSED:
        if any(value is each or value == each for each in _CHANGES_NOTHING):
            return None
        raise ImproperlyConfigured(
            f"{where} got {name}={value!r:.80}: {_REFUSED[name]}. Leave {name} out"
        )
    near = difflib.get_close_matches(name, sorted(known), n=3)
    question = (
        f"did you mean {' or '.join(map(repr, near))}?"
        if near
        else "known: " + ", ".join(sorted(known))
    )
    raise TypeError(f"{where} got the option {name!r}, which doesn't exist; {question}")


def _warn(name: str, value: object, where: str) -> None:
    # As with a setting: said, and not a reason to stop an app that comes from Celery.
    if value is not None:
        warn(f"{where}: {name} has no effect yet; it is honoured by {_NOT_YET[name]}", LaterSetting)


def declared_option(name: str, declared: Mapping[str, Any], conf: Settings) -> Any:
    """An option that isn't one of `TaskOptions`, as an attribute of a task: its own, else the
    setting, else the default."""
    value = declared.get(name)
    if value is None and name in _SETTING_OF:
        return conf[_SETTING_OF[name]]
    return _DEFAULT_OF.get(name) if value is None else value


def _max_retries(declared: Mapping[str, Any]) -> int | None:
    attempts = declared.get("attempts")
    if attempts is not None:
        return max_retries_of(attempts)
    return cast("int | None", declared.get("max_retries", 3))


def _check_limits(options: TaskOptions) -> None:
    hard, soft = options.time_limit, options.soft_time_limit
    if hard is not None and soft is not None and soft > hard:
        raise ValueError(
            f"soft_time_limit is {soft} s and time_limit is {hard} s; "
            "the soft limit must not be above the hard one"
        )


def seconds_option(name: str, value: object) -> float | None:
    """A time limit; None or 0 is no limit. Raises `ValueError`."""
    if value is None or value == 0:
        return None
    if isinstance(value, (int, float)) and 0 < value < 1e9:
        return value
    raise ValueError(
        f"{name} is {safe_repr(value, 80)}; expected a number of seconds, or None for no limit"
    )


def priority_option(value: object) -> int:
    """A priority. Raises `ValueError`."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 9:
        return value
    raise ValueError(
        f"priority is {safe_repr(value, 80)}; expected a whole number from 0 to 9, where 9 is "
        "served first"
    )


def delivery_mode_option(value: object) -> int:
    """The number of a delivery mode. Raises `ValueError`."""
    try:
        return cast(int, DELIVERY_MODE.accept(value))
    except WrongValue:
        raise ValueError(
            f"delivery_mode is {safe_repr(value, 80)}; expected {DELIVERY_MODE.text}"
        ) from None


def _priority_of_parent() -> object:
    """The priority of the message that a worker runs a task for here; None outside of tasks."""
    entry = executing()
    info = None if entry is None else entry.request.delivery_info
    return None if info is None else info.get("priority")


def _policy(options: Mapping[str, Any], conf: Settings) -> RetryPolicy:
    base = RetryPolicy.of(conf.task_publish_retry_policy)
    own = options.get("retry_policy")
    return base if own is None else RetryPolicy.of(own, base)
