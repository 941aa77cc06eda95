"""An exception with its traceback, as handlers and signals get it."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType

from umbel.stored import format_traceback


@dataclass(frozen=True, slots=True)
class ExceptionInfo:
    """An exception with its traceback, as handlers and signals get it (`einfo`)."""

    exception: BaseException
    traceback: str
    tb: TracebackType | None = None
    internal: bool = False

    @classmethod
    def of(cls, exc: BaseException) -> ExceptionInfo:
        return cls(exc, format_traceback(exc), exc.__traceback__)

    @property
    def type(self) -> type[BaseException]:
        return type(self.exception)

    def __str__(self) -> str:
        return self.traceback
