"""``threads``: each lane is a thread; the main thread hands out and hears signals."""

from __future__ import annotations

import contextvars
import threading
import time
from queue import SimpleQueue

from umbel.message import Delivery
from umbel.worker.execution import Execution
from umbel.worker.handling import Handling
from umbel.worker.lanes import ThreadLane


class ThreadPool:
    """The main thread's loop, and the threads, each started with its first task."""

    def __init__(self, handling: Handling) -> None:
        self._handling = handling
        self._desk = handling.desk
        self.lanes = tuple(ThreadLane(index) for index in handling.desk.slot.lanes)
        self._inboxes: dict[int, SimpleQueue[Execution | None]] = {}
        self._threads: list[threading.Thread] = []

    def work(self) -> None:
        desk = self._desk
        while (batch := desk.next_batch()) is not None:
            for item in batch:
                self._hand_over(item)
            desk.batch_started()
        for inbox in self._inboxes.values():
            inbox.put(None)
        for thread in self._threads:
            thread.join()

    def _hand_over(self, item: Delivery) -> None:
        handling = self._handling
        lane = self._desk.free_lanes.get()
        if not handling.wait_to_start(item.lease):
            self._desk.free_lanes.put(lane)
            return
        execution = handling.prepare(item)
        if handling.start(execution, lane):
            self._inbox(lane).put(execution)

    def _inbox(self, lane: int) -> SimpleQueue[Execution | None]:
        inbox = self._inboxes.get(lane)
        if inbox is None:
            inbox = self._inboxes[lane] = SimpleQueue()
            thread = threading.Thread(
                target=self._serve, args=(self.lanes[lane], inbox), name=f"lane-{lane}", daemon=True
            )
            self._threads.append(thread)
            thread.start()
        return inbox

    def _serve(self, lane: ThreadLane, inbox: SimpleQueue[Execution | None]) -> None:
        """One lane's thread."""
        handling = self._handling
        with handling.guard():
            while (execution := inbox.get()) is not None:
                # Its own, so that no context variable of one task is seen by the next.
                contextvars.copy_context().run(self._execute, execution, lane)
                self._desk.call()
            lane.close()

    def _execute(self, execution: Execution, lane: ThreadLane) -> None:
        handling = self._handling
        began = time.perf_counter()
        ended = handling.executor.run(execution, lane)
        handling.close(handling.decide(execution, ended), lane.index)
        handling.note(execution, ended, began)
