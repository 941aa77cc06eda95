"""Standard output and error as they are found: closed, full, or short of letters."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import TextIO


def make_writable() -> None:
    """From here on every text can be written: as an escape, where the encoding lacks a letter."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # `umbel … >&-`
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  # for good
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def lost_output(error: OSError | None = None) -> OSError | None:
    """Why standard output can't take what was written to it; None where it has taken all.

    `error` ended the command, and may be about something else: an output without a buffer forgets
    what it couldn't take, so that only the place in the code tells.

    A stream that can't is led to nowhere, so that Python's end doesn't fail with it once more.
    """
    _unwritten(sys.stderr)
    return _unwritten(sys.stdout) or (error if error and _was_printing(error) else None)


def _was_printing(error: OSError) -> bool:
    innermost = error.__traceback__
    while innermost is not None and innermost.tb_next is not None:
        innermost = innermost.tb_next
    module = innermost.tb_frame.f_globals.get("__name__", "") if innermost else ""
    return module.partition(".")[0] in ("click", "rich")


def _unwritten(stream: TextIO) -> OSError | None:
    try:
        stream.flush()
    except OSError as error:
        with contextlib.suppress(OSError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
        return error
    return None
