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
"""Seconds that nothing may start before what waits is freed from outside."""
AGAIN: Final = 0.1
TERMINATE_LIMIT: Final = 2.0

Free = Callable[[Slot, int], None]
"""Frees what stands behind a lease, in another thread."""


class Watch:
    """Looks at one pool process again and again.

    `by_signal`: a task is terminated by a signal to its process, which it has for itself; else the
    process is asked to end the one of its tasks. `grace`: seconds that a hard limit may be
    exceeded, where the process itself ends what it can.
    """

    def __init__(
        self,
        slot: Slot,
        free: Free,
        *,
        gives_back: bool = True,
        by_signal: bool = True,
        grace: float = 0.0,
    ) -> None:
        self._slot = slot
        self._free = free
        self._gives_back = gives_back
        self._by_signal = by_signal
        self._grace = grace * 1e9
        self._terminate: tuple[int, str, float] | None = None
        self._look_again_at = 0.0
        self._causes: dict[int, Lost] = {}
        """By lease, why a kill of ours ended it: what its death is to be called."""

    def look(self) -> None:
        """Enforce the limits of what runs; free what waits while nothing starts."""
        slot = self._slot
        lanes = [lane for lane, word in enumerate(slot.lane_words) if word and not word & 1]
        if not lanes:
            return
        now = boot_time() * 1e9
        for lane in lanes:
            self._keep_limits(lane, now)
        if self._terminate is not None:
            self._insist_on_the_end(*self._terminate)
        newest_at = max([slot.started_at[lane] for lane in lanes])
        if self._gives_back and now - max(newest_at, slot.words[Word.HANDED_AT]) > STUCK * 1e9:
            self._free_what_waits(slot.newest())

    def _keep_limits(self, lane: int, now: float) -> None:
        slot = self._slot
        lease = slot.lane_words[lane] >> 1
        if (hard := slot.hard_at[lane]) and now >= hard + self._grace:
            limit = (hard - slot.started_at[lane]) / 1e9
            self._end(lease, Lost(Loss.HARD_LIMIT, f"{limit:g}"))
        elif (soft := slot.soft_at[lane]) and now >= soft:
            self._send(signal.SIGUSR1)
        elif not self._by_signal and slot.terminate[lane] >> 8 == lease:
            # Again: what it gets while it stands still may be seen by another thread.
            self._send(signal.SIGUSR1)

    def terminate(self, lease: int, name: str) -> None:
        """End `lease` with a signal, if it still runs; SIGKILL follows where that isn't enough.

        An unknown name is SIGTERM.
        """
        number = getattr(signal.Signals, name, signal.SIGTERM)
        slot = self._slot

        def act() -> None:
            lane = slot.lane_of(lease)
            if lane is None:
                return
            if number == signal.SIGUSR1:
                slot.soft_at[lane] = max(1, int(boot_time() * 1e9))
                self._send(signal.SIGUSR1)
                return
            slot.terminate[lane] = lease << 8 | number
            if self._by_signal:
                self._causes[lease] = Lost(Loss.TERMINATED, number.name)
                self._terminate = (lease, number.name, time.monotonic())
                self._send(number)

        stopped(slot.pid, act)

    def kill(self, lost: Lost) -> None:
        """End the process, whatever it does; what runs then has `lost` as its cause."""

        def note() -> None:
            self._causes.update(dict.fromkeys(self._slot.running_leases(), lost))

        stopped(self._slot.pid, note)
        self._send(signal.SIGKILL)

    def lost(self, lease: int, otherwise: Lost) -> Lost:
        """Why `lease`, which was running, was lost, now that the process is dead."""
        return self._causes.get(lease, otherwise)

    def _insist_on_the_end(self, lease: int, name: str, since: float) -> None:
        if time.monotonic() - since > TERMINATE_LIMIT:
            self._end(lease, Lost(Loss.TERMINATED, name))

    def _end(self, lease: int, lost: Lost) -> None:
        """Kill, but only if `lease` still runs once the process stands still."""

        def kill() -> None:
            running = self._slot.running_leases()
            if lease not in running:
                return
            what = "the hard time limit" if lost.loss is Loss.HARD_LIMIT else "the termination"
            with_it = Lost(
                Loss.PROCESS, f"Worker exited prematurely: {what} of another task ended it."
            )
            self._causes.update({**dict.fromkeys(running, with_it), lease: lost})
            self._send(signal.SIGKILL)

        stopped(self._slot.pid, kill)

    def _free_what_waits(self, newest: int) -> None:
        """The process hasn't given back what waits, so it can't: its task holds the lock.

        What a turn under way may have brought, and the process hasn't seen, is freed with it.
        """
        if not (standing_behind(self._slot) or self._slot.words[Word.FETCHING]):
            return
        if (now := time.monotonic()) >= self._look_again_at:
            self._look_again_at = now + AGAIN
            self._free(self._slot, newest)

    def _send(self, number: int) -> None:
        try:
            os.kill(self._slot.pid, number)
        except ProcessLookupError:
            return
