"""Lanes: where a pool process runs one task at a time, and how a task is ended there softly.

A task is told to end, for its soft limit or because it was revoked, in the way of what runs it:

=====================  ====================================================================
`MainLane`              the exception is raised by a signal handler, in the main thread
`ThreadLane`            it is raised when the thread next runs Python code, not inside a call that
                        blocks
an ``async def`` task   its `asyncio.Task` is cancelled, whichever lane and loop it is in
=====================  ====================================================================

Only the task's own code is ended, never ours around it: see `enter` and `leave`.
"""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final

from umbel.exceptions import SoftTimeLimitExceeded

logger = logging.getLogger("umbel.worker")

LEFT_BEHIND: Final = 2.0
"""Seconds that coroutines which tasks have left running are given to end once the loop does."""


class Stopped(BaseException):
    """Ends a task that was revoked while it ran; not to be caught with ``except Exception``."""


class Lane(ABC):
    """One lane. `index` is its place on the scoreboard."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.in_task = False
        """Whether the task's own code runs: it is ended only then."""
        self.loop_task: asyncio.Task[Any] | None = None
        """The running ``async def`` task."""
        self.soft_limit: float | None = None
        """The soft limit that has passed, in seconds."""
        self.hard_limit: float | None = None
        """The hard limit that has passed, in seconds; only where a loop keeps it."""
        self.terminated: int | None = None
        """The signal in whose stead the running task was told to end: it was revoked."""
        self.was_cancelled = False
        """Whether anybody has cancelled the last task of `on_loop`."""
        self._runner: asyncio.Runner | None = None

    def reset(self) -> None:
        """The next task is about to begin here."""
        self.soft_limit = self.hard_limit = None
        self.terminated = None

    def enter(self) -> None:
        """The task's own code begins."""
        self.in_task = True

    def leave(self) -> None:
        """The task's own code has ended."""
        self.in_task = False

    def exceed_soft_limit(self, limit: float, passed_on: Callable[[], None]) -> None:
        """Called from a signal handler: `SoftTimeLimitExceeded` for the task that runs.

        `passed_on` is called only if the task's own code runs, so that it can be tried again.
        """
        if self.loop_task is not None:
            passed_on()
            self.soft_limit = limit
            self._cancel(self.loop_task)
        elif self.in_task:
            passed_on()
            self.soft_limit = limit
            self._raise(SoftTimeLimitExceeded)

    def terminate(self, signum: int, passed_on: Callable[[], None]) -> None:
        """Called from a signal handler: end the task that runs, since it was revoked."""
        if self.loop_task is not None:
            passed_on()
            self.terminated = signum
            self._cancel(self.loop_task)
        elif self.in_task:
            passed_on()
            self.terminated = signum
            self._raise(Stopped)

    def run_coroutine(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run an ``async def`` task on this lane's event loop, and wait for its end."""
        if self._runner is None or self._runner.get_loop().is_closed():
            # Not the thread's current loop: a task that isn't ``async def`` may close that one.
            self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)

        async def body() -> Any:
            self.loop_task = asyncio.current_task()
            try:
                return await coroutine
            finally:
                self.loop_task = None

        try:
            # A runner keeps the context of its first use, in which another task runs.
            return self._runner.run(body(), context=contextvars.copy_context())
        except asyncio.CancelledError as error:
            raise self.meaning(error) from None
        finally:
            if self.loop_task is not None:
                # The task has stopped its loop, and would go on beside the next one.
                self.loop_task = None
                self.close()

    @contextmanager
    def on_loop(self, soft: float | None, hard: float | None) -> Iterator[None]:
        """The task's own code runs in the running loop, for so many seconds; a hard limit cancels
        it too, and `hard_limit` says so, whatever it makes of that."""
        task = asyncio.current_task()
        assert task is not None
        self.loop_task = task

        def exceed_softly() -> None:
            self.soft_limit = soft
            task.cancel()

        def exceed() -> None:
            self.hard_limit = hard
            task.cancel()

        loop = task.get_loop()
        timers = [loop.call_later(soft, exceed_softly)] if soft else []
        timers += [loop.call_later(hard, exceed)] if hard else []
        try:
            yield
        except asyncio.CancelledError as error:
            raise self.meaning(error) from None
        finally:
            self.loop_task = None
            for timer in timers:
                timer.cancel()
            self.was_cancelled = task.cancelling() > 0
            while task.cancelling():
                task.uncancel()

    def meaning(self, error: asyncio.CancelledError) -> BaseException:
        """What a cancellation stands for."""
        if self.terminated is not None:
            return Stopped()
        return error if self.soft_limit is None else SoftTimeLimitExceeded(self.soft_limit)

    def close(self) -> None:
        """Close the event loop."""
        if self._runner is not None:
            close_loop(self._runner)
            self._runner = None

    def _cancel(self, task: asyncio.Task[Any]) -> None:
        def cancel() -> None:
            if self.loop_task is task:
                task.cancel()

        task.get_loop().call_soon_threadsafe(cancel)

    @abstractmethod
    def _raise(self, error: type[BaseException]) -> None:
        """Raise `error` in the task's own code."""


class MainLane(Lane):
    """The main thread, where signal handlers run too."""

    def terminate(self, signum: int, passed_on: Callable[[], None]) -> None:
        """Its process gets the signal itself."""

    def _raise(self, error: type[BaseException]) -> None:
        raise error(*([] if self.soft_limit is None else [self.soft_limit]))


class ThreadLane(Lane):
    """A thread of its own."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self._lock = threading.Lock()
        self._thread = 0

    def enter(self) -> None:
        self._thread = threading.get_ident()
        super().enter()

    def leave(self) -> None:
        """An exception that is under way arrives before this returns, or never."""
        try:
            self._leave()
        except (SoftTimeLimitExceeded, Stopped):
            # It came while this function ran, so after the task's own code: it ends nothing.
            self._leave()

    def _leave(self) -> None:
        with self._lock:
            self.in_task = False
            _raise_in_thread(self._thread, None)

    def _raise(self, error: type[BaseException]) -> None:
        # `leave` may have come in between, or hold the lock: then there is nothing to be ended.
        if self._lock.acquire(blocking=False):
            try:
                if self.in_task:
                    _raise_in_thread(self._thread, error)
            finally:
                self._lock.release()


def close_loop(runner: asyncio.Runner) -> None:
    """Close a loop for good, whatever tasks have left there.

    Coroutines that still run are cancelled; what then takes longer than `LEFT_BEHIND`, and threads
    of the loop's executor, end with the process.
    """
    loop = runner.get_loop()
    if loop.is_closed():
        return
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        _, stubborn = loop.run_until_complete(asyncio.wait(left, timeout=LEFT_BEHIND))
        if stubborn:
            logger.warning("%d coroutines that tasks have left behind don't end.", len(stubborn))
            return
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


def _raise_in_thread(thread: int, error: type[BaseException] | None) -> None:
    """Let `error` be raised when `thread` next runs Python code; None: take back what is to be."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread), None if error is None else ctypes.py_object(error)
    )
