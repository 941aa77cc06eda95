"""``celery.exceptions``: the very exceptions of `umbel.exceptions`, and four names of Celery's own.

Those four are there to be caught, or to be told to `warnings.filterwarnings`; nothing raises them.
"""

from umbel.compat.kombu.exceptions import reraise
from umbel.compat.missing import guard
from umbel.exceptions import (
    AlreadyRegistered,
    AlwaysEagerIgnored,
    BackendError,
    BackendGetMetaError,
    BackendStoreError,
    CeleryError,
    CeleryWarning,
    ChordError,
    DecodeError,
    DuplicateNodenameWarning,
    DuplicateTaskNameWarning,
    EncodeError,
    FixupWarning,
    Ignore,
    ImproperlyConfigured,
    IncompleteStream,
    InvalidTaskError,
    MaxRetriesExceededError,
    NotConfigured,
    NotRegistered,
    OperationalError,
    QueueNotFound,
    Reject,
    Retry,
    RetryTaskError,
    SecurityError,
    SecurityWarning,
    SoftTimeLimitExceeded,
    SystemTerminate,
    TaskError,
    TaskPredicate,
    TaskRevokedError,
    Terminated,
    TimeLimitExceeded,
    TimeoutError,
    WorkerLostError,
    WorkerShutdown,
    WorkerTerminate,
)

__all__ = [
    "AlreadyRegistered",
    "AlwaysEagerIgnored",
    "BackendError",
    "BackendGetMetaError",
    "BackendStoreError",
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
    "MaxRetriesExceededError",
    "NotConfigured",
    "NotRegistered",
    "OperationalError",
    "QueueNotFound",
    "Reject",
    "Retry",
    "RetryTaskError",
    "SecurityError",
    "SecurityWarning",
    "SoftTimeLimitExceeded",
    "SystemTerminate",
    "TaskError",
    "TaskPredicate",
    "TaskRevokedError",
    "Terminated",
    "TimeLimitExceeded",
    "TimeoutError",
    "WorkerLostError",
    "WorkerShutdown",
    "WorkerTerminate",
    "reraise",
]


class CPendingDeprecationWarning(PendingDeprecationWarning):
    """Celery's way to say that something goes in the release after next."""


class CDeprecationWarning(DeprecationWarning):
    """Celery's way to say that something goes in the next release."""


class CeleryCommandException(Exception):
    """A command that ends with `message` and `exit_code`."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code


guard(__name__)
