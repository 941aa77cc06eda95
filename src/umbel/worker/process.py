"""A pool process: fetches for itself, executes in its main thread, settles through its I/O thread.

Its supervisor talks to it through its slot of the scoreboard and one signal, SIGUSR1, which means
"look at your slot": to stop, or that the soft limit of what runs has passed.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from types import FrameType
from typing import Final

import msgspec

from umbel import signals
from umbel.app import Umbel
from umbel.clock import boot_time
from umbel.exceptions import (
    BackendStoreError,
    OperationalError,
    RunLost,
    Unroutable,
    WorkerTerminate,
)
from umbel.message import Delivery, Settlement
from umbel.outcome import End
from umbel.ports import Broker
from umbel.worker.announce import announce
from umbel.worker.consumer import LAST_WAIT, Consumer, Diet
from umbel.worker.desk import Desk, Refused
from umbel.worker.execution import Ended, ExceptionInfo, Execution
from umbel.worker.executor import Executor
from umbel.worker.forkserver import Order
from umbel.worker.offspring import disown
from umbel.worker.options import ExitCode
from umbel.worker.patience import patiently
from umbel.worker.scoreboard import Scoreboard, Word
from umbel.worker.settler import Decided, Settler

logger = logging.getLogger("umbel.worker")

STOP_WARM: Final = 1
STOP_COLD: Final = 2
POLL: Final = 0.01
SWITCH_INTERVAL: Final = 0.0002
"""Seconds after which a task must let the I/O thread have the interpreter. A turn needs it
several times, and others may wait for the end of the turn: Python's own 5 ms each would add up."""

pack_settlement = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class Setup:
    """What all processes of one run share; made in the first process, inherited by fork."""

    app: Umbel
    run: str
    hostname: str
    queues: tuple[str, ...]
    board: Scoreboard
    info: bytes
    """For `Broker.enlist`: who this is, and the task options for whoever must bury for it."""
    lease_time: float
    concurrency: int
    multiplier: int | None
    max_tasks: int | None
    time_limit: float | None
    soft_time_limit: float | None
    started_in: str
    """The working directory of the command line, for a start as a new run."""
    replaces: bool
    """Whether the pool can end a process and start another; the solo pool can't, so it keeps no
    hard limits, and its one process goes on after a task's ``sys.exit()``."""

    def owner(self, number: int) -> str:
        return f"{self.run}#{number}"


