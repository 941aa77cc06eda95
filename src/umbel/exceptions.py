"""Every exception that Umbel raises, as one tree.

::

    UmbelError                        (Celery's name: CeleryError)
    ├── ImproperlyConfigured
    ├── SecurityError
    ├── TaskPredicate                 raised by a task to say how it ends
    │   ├── Ignore
    │   │   └── Replaced
    │   ├── Reject
    │   └── Retry
    ├── TaskError
    │   ├── QueueNotFound             (also KeyError)
    │   ├── IncompleteStream
    │   ├── NotRegistered             (also KeyError)
    │   ├── AlreadyRegistered
    │   ├── TimeoutError
    │   ├── MaxRetriesExceededError
    │   ├── TaskRevokedError
    │   ├── InvalidTaskError
    │   └── ChordError
    ├── OperationalError              the broker or the store can't serve us now
    │   ├── BrokerUnavailable         nothing was done, the call may be repeated
    │   ├── PublishUnknown            the effect is unknown: the reply was lost
    │   └── StoreUnavailable
    ├── Unroutable                    no queue would take the message
    ├── EncodeError                   (also TypeError) a value that can't be carried
    ├── DecodeError                   (also ValueError) bytes that can't be read
    ├── MessageTooLarge               (also ValueError)
    ├── RunLost                       this run is taken for dead: it holds nothing any more
    ├── NotProvided                   (also AttributeError) a name of Celery's that isn't here
    ├── CeleryCommandException        ends a command with an exit code
    └── UnknownSetting                (also AttributeError, KeyError)
    BackendError
    ├── BackendGetMetaError
    └── BackendStoreError
    PoolError                         what Celery takes from its pool library
    ├── SoftTimeLimitExceeded
    ├── TimeLimitExceeded
    ├── WorkerLostError
    └── Terminated
    SystemExit
    ├── WorkerTerminate
    └── WorkerShutdown
    UserWarning
    └── UmbelWarning                  (Celery's name: CeleryWarning)
        ├── AlwaysEagerIgnored, DuplicateNodenameWarning, DuplicateTaskNameWarning,
        ├── FixupWarning, NotConfigured, SecurityWarning
        ├── LaterSetting              a known setting that a later release honours
        ├── NoWorkerYet               a broker file that no worker has ever opened
        └── RoutingKeyAlone           a routing key without an exchange
    DeprecationWarning
    └── CDeprecationWarning
    PendingDeprecationWarning
    └── CPendingDeprecationWarning

Where a docstring reads as a sentence to a user, it is the default message.
"""

from __future__ import annotations

import builtins
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from umbel.message import Posting

__all__ = [
    "AlreadyRegistered",
    "AlwaysEagerIgnored",
    "BackendError",
    "BackendGetMetaError",
    "BackendStoreError",
    "BrokerUnavailable",
    "CDeprecationWarning",
    "CPendingDeprecationWarning",
    "CeleryCommandException",
    "CeleryError",
    "CeleryWarning",
    "ChordError",
    "DecodeError",
    "DuplicateNodenameWarning",
    "DuplicateTaskNameWarning",
    "EncodeError",
    "FixupWarning",
    "Ignore",
    "ImproperlyConfigured",
    "IncompleteStream",
    "InvalidTaskError",
    "LaterSetting",
    "MaxRetriesExceededError",
    "MessageTooLarge",
    "NoWorkerYet",
    "NotConfigured",
    "NotProvided",
    "NotRegistered",
    "OperationalError",
    "PoolError",
    "PublishUnknown",
    "QueueNotFound",
    "Reject",
    "Replaced",
    "Retry",
    "RetryTaskError",
    "RoutingKeyAlone",
    "RunLost",
    "SecurityError",
    "SecurityWarning",
    "SoftTimeLimitExceeded",
    "StoreUnavailable",
    "SystemTerminate",
    "TaskError",
    "TaskPredicate",
    "TaskRevokedError",
    "Terminated",
    "TimeLimitExceeded",
    "TimeoutError",
    "UmbelError",
    "UmbelWarning",
    "UnknownSetting",
    "Unroutable",
    "WorkerLostError",
    "WorkerShutdown",
    "WorkerTerminate",
]


class UmbelError(Exception):
    """Base of Umbel's errors."""


class ImproperlyConfigured(UmbelError):
    """The application's configuration can't work as it stands."""


class UnknownSetting(ImproperlyConfigured, AttributeError, KeyError):
    """A setting of this name doesn't exist."""

    def __str__(self) -> str:
        return Exception.__str__(self)


class SecurityError(UmbelError):
    """Content that isn't trusted."""


class TaskPredicate(UmbelError):
    """Raised inside a task to say how the execution ends; not a failure."""


class Ignore(TaskPredicate):
    """The task asks that nothing be stored of this execution."""


class Replaced(Ignore):
    """The task runs in its caller, and another has run in its place; `result` is that one's."""

    def __init__(self, result: Any) -> None:
        super().__init__(result)
        self.result = result


class Reject(TaskPredicate):
    """The task refuses its message.

    `requeue=False` ends as FAILURE in the dead letters; `requeue=True` delivers again, counted.
    """

    def __init__(self, reason: object = None, requeue: bool = False) -> None:
        super().__init__(reason, requeue)
        self.reason = reason
        self.requeue = requeue

    def __repr__(self) -> str:
        return f"reject requeue={self.requeue}: {self.reason}"


