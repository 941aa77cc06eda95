"""What the supervisor sees on the scoreboard and does about it, one look at a time.

Limits hold although the task's own process may hold the interpreter lock. Whatever is done to a
running process is done while it is stopped and only if the same lease still runs then.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Final

from umbel.clock import boot_time
from umbel.message import Loss, Lost
from umbel.worker.scoreboard import Slot, Word
from umbel.worker.stopping import standing_behind, stopped

STUCK: Final = 0.05
"""Seconds that a task may run before what stands behind it is freed from outside."""
AGAIN: Final = 0.1
TERMINATE_LIMIT: Final = 2.0

Free = Callable[[Slot, int], None]
"""Frees what stands behind a lease, in another thread."""


class Watch:
    """Looks at one pool process again and again."""

    def __init__(self, slot: Slot, free: Free, *, gives_back: bool = True) -> None:
        self._slot = slot
        self._free = free
        self._gives_back = gives_back
        self._terminate: tuple[int, str, float] | None = None
        self._look_again_at = 0.0
        self.cause: tuple[int, Lost] | None = None
        """(lease, why) of a kill of ours: what its death is to be called."""

    def look(self) -> None:
        """Enforce the limits of what runs; free what stands behind a task that runs long."""
        slot, words = self._slot, self._slot.words
        lease = slot.running_lease()
        if not lease:
            return
        now = boot_time() * 1e9
        if (hard := words[Word.HARD_AT]) and now >= hard:
            limit = (hard - words[Word.STARTED_AT]) / 1e9
            self._end(lease, Lost(Loss.HARD_LIMIT, f"{limit:g}"))
        elif (soft := words[Word.SOFT_AT]) and now >= soft:
            self._send(signal.SIGUSR1)
        if self._terminate is not None:
            self._insist_on_the_end(lease)
        if self._gives_back and now - words[Word.STARTED_AT] > STUCK * 1e9:
            self._free_what_waits(lease)

    def terminate(self, lease: int, name: str) -> None:
        """End `lease` with a signal, if it still runs; SIGKILL follows where that isn't enough.

        An unknown name is SIGTERM.
        """
        number = getattr(signal.Signals, name, signal.SIGTERM)
        words = self._slot.words

        def act() -> None:
            if self._slot.running_lease() != lease:
                return
            if number == signal.SIGUSR1:
                words[Word.SOFT_AT] = max(1, int(boot_time() * 1e9))
            else:
                self.cause = (lease, Lost(Loss.TERMINATED, number.name))
                words[Word.TERMINATE] = lease
                self._terminate = (lease, number.name, time.monotonic())
            self._send(number)

        stopped(self._slot.pid, act)

    def kill(self, lost: Lost) -> None:
        """End the process, whatever it does; what runs then has `lost` as its cause."""
        if stopped(self._slot.pid, lambda: None):
            self.cause = (self._slot.running_lease(), lost)
        self._send(signal.SIGKILL)

    def lost(self, otherwise: Lost) -> Lost:
        """Why the running lease was lost, now that the process is dead."""
        if self.cause is not None and self.cause[0] == self._slot.running_lease():
            return self.cause[1]
        return otherwise

    def _insist_on_the_end(self, lease: int) -> None:
        assert self._terminate is not None
        marked, name, since = self._terminate
        if marked == lease and time.monotonic() - since > TERMINATE_LIMIT:
            self._end(lease, Lost(Loss.TERMINATED, name))

    def _end(self, lease: int, lost: Lost) -> None:
        """Kill, but only if `lease` still runs once the process stands still."""

        def kill() -> None:
            if self._slot.running_lease() == lease:
                self.cause = (lease, lost)
                self._send(signal.SIGKILL)

        stopped(self._slot.pid, kill)

    def _free_what_waits(self, lease: int) -> None:
        """The process hasn't given back what waits, so it can't: its task holds the lock.

        What a turn under way may have brought, and the process hasn't seen, is freed with it.
        """
        if not (standing_behind(self._slot) or self._slot.words[Word.FETCHING]):
            return
        if (now := time.monotonic()) >= self._look_again_at:
            self._look_again_at = now + AGAIN
            self._free(self._slot, lease)

    def _send(self, number: int) -> None:
        try:
            os.kill(self._slot.pid, number)
        except ProcessLookupError:
            return