class PoolProcess:
    """One process of the pool; in the solo pool, the worker's only one.

    `fail` ends this process at once with an exit code: nothing more may be done here.
    """

    def __init__(self, setup: Setup, order: Order, fail: Callable[[int], None] = os._exit) -> None:
        self._setup = setup
        self._fail = fail
        self._owner = setup.owner(order.number)
        self._slot = setup.board.slots[order.slot]
        self._desk = Desk(self._slot, exclusive_turns=setup.app.broker.features.exclusive_turns)
        self._diet = Diet(setup.queues, setup.multiplier, order.burials_only)
        self._calls: SimpleQueue[None] = SimpleQueue()
        self._executed = 0

    def run(self) -> int:
        """Work until told to stop; the exit code."""
        setup = self._setup
        self._slot.words[Word.PID] = os.getpid()
        disown(setup.board.close)
        sys.setswitchinterval(SWITCH_INTERVAL)
        signal.signal(signal.SIGUSR1, lambda *_: None)  # until there is something to look with
        signals.worker_process_init.send(setup.hostname)
        broker = setup.app.broker
        self._enlist(broker)
        self._settler = Settler(setup.app, hostname=setup.hostname)
        consumer = Consumer(
            broker,
            broker,
            patiently(lambda: setup.app.store),
            self._owner,
            self._desk,
            self._diet,
            unstorable=self._settler.unstorable,
            lease_time=setup.lease_time,
            last_wait=setup.app.conf.worker_soft_shutdown_timeout or LAST_WAIT,
        )
        self._executor = self._make_executor(consumer)
        signal.signal(signal.SIGUSR1, self._look_at_the_slot)
        self._slot.words[Word.READY] = 1
        doorman = threading.Thread(
            target=self._pass_on_calls, args=(broker,), name="umbel-calls", daemon=True
        )
        consuming = threading.Thread(
            target=self._consume, args=(consumer,), name="umbel-io", daemon=True
        )
        doorman.start()
        consuming.start()
        if self._slot.words[Word.STOP]:
            self._stop()
        self._work()
        consuming.join()
        self._executor.close()
        signals.worker_process_shutdown.send(setup.hostname, pid=os.getpid(), exitcode=0)
        return ExitCode.OK

    def _make_executor(self, consumer: Consumer) -> Executor:
        app, setup = self._setup.app, self._setup

        def is_revoked(task_id: str) -> bool:
            return consumer.revocations.names(task_id)

        def store_started(execution: Execution) -> None:
            store = app.store
            if store is not None:
                record = self._settler.started(execution, os.getpid())
                try:
                    patiently(lambda: store.put([record]))
                except BackendStoreError as error:
                    logger.warning("%s can't be stored as STARTED: %s", execution.name, error)

        return Executor(
            app,
            hostname=setup.hostname,
            is_revoked=is_revoked,
            time_limit=setup.time_limit,
            soft_time_limit=setup.soft_time_limit,
            store_started=store_started,
        )

    def _enlist(self, broker: Broker) -> None:
        try:
            patiently(
                lambda: broker.enlist(self._setup.run, self._owner, self._setup.info),
                until=lambda: self._desk.stopping,
            )
        except RunLost:
            self._fail(ExitCode.RUN_LOST)

    # The I/O thread.

    def _consume(self, consumer: Consumer) -> None:
        try:
            consumer.run()
        except RunLost:
            for execution in list(self._desk.unsettled.values()):
                logger.error(
                    "The outcome of %s is discarded: this worker was taken for dead, and the "
                    "delivery is another's.",
                    execution.name,
                )
            self._fail(ExitCode.RUN_LOST)
        except OperationalError as error:
            logger.error("%s Stopping without it; what was decided stays on the scoreboard.", error)
            self._fail(ExitCode.UNSETTLED)
        except BaseException:
            logger.critical("The I/O thread of process %d failed.", os.getpid(), exc_info=True)
            self._fail(ExitCode.SOFTWARE)
        finally:
            self._desk.close()

    def _pass_on_calls(self, broker: Broker) -> None:
        """Wake the I/O thread for a signal handler, which may take no locks itself."""
        while True:
            self._calls.get()
            broker.interrupt()
            self._desk.call()

    # Signals, in the main thread.

    def _look_at_the_slot(self, _signum: int, _frame: FrameType | None) -> None:
        words = self._slot.words
        if words[Word.STOP]:
            self._stop()
            if words[Word.STOP] == STOP_COLD and self._executor.in_task:
                raise WorkerTerminate(1)
        soft_at = words[Word.SOFT_AT]
        if soft_at and self._slot.running_lease() and boot_time() * 1e9 >= soft_at:
            limit = (soft_at - words[Word.STARTED_AT]) / 1e9
            self._executor.exceed_soft_limit(limit, self._forget_soft_limit)

    def _forget_soft_limit(self) -> None:
        self._slot.words[Word.SOFT_AT] = 0

    def _stop(self) -> None:
        words = self._slot.words
        words[Word.HEARD] = words[Word.STOP]
        self._calls.put(None)

    # The main thread.

    def _work(self) -> None:
        """Execute what the I/O thread hands out, until it hands out nothing more."""
        desk = self._desk
        while (batch := desk.next_batch()) is not None:
            half = len(batch) // 2
            for index, item in enumerate(batch):
                self._handle(item)
                if index == half:
                    desk.call()
            desk.call()

    def _handle(self, item: Delivery) -> None:
        lease = item.lease
        # What was handed out to a process that has done its share is given back by its I/O thread.
        if self._desk.retiring or not self._may_start(lease):
            return
        began = time.perf_counter()
        execution = self._executor.prepare(item)
        self._desk.unsettled[lease] = execution
        with self._desk.gate:
            self._slot.start(
                lease,
                execution.texts,
                boot_time(),
                execution.soft_time_limit,
                execution.time_limit if self._setup.replaces else None,
            )
        if self._desk.is_given_back(lease):
            self._desk.unsettled.pop(lease, None)  # the I/O thread may have done it
            self._slot.words[Word.LANE] = lease << 1 | 1
            return
        if execution.end is None:
            logger.info("Task %s received", execution.name)
        ended = self._executor.run(execution)
        self._close(self._settler.decide(execution, ended))
        self._desk.note_runtime(time.perf_counter() - began)
        self._retire_if_due(ended)

    def _close(self, decided: Decided) -> None:
        """Keep the outcome where a death can't take it, announce it, hand it in."""
        lease = decided.settlement.lease
        kept = self._keep(decided.settlement)
        if self._has_lost_its_files():
            # Nothing can be settled here any more, only through the scoreboard, by the supervisor.
            announce(decided)
            logger.error(
                "Task %s has closed files of its process, which ends.", decided.execution.name
            )
            self._fail(ExitCode.SOFTWARE)
        if kept and not decided.settlement.follow_ups and self._is_known_to_live():
            announce(decided)
            self._slot.end(lease)
            self._desk.hand_in(decided.settlement)
            return
        # Too large for the scoreboard, or perhaps unroutable, or this run may have been taken for
        # dead: nobody hears of it, and it hasn't ended, before it is settled.
        announce(self._settle_now(decided, kept))
        self._slot.end(lease)

    def _has_lost_its_files(self) -> bool:
        """Whether the task has closed what it hasn't opened, the broker's files with the rest."""
        try:
            os.fstat(self._setup.board.descriptor)
        except OSError:
            return True
        return False

    def _settle_now(self, decided: Decided, kept: bool) -> Decided:
        """Wait for the turn that settles; what is settled in the end."""
        desk, lease = self._desk, decided.settlement.lease
        desk.kept, desk.awaited = kept, lease
        self._hand_in(decided)
        while (refused := desk.answers.get()) is not None:
            decided = self._unroutable(refused)
            desk.kept = self._keep(decided.settlement)
            self._hand_in(decided)
        desk.kept, desk.awaited = False, 0
        return decided

    def _keep(self, settlement: Settlement) -> bool:
        """Write a decided outcome to the scoreboard; False where it has no room there, or where a
        header that it carries on (half a surrogate pair, a huge number) can't be written."""
        try:
            packed = pack_settlement(settlement)
        except (UnicodeError, OverflowError):
            return False
        return self._slot.decide(settlement.lease, packed)

    def _hand_in(self, decided: Decided) -> None:
        self._desk.hand_in(decided.settlement)
        self._desk.call()

    def _unroutable(self, refused: Refused) -> Decided:
        """The outcome of a task whose follow-up no queue would take."""
        execution = self._executor.prepare(refused.delivery)
        error = Unroutable(refused.reason)
        ended = Ended(End.UNROUTABLE, error=error, einfo=ExceptionInfo.of(error))
        return self._settler.decide(execution, ended)

    def _may_start(self, lease: int) -> bool:
        """Whether `lease` is still to be run here, once its place in the ring is free and this
        run is known to live; False where it was given back meanwhile."""
        desk = self._desk
        while True:
            if desk.is_given_back(lease):
                return False
            if self._is_known_to_live() and desk.has_room(lease):
                return True
            desk.call()
            time.sleep(POLL)

    def _is_known_to_live(self) -> bool:
        """Whether a heartbeat of this run was answered less than one lease time ago."""
        return boot_time() - self._setup.board.beat_sent_at < self._setup.lease_time

    def _retire_if_due(self, ended: Ended) -> None:
        self._executed += 1
        most = self._setup.max_tasks
        due = (most and self._executed >= most) or ended.end is End.PROCESS_LOST
        self._desk.retiring = bool(due and self._setup.replaces)


def run_pool_process(setup: Setup, order: Order) -> int:
    """The body of a forked pool process; its exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGQUIT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    slot = setup.board.slots[order.slot]

    def terminate(_signum: int, _frame: FrameType | None) -> None:
        # A service manager may send SIGTERM to every process of the worker. Only the supervisor
        # decides, and marks the task that is to be ended.
        lease = slot.words[Word.TERMINATE]
        if lease and lease == slot.running_lease():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(signal.SIGTERM, terminate)
    code = PoolProcess(setup, order).run()
    setup.app.close()
    return code
