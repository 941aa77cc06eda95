"""Celery's exceptions: their bases, their pickles, what they say."""

from __future__ import annotations

import builtins
import copy
import pickle
from datetime import UTC, datetime
from typing import Any

import pytest

from umbel import exceptions as x

BASES: dict[str, tuple[type[BaseException], ...]] = {
    "CeleryError": (Exception,),
    "ImproperlyConfigured": (x.CeleryError,),
    "SecurityError": (x.CeleryError,),
    "TaskPredicate": (x.CeleryError,),
    "Ignore": (x.TaskPredicate,),
    "Reject": (x.TaskPredicate,),
    "Retry": (x.TaskPredicate,),
    "RetryTaskError": (x.Retry,),
    "TaskError": (x.CeleryError,),
    "QueueNotFound": (x.TaskError, KeyError),
    "IncompleteStream": (x.TaskError,),
    "NotRegistered": (x.TaskError, KeyError),
    "AlreadyRegistered": (x.TaskError,),
    "TimeoutError": (x.TaskError, builtins.TimeoutError),
    "MaxRetriesExceededError": (x.TaskError,),
    "TaskRevokedError": (x.TaskError,),
    "InvalidTaskError": (x.TaskError,),
    "ChordError": (x.TaskError,),
    "BackendError": (Exception,),
    "BackendGetMetaError": (x.BackendError,),
    "BackendStoreError": (x.BackendError,),
    "OperationalError": (Exception,),
    "SoftTimeLimitExceeded": (Exception,),
    "TimeLimitExceeded": (Exception,),
    "WorkerLostError": (Exception,),
    "Terminated": (Exception,),
    "WorkerTerminate": (SystemExit,),
    "SystemTerminate": (x.WorkerTerminate,),
    "WorkerShutdown": (SystemExit,),
    "CeleryWarning": (UserWarning,),
    "AlwaysEagerIgnored": (x.CeleryWarning,),
    "DuplicateNodenameWarning": (x.CeleryWarning,),
    "DuplicateTaskNameWarning": (x.CeleryWarning,),
    "FixupWarning": (x.CeleryWarning,),
    "NotConfigured": (x.CeleryWarning,),
    "SecurityWarning": (x.CeleryWarning,),
    "CPendingDeprecationWarning": (PendingDeprecationWarning,),
    "CDeprecationWarning": (DeprecationWarning,),
    "CeleryCommandException": (Exception,),
}
NOT_CELERY_ERRORS = ("BackendError", "WorkerLostError", "SoftTimeLimitExceeded", "Terminated")


def test_a_star_brings_the_exceptions_alone() -> None:
    public = {name for name, each in vars(x).items() if _is_exception(each) and name[0] != "_"}
    assert set(x.__all__) == public
    found: dict[str, Any] = {}
    exec("from umbel.exceptions import *", found)
    assert set(found) - {"__builtins__"} == public


def _is_exception(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)


WHEN = datetime(2026, 12, 24, 18, tzinfo=UTC)
MADE: list[tuple[BaseException, dict[str, Any]]] = [
    (x.Reject("why", requeue=True), {"reason": "why", "requeue": True}),
    (x.Retry("text", ValueError("no"), 3.0, is_eager=True), {"message": "text", "is_eager": True}),
    (x.MaxRetriesExceededError("m", task_args=(1,), task_kwargs={"k": 2}),
     {"task_args": (1,), "task_kwargs": {"k": 2}}),
    (x.BackendGetMetaError("m", task_id="t"), {"task_id": "t"}),
    (x.BackendStoreError("m", state="SUCCESS", task_id="t"), {"state": "SUCCESS", "task_id": "t"}),
    (x.CeleryCommandException("m", 3), {"message": "m", "exit_code": 3}),
    (x.NotRegistered("a.b"), {"args": ("a.b",)}),
    (x.UnknownSetting("no such"), {"args": ("no such",)}),
    (x.SoftTimeLimitExceeded(3.0), {"args": (3.0,)}),
    (x.Replaced(4), {"result": 4}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "bases"), BASES.items())
def test_an_exception_has_its_bases(name: str, bases: tuple[type[BaseException], ...]) -> None:
    for base in bases:
        assert issubclass(getattr(x, name), base)
    assert issubclass(getattr(x, name), x.CeleryError) is (
        x.CeleryError in bases
        or any(issubclass(base, x.CeleryError) for base in bases)
        or name in ("CeleryError", "OperationalError", "CeleryCommandException")
    )


@pytest.mark.parametrize("name", NOT_CELERY_ERRORS)
def test_what_is_not_a_celery_error(name: str) -> None:
    assert not issubclass(getattr(x, name), x.CeleryError)


@pytest.mark.parametrize("name", [name for name in BASES if name not in ("Reject", "Retry")])
def test_every_exception_is_pickled(name: str) -> None:
    error = getattr(x, name)("text")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (type(error), str(error))


@pytest.mark.parametrize(("error", "attributes"), MADE, ids=lambda each: type(each).__name__)
def test_what_an_exception_carries_is_pickled(
    error: BaseException, attributes: dict[str, Any]
) -> None:
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is type(error)
        assert {name: getattr(again, name) for name in attributes} == attributes
        assert str(again) == str(error)


@pytest.mark.parametrize(
    ("retry", "text"),
    [
        (x.Retry("m"), "m"),
        (x.Retry(when=3), "Retry in 3s"),
        (x.Retry(exc=ValueError("no"), when=3), "Retry in 3s: ValueError('no')"),
        (x.Retry(when=WHEN), "Retry at 2026-12-24 18:00:00+00:00"),
    ],
)
def test_what_a_retry_says(retry: x.Retry, text: str) -> None:
    assert str(retry) == text
