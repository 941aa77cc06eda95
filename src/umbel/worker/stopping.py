"""Acting on a process while it stands still (SIGSTOP), so that what is read of it stays true."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from umbel.worker.scoreboard import Slot, Word

STOP_LIMIT: Final = 0.2
"""Seconds to wait for a process to stop before it is let go on."""
UNSEEN_STOP: Final = 0.005
"""Where a process's state can't be read: how long a stop is given to take effect."""


def standing_behind(slot: Slot) -> int:
    """How many leases were handed out to the process and can still start."""
    words = slot.words
    return words[Word.HIGH] - max(slot.newest(), words[Word.SKIP_TO])


def forbid_behind(slot: Slot, lease: int, highest: int) -> bool:
    """Forbid the start of all leases above `lease` up to `highest`, while the process stands
    still; False, and nothing forbidden, where `lease` isn't the newest that has started."""
    forbidden = False

    def forbid() -> None:
        nonlocal forbidden
        if slot.newest() == lease:
            words = slot.words
            words[Word.SKIP_FROM] = lease
            words[Word.SKIP_TO] = max(highest, words[Word.SKIP_TO])
            forbidden = True

    stopped(slot.pid, forbid)
    return forbidden


def stopped(pid: int, act: Callable[[], None]) -> bool:
    """Call `act` while the process stands still; False where it couldn't be stopped in time."""
    try:
        os.kill(pid, signal.SIGSTOP)
    except ProcessLookupError:
        return False
    try:
        deadline = time.monotonic() + STOP_LIMIT
        while not _is_stopped(pid):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.0005)
        act()
        return True
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def _is_stopped(pid: int) -> bool:
    if sys.platform != "linux":
        time.sleep(UNSEEN_STOP)
        return True
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()  # a process's name is any bytes
    except OSError:
        return False
    return stat.rpartition(b")")[2].split()[0] in (b"T", b"t", b"Z", b"X")
