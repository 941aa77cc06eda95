"""A task's own options about retries, and what they say about one exception."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeGuard, cast

from umbel.exceptions import TaskPredicate
from umbel.retry.after import retry_after
from umbel.retry.checks import ExceptionTypes, exception_types, finite, mapping, number_from
from umbel.retry.policies import Bounds, CeleryBackoff, Policy, Random

Backoff = Policy | Callable[[int, Any], float]
"""A policy, or a function from (retries made so far, exception) to seconds."""


@dataclass(frozen=True, slots=True)
class AutoRetry:
    """What a task says about when, after what and for how long it is tried again.

    Lists and single classes are taken for the classes, and kept as tuples. Raises `ValueError`
    for what isn't an exception class, a policy, or a number that can be one of seconds.
    """

    autoretry_for: ExceptionTypes | Mapping[type[BaseException], Backoff] = ()
    """Classes, or for each class its policy: that of the nearest base of an exception counts."""
    dont_autoretry_for: ExceptionTypes = ()
    dead_letter_for: ExceptionTypes = ()
    """Never retried, not even where the task asks for it."""
    retry_kwargs: Mapping[str, object] = field(default_factory=dict)
    retry_backoff: bool | float | Backoff = False
    """A policy or function; as in Celery: False: no backoff; True: factor 1; a number: the factor
    in seconds, cut to whole ones."""
    retry_backoff_max: float = 600
    """Seconds: the maximum of Celery's backoff; of a function, that of a ``Retry-After``."""
    retry_jitter: bool = True
    """Of Celery's backoff."""
    retry_max_elapsed: float | None = None
    """Seconds from the start of the first run, after which no next run is to start."""

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "autoretry_for", _autoretry_for(self.autoretry_for))
        for name in ("dont_autoretry_for", "dead_letter_for"):
            put(self, name, exception_types(name, getattr(self, name)))
        put(
            self,
            "retry_kwargs",
            dict(mapping("retry_kwargs", self.retry_kwargs, "{'countdown': 5}")),
        )
        if not _is_backoff(self.retry_backoff):
            _finite_backoff(self.retry_backoff)
        finite("retry_backoff_max", self.retry_backoff_max)
        if self.retry_max_elapsed is not None:
            number_from("retry_max_elapsed", self.retry_max_elapsed, 0)

    def wants(self, exc: BaseException) -> bool:
        """Whether `exc` leads to a retry that the task didn't ask for.

        `Ignore`, `Reject` and `Retry` never do, even with ``autoretry_for=(Exception,)``: by
        raising one, the task has said itself how the execution ends.
        """
        if isinstance(exc, (TaskPredicate, *self.dont_autoretry_for)):
            return False
        return isinstance(exc, tuple(self.autoretry_for)) and not self.is_final(exc)

    def is_final(self, exc: object) -> bool:
        """Whether `exc` is of a class that is never retried."""
        return isinstance(exc, self.dead_letter_for)

    def max_retries(self, otherwise: int | None) -> int | None:
        """The limit of retries that the task doesn't ask for: of `retry_kwargs`, or `otherwise`."""
        own = self.retry_kwargs.get("max_retries")
        return otherwise if own is None else cast(int, own)

    def named_backoff(self, exc: BaseException) -> Backoff | None:
        """What the task gives as a value for `exc`; None where it has Celery's options alone.

        Of several classes in a mapping, that which comes first in the order in which Python looks
        up a method of `exc`.
        """
        if isinstance(self.autoretry_for, Mapping):
            for kind in type(exc).__mro__:
                if kind in self.autoretry_for:
                    return self.autoretry_for[kind]
        return self.retry_backoff if _is_backoff(self.retry_backoff) else None

    def backoff(self, exc: BaseException) -> Backoff | None:
        """What decides on the delay after an `exc` that leads to a retry; None: other options."""
        named = self.named_backoff(exc)
        if named is not None or not self.retry_backoff:
            return named
        factor = int(max(1.0, float(cast(float, self.retry_backoff))))
        return CeleryBackoff(factor, int(self.retry_backoff_max), self.retry_jitter)

    def delay(
        self, backoff: Backoff, exc: BaseException, retries: int, random: Random, now: float
    ) -> float:
        """Seconds until the next run. `now` is in unix seconds.

        What `exc` carries as ``Retry-After`` is the least, but for Celery's own backoff, and as
        far as the maximum allows. Raises `ValueError` where a function doesn't give seconds.
        """
        if isinstance(backoff, CeleryBackoff):
            return backoff.draw(retries, random)
        if isinstance(backoff, Policy):
            own, ceiling = backoff.draw(retries, random), backoff.ceiling
        else:
            own, ceiling = _given(backoff, retries, exc), self.retry_backoff_max
        asked = retry_after(exc, now)
        return own if asked is None else max(own, min(asked, ceiling))

    def bounds(self, backoff: Backoff, exc: BaseException, retries: int) -> Bounds:
        """Between which seconds `delay` lies, for an `exc` without ``Retry-After``."""
        if isinstance(backoff, Policy):
            return backoff.bounds(retries)
        seconds = _given(backoff, retries, exc)
        return Bounds(seconds, seconds, seconds)

    def in_time(self, due_at: float, first_run_at: float) -> bool:
        """Whether a run may start at `due_at`, when the first one did at `first_run_at`."""
        limit = self.retry_max_elapsed
        return limit is None or due_at - first_run_at <= limit


