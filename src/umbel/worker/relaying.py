"""The relay thread: brings in what Celery publishes to fanout exchanges of this worker's queues.

It is there only where the broker doesn't do so by itself, and has such queues.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from umbel.exceptions import OperationalError
from umbel.ports import Broker, Relay

logger = logging.getLogger("umbel.worker")

WAIT: Final = 1.0


class Relaying:
    """Carries from its start to its stop, over outages."""

    def __init__(self, broker: Broker, queues: Sequence[str]) -> None:
        self._broker = broker
        self._queues = queues
        self._relay: Relay | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="umbel-relay", daemon=True)

    def start(self) -> None:
        """All that is published once this has returned is heard, unless the broker is away."""
        with suppress(OperationalError):
            self._relay = self._broker.relay(self._queues)
            if self._relay is None:
                return
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._relay is not None:
            self._relay.close()
        if self._thread.is_alive():
            self._thread.join()

    def _work(self) -> None:
        while not self._stopping.is_set():
            try:
                self._relay = self._relay or self._broker.relay(self._queues)
                if self._relay is None:
                    return
                self._relay.carry(WAIT)
            except OperationalError as error:
                logger.warning("Nothing of fanout exchanges is heard: %s", error)
                self._stopping.wait(WAIT)
        if self._relay is not None:
            self._relay.close()
