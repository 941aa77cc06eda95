"""When a failed execution is tried again, and how long a refused publish waits.

All of it is arithmetic: randomness and the time are passed in, and nothing here waits.

`policies` has what a task's ``retry_backoff=`` and ``autoretry_for={…: …}`` take, `auto` decides
by a task's options, `after` reads what a server said, `plan` adds up, `publishing` is about
messages that a broker did not take.
"""

from umbel.retry.after import retry_after
from umbel.retry.auto import AutoRetry, Backoff
from umbel.retry.checks import ExceptionTypes
from umbel.retry.policies import (
    Bounds,
    Exponential,
    Fixed,
    Jitter,
    Linear,
    Policy,
    Random,
    Randrange,
    backoff_delay,
    retries_left,
)
from umbel.retry.publishing import RetryPolicy

__all__ = [
    "AutoRetry",
    "Backoff",
    "Bounds",
    "ExceptionTypes",
    "Exponential",
    "Fixed",
    "Jitter",
    "Linear",
    "Policy",
    "Random",
    "Randrange",
    "RetryPolicy",
    "backoff_delay",
    "retries_left",
    "retry_after",
]