def check_together(options: Mapping[str, object], where: str) -> None:
    """Raises `ValueError` for options of one task of which one has no effect beside the other."""
    kwargs = options.get("retry_kwargs")
    if options.get("attempts") is not None and (
        "max_retries" in options or (isinstance(kwargs, Mapping) and "max_retries" in kwargs)
    ):
        raise ValueError(
            f"{where} got attempts={options['attempts']!r} and max_retries; they say the same in "
            "two ways (attempts counts all runs, max_retries all but the first): leave one out"
        )
    backoff = options.get("retry_backoff")
    if not _is_backoff(backoff):
        return
    policy = isinstance(backoff, Policy)
    for name in ("retry_jitter", "retry_backoff_max") if policy else ("retry_jitter",):
        if name in options:
            raise ValueError(
                f"{where} got {name}={options[name]!r} and retry_backoff={backoff!r}, which "
                f"has a {'maximum' if name == 'retry_backoff_max' else 'jitter'} of its own: "
                f"leave {name} out"
            )


def max_retries_of(attempts: object) -> int:
    """The retries that make `attempts` runs in all. Raises `ValueError`."""
    if isinstance(attempts, bool) or not isinstance(attempts, int) or attempts < 1:
        raise ValueError(
            f"attempts is {attempts!r}; expected a whole number of runs from 1 "
            "(for no limit: max_retries=None)"
        )
    return attempts - 1


def _autoretry_for(value: object) -> ExceptionTypes | Mapping[type[BaseException], Backoff]:
    kinds = exception_types("autoretry_for", value)
    if not isinstance(value, Mapping):
        return kinds
    for kind, backoff in value.items():
        if not _is_backoff(backoff):
            raise ValueError(
                f"autoretry_for gives {backoff!r} for {kind.__name__}; expected a policy "
                "(Exponential, Linear or Fixed of umbel.retry) or a function from (retries, exc) "
                "to seconds"
            )
    return MappingProxyType(dict(value))


def _is_backoff(value: object) -> TypeGuard[Backoff]:
    return isinstance(value, Policy) or (callable(value) and not isinstance(value, type))


def _finite_backoff(value: object) -> None:
    try:
        finite("retry_backoff", value)
    except ValueError as error:
        raise ValueError(
            f"{error}, True, a policy (Exponential, Linear or Fixed of umbel.retry) or a function "
            "from (retries, exc) to seconds"
        ) from None


def _given(function: Callable[[int, Any], float], retries: int, exc: BaseException) -> float:
    name = getattr(function, "__qualname__", repr(function))
    asked = f"what {name}({retries}, {type(exc).__name__}) returned"
    return max(0.0, finite(asked, function(retries, exc)))
