"""The pool processes of a run: started, replaced as they die, told to stop, and killed.

The supervisor's loop calls this every 50 ms. What a dead process held is left to the undertaker.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from collections.abc import Iterable, Iterator
from math import inf
from typing import Final

from umbel import signals
from umbel.message import Loss, Lost
from umbel.ports import Revocation
from umbel.worker.forkserver import ForkServer, Order, Report
from umbel.worker.options import ExitCode
from umbel.worker.process import STOP_COLD, Setup
from umbel.worker.scoreboard import Slot, Word
from umbel.worker.undertaker import LostBy, Undertaker, lost_process
from umbel.worker.watch import Watch

logger = logging.getLogger("umbel.worker")

REMIND: Final = 0.2
LOOP_GRACE: Final = 1.0
"""Seconds that a coroutine has to end after its hard limit, before its process is ended."""
SPARE_SLOTS: Final = 2
"""For burials while all processes are busy, and for a death whose broker is away."""
BURIAL_WAIT: Final = 1.0
LAST_JOBS: Final = 10.0
SLOWEST_RESPAWN: Final = 10.0


class Child:
    """One pool process, as the supervisor sees it."""

    def __init__(self, order: Order, slot: Slot, watch: Watch) -> None:
        self.order = order
        self.slot = slot
        self.watch = watch
        self.pid = 0
        self.slow_at = inf
        """Monotonic time from which its start is called slow; infinity once that is said."""
        self.told_at = 0.0
        """Monotonic time of the last signal to look at its slot; 0 is never."""
        self.killed = False

    @property
    def is_retiring(self) -> bool:
        """Whether it takes no more tasks, and ends once those that it runs have ended."""
        return bool(self.slot.words[Word.RETIRING])

    def tell(self, what: int) -> None:
        """Have it stop: `STOP_WARM` or `STOP_COLD`."""
        self.slot.words[Word.STOP] = what
        if self.pid:
            self.told_at = time.monotonic()
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGUSR1)

    def kill(self) -> None:
        """End it, as a cold stop does."""
        self.killed = True
        self.watch.kill(Lost(Loss.COLD_STOP, "The worker was stopped cold while the task ran."))


def slots_for(processes: int, lanes: int) -> int:
    """How many slots the scoreboard of such a pool has."""
    return processes + _early(processes, lanes) + SPARE_SLOTS


def _early(processes: int, lanes: int) -> int:
    """How many processes may be replaced before they have ended: with one lane that is only a
    moment, with many a single long task would keep all the other lanes empty."""
    return processes if lanes > 1 else 0


class Children:
    """The pool processes of one run, by their numbers. `server` is None in the solo pool, whose
    only one is the worker's own process."""

    def __init__(
        self, setup: Setup, server: ForkServer | None, undertaker: Undertaker, sender: object
    ) -> None:
        self._setup = setup
        self._server = server
        self._undertaker = undertaker
        self._sender = sender
        self._longest_start = setup.app.conf.worker_proc_alive_timeout
        self._children: dict[int, Child] = {}
        self._last_number = 0
        self._quick_deaths = 0
        self._respawn_at = 0.0

    def __iter__(self) -> Iterator[Child]:
        return iter(list(self._children.values()))

    def __len__(self) -> int:
        return len(self._children)

    # Births.

    def spawn_all(self) -> None:
        """Order as many as the pool is to have."""
        for _ in range(self._setup.processes):
            self.spawn()

    def spawn(self, *, burials_only: bool = False) -> None:
        """Order one; the fork server tells when it is there."""
        assert self._server is not None
        signals.worker_before_create_process.send(self._sender)
        order = self._next_order(burials_only=burials_only)
        self._adopt(order)
        self._server.spawn(order)

    def adopt_self(self) -> Order:
        """Have this process be one of them; what it is to run."""
        order = self._next_order()
        self._adopt(order).pid = os.getpid()
        return order

    def keep_number(self) -> None:
        """Replace the dead; add one for burials that no free process takes in time."""
        if self._server is None or time.monotonic() < self._respawn_at:
            return
        setup = self._setup
        normal = sum(not child.order.burials_only for child in self)
        free = sum(not slot.number for slot in setup.board.slots)
        retiring = sum(child.is_retiring for child in self)
        wanted = setup.processes + min(retiring, _early(setup.processes, setup.lanes))
        for _ in range(min(wanted - normal, free)):
            self.spawn()
        self._see_to_burials()

    def _next_order(self, *, burials_only: bool = False) -> Order:
        self._last_number += 1
        return Order(self._setup.board.free_slot(), self._last_number, burials_only)

    def _adopt(self, order: Order) -> Child:
        slot = self._setup.board.slots[order.slot]
        slot.clear()
        slot.words[Word.OWNER] = order.number
        owner = self._setup.owner(order.number)
        watch = Watch(
            slot,
            lambda slot, lease: self._undertaker.free(owner, slot, lease),
            gives_back=self._server is not None and self._setup.multiplier is None,
            by_signal=self._setup.by_signal,
            grace=LOOP_GRACE if self._setup.pool == "asyncio" else 0.0,
        )
        child = Child(order, slot, watch)
        child.slow_at = time.monotonic() + self._longest_start
        self._children[order.number] = child
        return child

    def _see_to_burials(self) -> None:
        set_aside_at = self._undertaker.set_aside_at
        if not set_aside_at or time.monotonic() - set_aside_at < BURIAL_WAIT:
            return
        self._undertaker.set_aside_at = 0.0
        has_buriers = any(child.order.burials_only for child in self)
        busy = not any(child.slot.has_free_lane() and not child.is_retiring for child in self)
        if busy and not has_buriers and any(not slot.number for slot in self._setup.board.slots):
            self.spawn(burials_only=True)

    # Deaths.

    def take_reports(self) -> str:
        """Take what the fork server reports; why the run can't go on, empty where it can."""
        if self._server is None:
            return ""
        reasons = [self._on_report(report) for report in self._server.reports()]
        if self._server.lost:
            reasons.append(self._on_server_lost())
        return next(filter(None, reversed(reasons)), "")

    def forget(self) -> None:
        """Nothing is to be done for any of them any more."""
        self._children.clear()

    def log_discarded(self) -> None:
        """Say of all that runs that nothing comes of it."""
        for child in self:
            for running in child.slot.running():
                logger.error(
                    "The outcome of %s[%s] is discarded: its delivery is another's.",
                    running.task,
                    running.task_id,
                )

    def _on_report(self, report: Report) -> str:
        child = self._children.get(report.number)
        if child is None:
            return ""
        if report.status is None:
            child.pid = report.pid
            child.slot.words[Word.PID] = report.pid
            return ""
        return self._on_death(child, report.status)

    def _on_death(self, child: Child, status: int) -> str:
        """A process is gone: what it held is settled, given back or set aside."""
        code = os.waitstatus_to_exitcode(status)
        if code == ExitCode.RUN_LOST:
            return "the broker had taken it for dead"
        cause = lost_process(status)

        def lost(lease: int) -> Lost:
            return child.watch.lost(lease, cause)

        if code != 0:
            _log_death(child, lost, cause)
        self._note_quick_death(child, code)
        del self._children[child.order.number]
        owner = self._setup.owner(child.order.number)
        self._undertaker.bury(owner, child.slot, lost, child.slot.clear)
        return ""

    def _note_quick_death(self, child: Child, code: int) -> None:
        """Processes that fail by themselves, or die before they are ready, are started again ever
        more slowly; one whose task was killed or ended it is replaced at once."""
        failed = code in (1, ExitCode.SOFTWARE) or not child.slot.words[Word.READY]
        if code == 0 or not failed:
            self._quick_deaths = 0
            return
        self._quick_deaths += 1
        pause = min(0.1 * 2**self._quick_deaths, SLOWEST_RESPAWN)
        self._respawn_at = time.monotonic() + pause
        logger.error("A pool process failed by itself; the next starts in %.1f s.", pause)

    def _on_server_lost(self) -> str:
        """With the fork server all pool processes are gone; settle for them, start again."""
        lost = Lost(Loss.PROCESS, "Worker exited prematurely: its fork server died.")
        for child in self:
            owner = self._setup.owner(child.order.number)
            self._undertaker.bury(owner, child.slot, lambda _lease: lost, child.slot.clear)
        self._undertaker.finish(LAST_JOBS)
        self._children.clear()
        return "its fork server died"

    # While they live.

    def look(self) -> None:
        """Enforce limits, and free what waits behind a long task; say whose start takes long."""
        for child in self:
            child.watch.look()
            self._say_if_slow(child)

    def is_any_ready(self) -> bool:
        return any(child.slot.words[Word.READY] for child in self)

    def is_any_active(self) -> bool:
        """Whether any runs a task."""
        return any(child.slot.running_leases() for child in self)

    def terminate(self, revocations: Iterable[Revocation]) -> set[str]:
        """End the tasks that run here; their ids. Others may be about to start."""
        # Thousands may run, and thousands be revoked: all is read once.
        runs = {each.task_id: (child, each) for child in self for each in child.slot.running()}
        ended = set()
        for revocation in revocations:
            if revocation.task_id in runs:
                child, running = runs[revocation.task_id]
                name = f"{running.task}[{running.task_id}]"
                logger.warning("Terminating %s with %s.", name, revocation.signal)
                child.watch.terminate(running.lease, revocation.signal)
                ended.add(revocation.task_id)
        return ended

    def _say_if_slow(self, child: Child) -> None:
        """A start that takes long isn't ended: models may be loading, or the broker be away."""
        if time.monotonic() < child.slow_at:
            return
        child.slow_at = inf
        if not child.slot.words[Word.READY]:
            logger.warning(
                "Pool process %d hasn't started within %g s (worker_proc_alive_timeout). It runs "
                "no task until its worker_process_init handlers are done and it has the broker.",
                child.pid,
                self._longest_start,
            )

    # Shutdown.

    def tell_all(self, what: int) -> None:
        """Have all of them stop: `STOP_WARM` or `STOP_COLD`."""
        for child in self:
            child.tell(what)

    def kill_all(self) -> None:
        """End all of them at once; in the solo pool, as soon as its task lets it."""
        if self._server is None:
            self.tell_all(STOP_COLD)
            return
        for child in self:
            if child.pid:
                child.kill()

    def remind_all(self, cold: bool) -> None:
        """Tell each again what its slot says, until it has heard it; in a `cold` stop, kill.

        Its id may not have been known when all were told. And a signal that comes when Python's
        main thread is just about to block is seen by Python only with the next signal.
        """
        for child in self:
            words = child.slot.words
            if not child.pid or not words[Word.STOP]:
                continue
            late = time.monotonic() > child.told_at + REMIND
            if cold and self._server is not None and not child.killed:
                child.kill()
            elif words[Word.HEARD] < words[Word.STOP] and late:
                child.tell(words[Word.STOP])


def _log_death(child: Child, lost_by: LostBy, cause: Lost) -> None:
    running = list(child.slot.running())
    if not running:
        logger.error("Pool process %d ended: %s", child.pid, cause.detail)
    for each in running:
        lost = lost_by(each.lease)
        reason = lost.detail
        if lost.loss is Loss.HARD_LIMIT:
            reason = f"Hard time limit ({lost.detail}s) exceeded."
        elif lost.loss is Loss.TERMINATED:
            reason = f"Terminated by {lost.detail}."
        what = f"{each.task}[{each.task_id}]"
        logger.error("Pool process %d ended while running %s: %s", child.pid, what, reason)
