"""The results of tasks: of one, of several, and where waiting for them is allowed."""

from umbel.asyncresult import AsyncResult, Change, result_from_tuple
from umbel.joining import allow_join_result, denied_join_result
from umbel.resultset import GroupResult, ResultSet, as_completed

__all__ = [
    "AsyncResult",
    "Change",
    "GroupResult",
    "ResultSet",
    "allow_join_result",
    "as_completed",
    "denied_join_result",
    "result_from_tuple",
]
