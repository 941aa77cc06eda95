"""``kombu.exceptions``: Umbel's own, under the names that they have there."""

from types import TracebackType

from umbel.compat.missing import guard
from umbel.exceptions import DecodeError, EncodeError, ImproperlyConfigured, OperationalError
from umbel.exceptions import UmbelError as KombuError

TimeoutError = TimeoutError  # Kombu's is Python's
SerializerNotInstalled = ImproperlyConfigured
ContentDisallowed = DecodeError
"""A body of a type that isn't accepted is one that can't be read."""

__all__ = [
    "ContentDisallowed",
    "DecodeError",
    "EncodeError",
    "KombuError",
    "OperationalError",
    "SerializerNotInstalled",
    "TimeoutError",
    "reraise",
]


def reraise(tp: type[BaseException], value: BaseException, tb: TracebackType | None = None) -> None:
    """Raise `value` with the traceback `tb`."""
    raise value if tb is None else value.with_traceback(tb)


guard(__name__)
