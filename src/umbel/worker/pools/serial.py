"""``prefork`` and ``solo``: one task at a time, in the main thread."""

from __future__ import annotations

import contextvars
import time

from umbel.message import Delivery
from umbel.worker.execution import Execution
from umbel.worker.handling import Handling
from umbel.worker.lanes import MainLane


class SerialPool:
    """The main thread's loop."""

    def __init__(self, handling: Handling) -> None:
        self._handling = handling
        self._desk = handling.desk
        self._lane = MainLane(0)
        self.lanes = (self._lane,)

    def work(self) -> None:
        desk = self._desk
        while (batch := desk.next_batch()) is not None:
            half = len(batch) // 2
            for index, item in enumerate(batch):
                self._handle(item)
                if index == half:
                    desk.call()
            desk.batch_started()
        self._lane.close()

    def _handle(self, item: Delivery) -> None:
        handling = self._handling
        if not handling.wait_to_start(item.lease):
            return
        began = time.perf_counter()
        execution = handling.prepare(item)
        self._desk.free_lanes.get()
        if not handling.start(execution, 0):
            return
        # Its own, so that no context variable of one task is seen by the next.
        contextvars.copy_context().run(self._execute, execution, began)

    def _execute(self, execution: Execution, began: float) -> None:
        handling = self._handling
        ended = handling.executor.run(execution, self._lane)
        handling.close(handling.decide(execution, ended), 0)
        handling.note(execution, ended, began)
