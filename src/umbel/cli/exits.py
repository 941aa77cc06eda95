"""How a command ends: named exit codes, and the one sentence that a mistake gets.

Codes from 64 on are the meanings that ``sysexits.h`` gives them; `umbel.worker.options.ExitCode`
uses the same for the worker.
"""

from __future__ import annotations

from enum import IntEnum

import click

from umbel.exceptions import BackendError, ImproperlyConfigured, OperationalError, UmbelError
from umbel.exceptions import TimeoutError as ResultTimeoutError


class Exit(IntEnum):
    """What the exit code of a command says."""

    OK = 0
    FAILED = 1
    """It was tried and didn't succeed: the task failed, an id isn't there, a count is off."""
    USAGE = 64
    """The command line can't be understood."""
    NO_INPUT = 66
    """A folder that was named isn't there, or holds nothing to work on."""
    UNAVAILABLE = 69
    """The broker, the result store or every worker is out of reach."""
    OUTPUT = 74
    """Standard output can't take what was printed: its disk is full, say."""
    NOT_YET = 75
    """The result isn't there yet; the same command may succeed later."""
    CONFIG = 78
    """The app or its settings can't work as they stand."""
    INTERRUPTED = 130


class Mistake(click.ClickException):
    """Ends the command with one sentence on standard error and `code`."""

    def __init__(self, message: str, code: Exit = Exit.FAILED) -> None:
        super().__init__(message)
        self.code = code


class WrongUse(Mistake):
    """A `Mistake` in the command line itself."""

    def __init__(self, message: str) -> None:
        super().__init__(message, Exit.USAGE)


def code_of(error: UmbelError | BackendError) -> Exit:
    """The exit code for an error that the API raised."""
    match error:
        case ImproperlyConfigured():
            return Exit.CONFIG
        case OperationalError():
            return Exit.UNAVAILABLE
        case ResultTimeoutError():
            return Exit.NOT_YET
        case _:
            return Exit.FAILED
