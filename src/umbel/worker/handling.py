"""The way of one delivery through a pool process, in steps: which thread or loop does each, and how
it waits, is the pool's (`umbel.worker.pools`).

::

    may_start ─► prepare ─► start ─► the executor ─► decide ─► keep ─► close_at_once
                                                                 ▲          │ not at once
                                                              revise ◄── propose ─► close_settled
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Final

import msgspec

from umbel.clock import boot_time
from umbel.exceptions import Unroutable
from umbel.outcome import End
from umbel.worker.announce import announce
from umbel.worker.desk import Answer, Desk, Refused
from umbel.worker.execution import Ended, ExceptionInfo, Execution
from umbel.worker.executor import Executor
from umbel.worker.footprint import resident_kib
from umbel.worker.options import ExitCode
from umbel.worker.scoreboard import Scoreboard
from umbel.worker.settler import Decided, Settler

logger = logging.getLogger("umbel.worker")

POLL: Final = 0.01
"""Seconds between two looks at what keeps the next task from starting."""

pack_settlement = msgspec.msgpack.Encoder().encode


class Handling:
    """The steps. `fail` ends this process at once with an exit code: nothing more may be done."""

    def __init__(
        self,
        desk: Desk,
        executor: Executor,
        settler: Settler,
        board: Scoreboard,
        *,
        lease_time: float,
        max_tasks: int | None,
        max_memory: int | None,
        replaces: bool,
        fail: Callable[[int], None],
    ) -> None:
        self.desk = desk
        self.executor = executor
        self.prepare = executor.prepare
        self.decide = settler.decide
        self._board = board
        self._lease_time = lease_time
        self._max_tasks = max_tasks
        self._max_memory = max_memory
        """In KiB."""
        self._replaces = replaces
        self._fail = fail
        self._executed = 0

    @contextmanager
    def guard(self) -> Iterator[None]:
        """What leaves this is no task's end: its task would never have one, nor its lane another
        task. So the process ends, and what ran in it is buried."""
        try:
            yield
        except BaseException:
            logger.critical("A lane of process %d failed.", os.getpid(), exc_info=True)
            self._fail(ExitCode.SOFTWARE)

    # Start.

    def may_start(self, lease: int) -> bool | None:
        """Whether `lease` is to be run here; None: ask again, its outcome has no room on the
        scoreboard yet, or this run isn't known to live."""
        desk = self.desk
        # What was handed out to a process that has done its share is given back by its I/O thread.
        if desk.retiring or desk.is_given_back(lease):
            return False
        if self._is_known_to_live() and not desk.places.empty():
            return True
        desk.call()
        return None

    def wait_to_start(self, lease: int) -> bool:
        """`may_start`, once it is known."""
        while (answer := self.may_start(lease)) is None:
            time.sleep(POLL)
        return answer

    def start(self, execution: Execution, lane: int, *, keeps_soft_limit: bool = False) -> bool:
        """Take `lane` for an execution; False, and the lane is free, where it was given back.

        Where its loop `keeps_soft_limit`, the supervisor needn't.
        """
        soft = None if keeps_soft_limit else execution.soft_time_limit
        hard = execution.time_limit if self._replaces else None
        if not self.desk.start(execution, lane, soft, hard):
            return False
        if execution.end is None and logger.isEnabledFor(logging.INFO):
            logger.info("Task %s received", execution.name)
        return True

    # End.

    def keep(self, decided: Decided) -> bool:
        """Write the outcome to the scoreboard, where a death can't take it; False where it has no
        room there, or where a header that it carries on (half a surrogate pair, a huge number)
        can't be written."""
        settlement = decided.settlement
        try:
            packed = pack_settlement(settlement)
        except (UnicodeError, OverflowError):
            return False
        return self.desk.keep(settlement.lease, packed)

    def close_at_once(self, decided: Decided, kept: bool, lane: int) -> bool:
        """Announce the outcome and hand it in; False where it has to be settled first.

        That is what is too large for the scoreboard, or perhaps unroutable, or of a run that may
        have been taken for dead: nobody hears of it, and it hasn't ended, before it is settled.
        """
        if self._has_lost_its_files():
            # Nothing can be settled here any more, only through the scoreboard, by the supervisor.
            announce(decided)
            logger.error(
                "Task %s has closed files of its process, which ends.", decided.execution.name
            )
            self._fail(ExitCode.SOFTWARE)
        if not kept or decided.settlement.follow_ups or not self._is_known_to_live():
            return False
        announce(decided)
        self._free(decided, lane)
        self.desk.hand_in(decided.settlement)
        return True

    def propose(self, decided: Decided, kept: bool, answer: Answer) -> None:
        """Hand in; `answer` is told by the I/O thread what became of it."""
        self.desk.await_settlement(decided.settlement, answer, kept=kept)

    def revise(self, refused: Refused) -> Decided:
        """The outcome of a task whose follow-up no queue would take."""
        execution = self.executor.prepare(refused.delivery)
        error = Unroutable(refused.reason)
        ended = Ended(End.UNROUTABLE, error=error, einfo=ExceptionInfo.of(error))
        return self.decide(execution, ended)

    def close_settled(self, decided: Decided, lane: int) -> None:
        """Announce what is settled."""
        announce(decided)
        self._free(decided, lane)

    def close(self, decided: Decided, lane: int) -> None:
        """All of that, waiting for what has to be settled."""
        kept = self.keep(decided)
        if self.close_at_once(decided, kept, lane):
            return
        answers: SimpleQueue[Refused | None] = SimpleQueue()
        self.propose(decided, kept, answers.put)
        while (refused := answers.get()) is not None:
            decided = self.revise(refused)
            self.propose(decided, self.keep(decided), answers.put)
        self.close_settled(decided, lane)

    def note(self, execution: Execution, ended: Ended, began: float) -> None:
        """Count an execution that began at `began` (`time.perf_counter`) and has ended."""
        self.desk.note_runtime(time.perf_counter() - began)
        self._executed += 1
        most = self._max_tasks
        # A task has called `sys.exit`; not where another process's task is only buried here.
        left = ended.end is End.PROCESS_LOST and execution.delivery.lost is None
        done = left or (most and self._executed >= most)
        limit = self._max_memory
        if self._replaces and (done or (limit is not None and self._is_larger_than(limit))):
            self.desk.retire()

    def _is_larger_than(self, limit: int) -> bool:
        """Whether this process has more memory than `worker_max_memory_per_child` lets it have."""
        if self.desk.retiring or (size := resident_kib()) <= limit:
            return False
        logger.info(
            "Pool process %d has %d KiB and is replaced; worker_max_memory_per_child is %d.",
            os.getpid(),
            size,
            limit,
        )
        return True

    def _free(self, decided: Decided, lane: int) -> None:
        self.desk.slot.end(lane, decided.settlement.lease)
        self.desk.free_lanes.put(lane)

    def _has_lost_its_files(self) -> bool:
        """Whether the task has closed what it hasn't opened, the broker's files with the rest."""
        try:
            # Asked after each task, so in the one way that keeps the interpreter lock.
            os.get_inheritable(self._board.descriptor)
        except OSError:
            return True
        return False

    def _is_known_to_live(self) -> bool:
        """Whether a heartbeat of this run was answered less than one lease time ago."""
        return boot_time() - self._board.beat_sent_at < self._lease_time
