"""``celery.result``."""

from umbel.compat.missing import guard
from umbel.eagerresult import EagerResult
from umbel.result import (
    AsyncResult,
    GroupResult,
    ResultSet,
    allow_join_result,
    denied_join_result,
    result_from_tuple,
)

__all__ = [
    "AsyncResult",
    "EagerResult",
    "GroupResult",
    "ResultSet",
    "allow_join_result",
    "denied_join_result",
    "result_from_tuple",
]

guard(__name__)
