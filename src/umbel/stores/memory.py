"""The result store of ``memory://``, which shares the state of the broker of its name."""

from __future__ import annotations

import time
from collections.abc import Sequence

from umbel.brokers.memory import shared
from umbel.brokers.memory.state import expired
from umbel.clock import SYSTEM, Clock
from umbel.message import Result
from umbel.polling import Interrupts
from umbel.states import READY_STATES, SUCCESS


class MemoryStore:
    """States and values by task id, within this process."""

    def __init__(self, name: str, *, clock: Clock = SYSTEM) -> None:
        self._name = name
        self._clock = clock
        self._state = shared(name)
        self._interrupts = Interrupts()
        self._closed = False

    @property
    def location(self) -> str:
        return f"memory://{self._name}"

    def open(self) -> None:
        self._closed = False

    def close(self) -> None:
        with self._state.lock:
            self._closed = True
            self._state.stored.notify_all()

    def put(self, results: Sequence[Result]) -> None:
        now = self._clock.wall()
        with self._state.lock:
            for result in results:
                self._state.keep(result, now)

    def get(self, task_ids: Sequence[str]) -> list[Result | None]:
        now = self._clock.wall()
        with self._state.lock:
            found = [self._state.results.get(task_id) for task_id in task_ids]
        return [None if result is None or expired(result, now) else result for result in found]

    def wait(self, task_ids: Sequence[str], timeout: float) -> None:
        deadline = time.monotonic() + timeout
        with self._state.lock:
            before = self.get(task_ids)
            if any(result is not None and result.state in READY_STATES for result in before):
                return
            while not self._closed and self.get(task_ids) == before:
                left = deadline - time.monotonic()
                if left <= 0 or self._interrupts.take():
                    return
                self._state.result_waiters += 1
                try:
                    self._state.stored.wait(left)
                finally:
                    self._state.result_waiters -= 1

    def interrupt(self) -> None:
        with self._state.lock:
            self._interrupts.add()
            self._state.stored.notify_all()

    def forget(self, task_ids: Sequence[str]) -> None:
        with self._state.lock:
            for task_id in task_ids:
                self._state.results.pop(task_id, None)

    def prune(self, keep: int | None = None) -> int:
        now = self._clock.wall()
        with self._state.lock:
            results = self._state.results
            old = [task_id for task_id, result in results.items() if expired(result, now)]
            for task_id in old:
                del results[task_id]
            done = [task_id for task_id, result in results.items() if result.state == SUCCESS]
            over = done[: max(0, len(done) - keep)] if keep is not None else []
            for task_id in over:
                del results[task_id]
            return len(old) + len(over)