class Retry(TaskPredicate):
    """The task will be tried again; `when` is a due instant or a number of seconds."""

    posting: Posting | None = None
    """The message of the next try, to be sent in one step with the end of this one."""

    def __init__(
        self,
        message: str | None = None,
        exc: BaseException | None = None,
        when: datetime | float | None = None,
        is_eager: bool = False,
        sig: Any = None,
    ) -> None:
        self.message = message
        self.exc = exc
        self.when = when
        self.is_eager = is_eager
        self.sig = sig
        super().__init__(message, exc, when)

    @property
    def excs(self) -> str | None:
        """The cause's representation, as Celery stores it."""
        return None if self.exc is None else repr(self.exc)

    def humanize(self) -> str:
        """``in 5s`` or ``at 2026-01-01 …``."""
        if isinstance(self.when, (int, float)):
            return f"in {self.when}s"
        return f"at {self.when}"

    def __str__(self) -> str:
        if self.message:
            return self.message
        tail = f": {self.excs}" if self.exc is not None else ""
        return f"Retry {self.humanize()}{tail}"


class TaskError(UmbelError):
    """Base of errors about a task or its result."""


class QueueNotFound(TaskError, KeyError):
    """A queue that isn't declared."""

    def __str__(self) -> str:
        return Exception.__str__(self)


class IncompleteStream(TaskError):
    """The end of a stream of data isn't there yet."""


class NotRegistered(TaskError, KeyError):
    """A task of this name isn't known here."""

    def __str__(self) -> str:
        return Exception.__str__(self)


class AlreadyRegistered(TaskError):
    """A task of this name is known already."""


class TimeoutError(TaskError, builtins.TimeoutError):
    """The operation timed out."""


class MaxRetriesExceededError(TaskError):
    """The task has used up its retries."""

    def __init__(self, *args: object, **kwargs: Any) -> None:
        self.task_args: tuple[Any, ...] | list[Any] = kwargs.pop("task_args", ())
        self.task_kwargs: dict[str, Any] = kwargs.pop("task_kwargs", {})
        super().__init__(*args)


class TaskRevokedError(TaskError):
    """The task was revoked, expired or terminated, so there is no result."""


class InvalidTaskError(TaskError):
    """The message isn't a task that can be run."""


class ChordError(TaskError):
    """A part of the chord failed."""


class OperationalError(UmbelError):
    """The broker or the result store can't serve us now."""


class BrokerUnavailable(OperationalError):
    """The broker can't be reached; nothing was done and the call may be repeated."""


class PublishUnknown(OperationalError):
    """The broker's reply was lost: the messages may or may not be stored."""


class StoreUnavailable(OperationalError):
    """The result store can't be reached; the call may be repeated."""


class Unroutable(UmbelError):
    """No queue would take the message."""


class EncodeError(UmbelError, TypeError):
    """A value that the serializer can't carry."""


class DecodeError(UmbelError, ValueError):
    """Bytes that can't be read as what they claim to be."""


class MessageTooLarge(UmbelError, ValueError):
    """The encoded message is larger than `task_max_message_size`."""


class RunLost(UmbelError):
    """This run was taken for dead: its leases belong to others now."""


class NotProvided(UmbelError, AttributeError):
    """A name of Celery's API that Umbel, or this release of it, doesn't have."""


class CeleryCommandException(UmbelError):
    """Ends a command with a sentence and an exit code."""

    def __init__(self, message: str = "", exit_code: int = 1) -> None:
        self.message = message
        self.exit_code = exit_code
        super().__init__(message, exit_code)

    def __str__(self) -> str:
        return self.message


class BackendError(Exception):
    """Base of errors of the result store about one record."""


class BackendGetMetaError(BackendError):
    """A stored result can't be read."""

    def __init__(self, *args: object, task_id: str = "") -> None:
        self.task_id = task_id
        super().__init__(*args)


class BackendStoreError(BackendError):
    """A result can't be stored."""

    def __init__(self, *args: object, state: str = "", task_id: str = "") -> None:
        self.state = state
        self.task_id = task_id
        super().__init__(*args)


class PoolError(Exception):
    """Base of the ends that a pool gives a task."""


class SoftTimeLimitExceeded(PoolError):
    """The soft time limit has been exceeded; raised inside the task."""

    def __str__(self) -> str:
        return f"SoftTimeLimitExceeded{self.args}"


class TimeLimitExceeded(PoolError):
    """The hard time limit has been exceeded and the process was ended."""

    def __str__(self) -> str:
        return f"TimeLimitExceeded{self.args}"


class WorkerLostError(PoolError):
    """The process that ran the task has died."""


class Terminated(PoolError):
    """The process was ended by a request to terminate its task."""


class WorkerTerminate(SystemExit):
    """Ends the worker at once."""


class WorkerShutdown(SystemExit):
    """Ends the worker after its running tasks."""


class UmbelWarning(UserWarning):
    """Base of Umbel's warnings."""


class AlwaysEagerIgnored(UmbelWarning):
    """`send_task` sends although `task_always_eager` is set."""


class DuplicateNodenameWarning(UmbelWarning):
    """Two workers have one name."""


class DuplicateTaskNameWarning(UmbelWarning):
    """Two functions are registered under one task name; the first stays."""


class FixupWarning(UmbelWarning):
    """An integration couldn't be set up."""


class NotConfigured(UmbelWarning):
    """The application has no configuration."""


class SecurityWarning(UmbelWarning):
    """A set-up that is easy to attack."""


class LaterSetting(UmbelWarning):
    """A known setting that has no effect yet."""


class NoWorkerYet(UmbelWarning):
    """Messages go to a broker file that no worker has ever opened."""


class RoutingKeyAlone(UmbelWarning):
    """A routing key without an exchange, which says little."""


class CDeprecationWarning(DeprecationWarning):
    """What goes away in a later release."""


class CPendingDeprecationWarning(PendingDeprecationWarning):
    """What may go away in a later release."""


CeleryError = UmbelError
CeleryWarning = UmbelWarning
RetryTaskError = Retry
SystemTerminate = WorkerTerminate
