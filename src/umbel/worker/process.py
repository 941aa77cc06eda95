"""A pool process: fetches for itself, executes as its pool does, settles through its I/O thread.

Its supervisor talks to it through its slot of the scoreboard and one signal, SIGUSR1, which means
"look at your slot": to stop, or that the soft limit of what runs has passed.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from types import FrameType
from typing import Final

from umbel import signals
from umbel.app import Umbel
from umbel.clock import boot_time
from umbel.exceptions import (
    BackendStoreError,
    OperationalError,
    RunLost,
    WorkerTerminate,
)
from umbel.ports import Broker
from umbel.worker.consumer import LAST_WAIT, Consumer, Diet
from umbel.worker.desk import Desk
from umbel.worker.execution import Execution
from umbel.worker.executor import Executor
from umbel.worker.forkserver import Order
from umbel.worker.handling import Handling
from umbel.worker.offspring import disown
from umbel.worker.options import ExitCode
from umbel.worker.patience import patiently
from umbel.worker.pools import LoopPool, Pool, SerialPool, ThreadPool
from umbel.worker.scoreboard import Scoreboard, Word
from umbel.worker.settler import Settler

logger = logging.getLogger("umbel.worker")

STOP_WARM: Final = 1
STOP_COLD: Final = 2
POLL: Final = 0.01
SWITCH_INTERVAL: Final = 0.0002
"""Seconds after which a task must let the I/O thread have the interpreter. A turn needs it
several times, and others may wait for the end of the turn: Python's own 5 ms each would add up."""

_POOLS: Final[Mapping[str, Callable[[Handling], Pool]]] = {
    "prefork": SerialPool,
    "solo": SerialPool,
    "threads": ThreadPool,
    "asyncio": LoopPool,
}
POOLS: Final = tuple(_POOLS)
"""The names of all pools."""


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
    pool: str
    processes: int
    lanes: int
    """How many tasks run at once in a process."""
    multiplier: int | None
    max_tasks: int | None
    max_memory: int | None
    """In KiB."""
    time_limit: float | None
    soft_time_limit: float | None
    started_in: str
    """The working directory of the command line, for a start as a new run."""
    replaces: bool
    """Whether the pool can end a process and start another; the solo pool can't, so it keeps no
    hard limits, and its one process goes on after a task's ``sys.exit()``."""

    @property
    def by_signal(self) -> bool:
        """Whether a task has its process for itself, so that a signal to it ends the task."""
        return self.pool == "prefork"

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
        broker = setup.app.broker
        self._desk = Desk(
            self._slot,
            interrupt=broker.interrupt,
            exclusive_turns=broker.features.exclusive_turns,
        )
        self._diet = Diet(setup.queues, setup.multiplier, order.burials_only)
        self._calls: SimpleQueue[None] = SimpleQueue()

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
            patiently(lambda: setup.app.store),
            self._owner,
            self._desk,
            self._diet,
            unstorable=self._settler.unstorable,
            lease_time=setup.lease_time,
            last_wait=setup.app.conf.worker_soft_shutdown_timeout or LAST_WAIT,
        )
        self._pool = _POOLS[setup.pool](self._make_handling(consumer))
        signal.signal(signal.SIGUSR1, self._look_at_the_slot)
        self._slot.words[Word.READY] = 1
        doorman = threading.Thread(target=self._pass_on_calls, name="umbel-calls", daemon=True)
        consuming = threading.Thread(
            target=self._consume, args=(consumer,), name="umbel-io", daemon=True
        )
        doorman.start()
        consuming.start()
        if self._slot.words[Word.STOP]:
            self._stop()
        self._pool.work()
        consuming.join()
        signals.worker_process_shutdown.send(setup.hostname, pid=os.getpid(), exitcode=0)
        return ExitCode.OK

    def _make_handling(self, consumer: Consumer) -> Handling:
        app, setup = self._setup.app, self._setup

        def store_started(execution: Execution) -> None:
            store = app.store
            if store is not None:
                record = self._settler.started(execution, os.getpid())
                try:
                    patiently(lambda: store.put([record]))
                except BackendStoreError as error:
                    logger.warning("%s can't be stored as STARTED: %s", execution.name, error)

        executor = Executor(
            app,
            hostname=setup.hostname,
            is_revoked=consumer.revocations.names,
            time_limit=setup.time_limit,
            soft_time_limit=setup.soft_time_limit,
            store_started=store_started,
        )
        return Handling(
            self._desk,
            executor,
            self._settler,
            setup.board,
            lease_time=setup.lease_time,
            max_tasks=setup.max_tasks,
            max_memory=setup.max_memory,
            replaces=setup.replaces,
            fail=self._fail,
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

    def _pass_on_calls(self) -> None:
        """Wake the I/O thread for a signal handler, which may take no locks itself."""
        while True:
            self._calls.get()
            self._desk.call()

    # Signals, in the main thread.

    def _look_at_the_slot(self, _signum: int, _frame: FrameType | None) -> None:
        slot, words = self._slot, self._slot.words
        if words[Word.STOP]:
            self._stop()
            if words[Word.STOP] == STOP_COLD and self._pool.lanes[0].in_task:
                raise WorkerTerminate(1)
        now = boot_time() * 1e9
        for lane in self._pool.lanes:
            index = lane.index
            lease = slot.lane_words[index] >> 1
            if slot.lane_words[index] & 1 or not lease:
                continue
            to_end, signum = divmod(slot.terminate[index], 256)
            if to_end == lease:
                lane.terminate(signum, partial(self._forget, slot.terminate, index))
            if (soft_at := slot.soft_at[index]) and now >= soft_at:
                limit = (soft_at - slot.started_at[index]) / 1e9
                lane.exceed_soft_limit(limit, partial(self._forget, slot.soft_at, index))

    @staticmethod
    def _forget(words: memoryview[int], index: int) -> None:
        words[index] = 0

    def _stop(self) -> None:
        words = self._slot.words
        words[Word.HEARD] = words[Word.STOP]
        self._calls.put(None)


def run_pool_process(setup: Setup, order: Order) -> int:
    """The body of a forked pool process; its exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGQUIT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    slot = setup.board.slots[order.slot]

    def terminate(_signum: int, _frame: FrameType | None) -> None:
        # A service manager may send SIGTERM to every process of the worker. Only the supervisor
        # decides, and marks the task that is to be ended.
        lease = slot.terminate[0] >> 8
        if setup.by_signal and lease and slot.lane_words[0] == lease << 1:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(signal.SIGTERM, terminate)
    code = PoolProcess(setup, order).run()
    setup.app.close()
    return code
