"""``celery.result``."""

from umbel.compat.missing import guard
from umbel.eager import EagerResult
from umbel.result import AsyncResult, result_from_tuple

__all__ = ["AsyncResult", "EagerResult", "result_from_tuple"]

guard(__name__)
