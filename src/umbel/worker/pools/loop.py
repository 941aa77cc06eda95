"""``asyncio``: all ``async def`` tasks run on one event loop in the main thread, up to thousands at
once, each in a context of its own. Other tasks go to threads."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, TypeVar

from umbel.message import Delivery
from umbel.task import Task
from umbel.worker.desk import Refused
from umbel.worker.execution import Ended, Execution
from umbel.worker.handling import POLL, Handling
from umbel.worker.lanes import ThreadLane, close_loop
from umbel.worker.settler import Decided

AT_ONCE: Final = 16
"""Tasks that are started before those that run get their turn."""

T = TypeVar("T")


class LoopPool:
    """The loop, and the threads for what isn't ``async def``."""

    def __init__(self, handling: Handling) -> None:
        self._handling = handling
        self._desk = handling.desk
        self.lanes = tuple(ThreadLane(index) for index in handling.desk.slot.lanes)
        self._threads = ThreadPoolExecutor(len(self.lanes), thread_name_prefix="lane")
        self._running: set[asyncio.Task[None]] = set()
        self._is_async: dict[str, bool] = {}
        self._has_called = False

    def work(self) -> None:
        runner = asyncio.Runner()
        runner.run(self._work())
        close_loop(runner)
        self._threads.shutdown()
        for lane in self.lanes:
            lane.close()

    async def _work(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._bell = asyncio.Event()
        self._lane_freed = asyncio.Event()
        self._desk.bell = self._ring
        while True:
            while self._desk.has_batch():
                batch = self._desk.next_batch()
                if batch is None:
                    # All has been settled, so what runs still is only about to end.
                    await asyncio.gather(*self._running)
                    return
                await self._start_all(batch)
            await self._bell.wait()
            self._bell.clear()

    async def _start_all(self, batch: list[Delivery]) -> None:
        for index, item in enumerate(batch, 1):
            await self._hand_over(item)
            if index % AT_ONCE == 0:
                await asyncio.sleep(0)
        self._desk.batch_started()

    async def _hand_over(self, item: Delivery) -> None:
        lane = await self._free_lane()
        # What it waits for, a heartbeat or a settlement, rings no bell.
        while (answer := self._handling.may_start(item.lease)) is None:  # noqa: ASYNC110
            await asyncio.sleep(POLL)
        if not answer:
            self._desk.free_lanes.put(lane)
            return
        if item.lost is not None or item.redelivered:
            # The result store is asked about these, and may be slow or away.
            execution = await self._in_thread(lambda: self._handling.prepare(item))
        else:
            execution = self._handling.prepare(item)
        on_loop = execution.task is not None and self._runs_on_loop(execution.task)
        if self._handling.start(execution, lane, keeps_soft_limit=on_loop):
            running = self._loop.create_task(self._run(execution, self.lanes[lane], on_loop))
            self._running.add(running)
            running.add_done_callback(self._has_run)

    def _has_run(self, running: asyncio.Task[None]) -> None:
        with self._handling.guard():
            running.result()
        self._running.discard(running)

    async def _free_lane(self) -> int:
        while self._desk.free_lanes.empty():
            self._lane_freed.clear()
            await self._lane_freed.wait()
        return self._desk.free_lanes.get()

    def _runs_on_loop(self, task: Task[Any, Any]) -> bool:
        known = self._is_async.get(task.name)
        if known is None:
            known = self._is_async[task.name] = inspect.iscoroutinefunction(task.run)
        return known

    async def _run(self, execution: Execution, lane: ThreadLane, on_loop: bool) -> None:
        """One task from its start to its end. What it raises is its outcome, so nothing leaves."""
        began = time.perf_counter()
        ended: Ended
        if on_loop:
            executor = self._handling.executor
            if executor.is_tracked(execution):
                # Not in the loop's own executor, which tasks may fill.
                await self._in_thread(lambda: executor.store_started(execution))
            ended = await executor.run_on_loop(execution, lane)
            if lane.was_cancelled:
                await _outlive_cancellation()
            await self._close(self._handling.decide(execution, ended), lane.index)
        else:
            ended = await self._in_thread(lambda: self._run_here(execution, lane))
        self._handling.note(execution, ended, began)
        self._lane_freed.set()
        self._call_soon()

    def _run_here(self, execution: Execution, lane: ThreadLane) -> Ended:
        """In a thread."""
        ended = self._handling.executor.run(execution, lane)
        self._handling.close(self._handling.decide(execution, ended), lane.index)
        return ended

    async def _in_thread(self, function: Callable[[], T]) -> T:
        context = contextvars.copy_context()
        return await self._loop.run_in_executor(self._threads, lambda: context.run(function))

    async def _close(self, decided: Decided, lane: int) -> None:
        """As `Handling.close`, without keeping the loop from its other tasks."""
        handling = self._handling
        kept = handling.keep(decided)
        if handling.close_at_once(decided, kept, lane):
            return
        while (refused := await self._proposed(decided, kept)) is not None:
            decided = handling.revise(refused)
            kept = handling.keep(decided)
        handling.close_settled(decided, lane)

    async def _proposed(self, decided: Decided, kept: bool) -> Refused | None:
        told: asyncio.Future[Refused | None] = self._loop.create_future()
        self._handling.propose(
            decided,
            kept,
            lambda refused: self._loop.call_soon_threadsafe(told.set_result, refused),
        )
        return await told

    def _ring(self) -> None:
        """Called by the I/O thread."""
        self._loop.call_soon_threadsafe(self._bell.set)

    def _call_soon(self) -> None:
        """Wake the I/O thread once for all that end in this turn of the loop."""
        if not self._has_called:
            self._has_called = True
            self._loop.call_soon(self._call)

    def _call(self) -> None:
        self._has_called = False
        self._desk.call()


async def _outlive_cancellation() -> None:
    """A task may be cancelled in its last step: before Python 3.13, that then cancels what it
    awaits next, which would be ours."""
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(0)
