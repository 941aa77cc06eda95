"""Threads that do for event loops what would block them; each is there while there is work.

One thread serves any number of loops in any number of threads, and answers each loop once for all
that it has for it. It starts with the first piece of work and ends when there has been none for a
while, so an app that nobody uses any more can go. A fork inherits nothing of it.
"""

from __future__ import annotations

import atexit
import contextlib
import copy
import os
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    import asyncio

IDLE: Final = 5.0
"""Seconds without work after which a thread ends."""
PATIENCE: Final = 5.0
"""Seconds that `close`, or all of them at the end of the process, wait for what is under way."""


class Answer(NamedTuple):
    """Something to be called on a loop, or, where that is None, by the thread itself."""

    loop: asyncio.AbstractEventLoop | None
    call: Callable[[], object]


class Background(ABC):
    """A thread with something to do, now and then. A subclass says what."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._renew()
        _all.add(self)

    def close(self, patience: float = PATIENCE) -> None:
        """End the thread once it has done what is asked of it; a later use starts it anew.

        What isn't done within `patience` seconds is answered with an error.
        """
        with self._changed:
            thread = self._thread
            if thread is None or thread is threading.current_thread():
                return
            self._closing = True
            self._changed.notify_all()
        self._interrupt()
        thread.join(patience)
        with self._changed:
            self._closing = False
        self._give_up()

    @abstractmethod
    def _work(self) -> bool:
        """Do what there is to do, or wait for it; False, after `_end`, ends the thread."""

    @abstractmethod
    def _give_up(self) -> None:
        """Answer what is still waiting with an error."""

    def _interrupt(self) -> None:  # noqa: B027  # most wait nowhere else
        """End what the thread waits for elsewhere than at `_changed`."""

    def _renew(self) -> None:
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closing = False

    def _wake(self) -> None:
        """Have the thread look for work, which it finds once `_changed`, within which this is
        called, is let go of. Raises `RuntimeError` where no thread can be started."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            thread.start()
            self._thread = thread
        else:
            self._changed.notify()

    def _end(self) -> bool:
        """Let the next piece of work start a thread of its own; called within `_changed`."""
        self._thread = None
        return False

    def _run(self) -> None:
        try:
            while self._work():
                pass
        except BaseException:  # a mistake of ours; nobody must wait for ever
            with self._changed:
                self._thread = None
            self._give_up()
            raise


def answer(answers: Iterable[Answer]) -> None:
    """Tell each loop at once all that there is for it. A loop that is closed has no ears."""
    by_loop: dict[asyncio.AbstractEventLoop | None, list[Callable[[], object]]] = {}
    for each in answers:
        by_loop.setdefault(each.loop, []).append(each.call)
    for loop, calls in by_loop.items():
        if loop is None:
            _call_all(calls)
        else:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_call_all, calls)


def settle(future: asyncio.Future[object], value: object, error: BaseException | None) -> None:
    """Give a future its value or error, unless its caller has left. To be called on its loop."""
    if future.done():
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)


def own(error: Exception) -> Exception:
    """A copy for one caller, where there can be one: raising adds to an exception's traceback."""
    try:
        made = copy.copy(error)
    # Copying calls the constructor, which is a driver's own.
    except Exception:
        return error
    made.__cause__ = error.__cause__
    return made.with_traceback(error.__traceback__)


def _call_all(calls: Iterable[Callable[[], object]]) -> None:
    for call in calls:
        call()


_all: weakref.WeakSet[Background] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for each in list(_all):
        each._renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


@atexit.register
def _at_exit() -> None:
    """What loops have left behind is done before the process ends, if it can be done in time."""
    end = time.monotonic() + PATIENCE
    for each in list(_all):
        each.close(max(0.0, end - time.monotonic()))
