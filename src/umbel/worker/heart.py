"""The heart: a thread that renews the run's liveness and does nothing else.

No handler, control command or log write of the supervisor can delay it, since none runs here.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from umbel.clock import boot_time
from umbel.exceptions import OperationalError
from umbel.ports import Beat, Broker
from umbel.worker.scoreboard import Scoreboard

logger = logging.getLogger("umbel.worker")


class Heart:
    """Beats every third of the shortest lease time of all living runs, and when another run is
    about to be dead.

    `on_beat` gets each reply, and `on_silence` how many seconds ago the last one came where one
    failed; both in this thread.
    """

    def __init__(
        self,
        broker: Broker,
        run: str,
        board: Scoreboard,
        lease_time: float,
        on_beat: Callable[[Beat], None],
        on_silence: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self._broker = broker
        self._run = run
        self._board = board
        self._own_interval = lease_time / 3
        self._interval = self._own_interval
        self._pause = self._interval
        self._on_beat = on_beat
        self._on_silence = on_silence
        self._answered_at = boot_time()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="umbel-heart", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def beat(self) -> Beat:
        """One heartbeat. The lease's age counts from when it was sent."""
        sent_at = boot_time()
        reply = self._broker.beat(self._run)
        self._answered_at = boot_time()
        if reply.alive:
            self._board.beat_sent_at = sent_at
            self._interval = min(self._own_interval, reply.heartbeat)
            self._pause = self._pause_after(reply)
        return reply

    def _pause_after(self, reply: Beat) -> float:
        """Until the next beat: one that reclaims what a silent run held should not come late."""
        if reply.next_death_in is None:
            return self._interval
        soon = reply.next_death_in + self._interval / 20
        return min(self._interval, max(soon, self._interval / 10))

    def _work(self) -> None:
        while not self._stopping.wait(self._pause):
            try:
                reply = self.beat()
            except OperationalError as error:
                # Well below half a lease, so that the return of the broker is never missed.
                self._pause = self._interval / 6
                logger.warning("No heartbeat: %s Trying again in %.2f s.", error, self._pause)
                self._on_silence(boot_time() - self._answered_at)
                continue
            except Exception:
                self._pause = self._interval / 6
                logger.critical("The heartbeat failed.", exc_info=True)
                continue
            self._on_beat(reply)
            if not reply.alive:
                return
