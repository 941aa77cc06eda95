"""The control thread: learns at once of revocations that end running tasks."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from umbel.drivers import BrokerDriver
from umbel.exceptions import OperationalError
from umbel.ports import Revocation, Subscription
from umbel.revoking import CONTROL_CHANNEL

logger = logging.getLogger("umbel.worker")

WAIT: Final = 1.0
Heard = Callable[[tuple[Revocation, ...]], None]


class Control:
    """Reads the revocation log when a broadcast says that it has grown.

    A broadcast can be missed; the log can't: it is read from where the last reading ended.
    """

    def __init__(self, broker: BrokerDriver, heard: Heard) -> None:
        self._broker = broker
        self._heard = heard
        self._version = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="umbel-control", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        with contextlib.suppress(OperationalError):
            # So that it needn't wait out its time.
            self._broker.broadcast(CONTROL_CHANNEL, b"")
        self._thread.join()

    def look(self) -> None:
        """Pass on what the log has gained since the last look."""
        self._version, entries = self._broker.revoked(self._version)
        terminating = tuple(entry for entry in entries if entry.terminate)
        if terminating:
            self._heard(terminating)

    def _work(self) -> None:
        subscription: Subscription | None = None
        behind = False
        while not self._stopping.is_set():
            try:
                if subscription is None:
                    subscription = self._broker.subscribe([CONTROL_CHANNEL])
                    # What was revoked before this worker started ends no task of it.
                    self._version, _ = self._broker.revoked(self._version)
                # After a failed look, look again: what the log has is missed by nobody.
                if subscription.get(WAIT) is not None or behind:
                    behind = True
                    self.look()
                    behind = False
            except OperationalError as error:
                logger.warning("No control commands: %s", error)
                time.sleep(WAIT)
        if subscription is not None:
            subscription.close()
