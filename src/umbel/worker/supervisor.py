"""The supervisor: one run from its start to its shutdown. It runs no task.

Threads of a running one: the heart (liveness), the undertaker (what dead processes held), the
control thread (what others ask of this worker, and revocations that end running tasks), where
Celery can be the relay (what it publishes to fanout exchanges), and the loop here, which looks at
the pool processes (`umbel.worker.children`) every 50 ms.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Final, NoReturn

from umbel import signals
from umbel.exceptions import OperationalError
from umbel.handback import hand_back_after_the_last
from umbel.ports import Beat, Revocation, RunRecord
from umbel.worker.children import LAST_JOBS, Children
from umbel.worker.control import Control
from umbel.worker.forkserver import ForkServer, wakeup_pipe
from umbel.worker.heart import Heart
from umbel.worker.options import ExitCode
from umbel.worker.patience import longest_outage
from umbel.worker.process import STOP_WARM, PoolProcess, Setup
from umbel.worker.relaying import Relaying
from umbel.worker.undertaker import Undertaker

logger = logging.getLogger("umbel.worker")

LOOK: Final = 0.05
STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT)
LOOK_FOR_PEERS: Final = 0.5
TERMINATING: Final = 5.0
PURGES: Final = ("--purge", "--discard")
"""Options that hold for a worker's first start alone."""
PRUNE: Final = 600.0
"""Seconds between two clean-ups of expired results."""
LAST_BURIALS: Final = 5.0


@dataclass(slots=True)
class Stop:
    """The stage of a shutdown: warm, then soft (until a deadline), then cold."""

    how: str
    exit_code: int
    soft_until: float | None = None


class Beside:
    """A loop in a thread of its own; `join` gives its result."""

    def __init__(self, loop: Callable[[], int]) -> None:
        self._code: int = ExitCode.SOFTWARE
        self._loop = loop
        self._thread = threading.Thread(target=self._run, name="umbel-supervisor", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._code = self._loop()
        except BaseException:
            # Nobody would hear signals any more. The scoreboard stays for the next worker.
            logger.critical("The solo worker's supervisor failed.", exc_info=True)
            os._exit(ExitCode.SOFTWARE)

    def join(self) -> int:
        self._thread.join()
        return self._code


class Supervisor:
    """The loop over one run's processes. `server` is None in the solo pool."""

    def __init__(self, setup: Setup, server: ForkServer | None, sender: object) -> None:
        self._setup = setup
        self._server = server
        self._sender = sender
        conf = setup.app.conf
        self._soft_timeout = conf.worker_soft_shutdown_timeout
        self._soft_on_idle = conf.worker_enable_soft_shutdown_on_idle
        self._broker = setup.app.broker
        self._undertaker = Undertaker(
            self._broker, setup.app.store, setup.lease_time, keep=conf.result_keep
        )
        self._heart = Heart(
            self._broker,
            setup.run,
            setup.board,
            setup.lease_time,
            self._on_beat,
            self._on_silence,
        )
        self._longest_outage = longest_outage(conf)
        self._broker_is_gone = False
        self._control = Control(setup.app, setup.hostname, self._on_revocations)
        self._relaying = Relaying(self._broker, setup.queues)
        self._children = Children(setup, server, self._undertaker, sender)
        self._revocations: deque[Revocation] = deque()
        self._terminating: list[tuple[Revocation, float]] = []
        """Until when each is looked for: its task may be about to start."""
        self._wake_read, self._wake_write = wakeup_pipe()
        self._stop: Stop | None = None
        self._is_burying = False
        """At the end of a cold stop."""
        self._peers: tuple[RunRecord, ...] = ()
        self._look_for_peers_at = 0.0
        self._prune_at = 0.0
        self._run_lost = ""
        self._ready_sent = False
        self._has_beaten = False
        """A heartbeat was answered of which no receiver of ``heartbeat_sent`` knows yet."""

    def take_signals(self) -> None:
        """Handle the signals of a shutdown; call it in the main thread."""
        for number in STOP_SIGNALS:
            signal.signal(number, self._receive)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        """The wakeup descriptor tells the loop of signals, unless that buries and looks no more."""
        if self._is_burying and number in (signal.SIGINT, signal.SIGQUIT):
            self._leave_at_once()

    # Start and end.

    def start(self) -> None:
        """Enlist, take over from the dead of this host, start the threads and the processes."""
        setup = self._setup
        self._broker.declare(setup.queues)
        self._broker.enlist(setup.run, None, setup.info)
        self._undertaker.start()
        self._take_over()
        self._peers = self._heart.beat().peers
        self._has_beaten = True
        self._heart.start()
        self._control.start()
        self._relaying.start()
        if self._server is not None:
            self._children.spawn_all()

    def _take_over(self) -> None:
        """What the dead of this host had decided is on their scoreboards; a heartbeat, which
        knows only what had begun, comes after it."""
        peers = [record for record in self._broker.runs() if record.run != self._setup.run]
        self._undertaker.inherit(peers)
        self._undertaker.sweep()
        self._undertaker.settle_down(self._setup.lease_time / 3)

    def loop(self) -> int:
        """Watch until the shutdown is complete; the worker's exit code."""
        while not (self._stop and not self._children) and not self._run_lost:
            self._look()
        if self._run_lost:
            return self._end_lost_run()
        return self._end()

    def adopt_self(self) -> PoolProcess:
        """The solo pool: this process's main thread is the pool process."""
        return PoolProcess(self._setup, self._children.adopt_self(), fail=self._fail_solo)

    def loop_beside(self) -> Beside:
        """Run the loop in a thread, beside the solo pool's main thread."""
        return Beside(self.loop)

    def solo_ended(self) -> None:
        """The solo pool's main thread has run out of work to do."""
        for child in self._children:
            child.slot.clear()
        self._children.forget()
        if self._stop is None:
            self._stop = Stop("Warm", ExitCode.OK)

    def _fail_solo(self, code: int) -> None:
        if code == ExitCode.UNSETTLED:
            self._undertaker.failed = True
            self._children.forget()
            return
        self._run_lost = f"the pool ended with code {code}"

    def _end(self) -> int:
        """Bury what a cold stop left, give back, go."""
        assert self._stop is not None
        self._undertaker.finish(self._soft_timeout or LAST_JOBS)
        self._control.stop()
        self._relaying.stop()
        self._heart.stop()
        if self._server is not None:
            self._server.close()
        if self._undertaker.failed:
            logger.error(
                "Stopped while the broker was away: what is not settled waits on the scoreboard %s "
                "for the next worker on this host.",
                self._setup.board.path,
            )
            self._stop.exit_code = ExitCode.UNSETTLED
        else:
            self._leave()
        signals.worker_shutdown.send(self._sender)
        return self._stop.exit_code

    def _leave(self) -> None:
        try:
            self._broker.leave(self._setup.run)
        except OperationalError as error:
            logger.error("%s A later worker on this host takes over what is left.", error)
            return
        self._setup.board.remove()
        if self._setup.app.hands_back:
            try:
                hand_back_after_the_last(self._setup.app)
            except OperationalError as error:
                logger.error("%s Nothing was handed back: run umbel handback.", error)

    def _end_lost_run(self) -> int:
        """The run is another's by now: nothing of it may go on. Start again as a new one, unless
        it was to stop anyway."""
        what = "ends" if self._stop is not None else "starts again as a new run"
        logger.error("This worker %s: %s.", what, self._run_lost)
        self._children.log_discarded()
        if self._server is not None:
            self._server.kill()
        self._let_go()
        sys.stdout.flush()
        sys.stderr.flush()
        if self._stop is not None:
            os._exit(ExitCode.RUN_LOST)
        os.chdir(self._setup.started_in)
        # What waits by now was sent to this worker.
        again = [each for each in sys.orig_argv[1:] if each not in PURGES]
        os.execv(sys.executable, [sys.executable, *again])

    def _let_go(self) -> None:
        """Leave nothing for others to wait for, unless they can still settle what is left."""
        if self._undertaker.failed:
            return
        self._setup.board.path.unlink(missing_ok=True)
        with contextlib.suppress(OperationalError):
            self._broker.leave(self._setup.run)

    # The loop.

    def _look(self) -> None:
        """One look at everything that may have changed."""
        watched = [self._wake_read]
        if self._server is not None:
            watched.append(self._server.fileno())
        ready, _, _ = select.select(watched, [], [], LOOK)
        if self._wake_read in ready:
            self._hear()
        if reason := self._children.take_reports():
            self._run_lost = reason
        if self._broker_is_gone and self._stop is None:
            logger.error(
                "The broker is away for longer than broker_connection_retry and "
                "broker_connection_max_retries allow."
            )
            self._begin_stop("Warm", "", ExitCode.UNAVAILABLE)
        self._terminate_what_is_revoked()
        self._children.look()
        if self._undertaker.broken:
            # As a dead run, all that this one holds is reclaimed by the next.
            self._run_lost = "what a dead process held could not be settled"
        self._keep_house()
        self._say_ready()
        if self._stop is None and not self._run_lost:
            self._children.keep_number()
        self._advance_stop()

    def _hear(self) -> None:
        """Take what the wakeup descriptor has brought."""
        with contextlib.suppress(BlockingIOError):
            for number in os.read(self._wake_read, 4096):
                if number in STOP_SIGNALS:
                    self._on_signal(number)

    def _on_beat(self, reply: Beat) -> None:
        """In the heart's thread: only notes, and work for others."""
        if not reply.alive:
            self._run_lost = "its heartbeats were late by a whole lease time"
            self._wake()
            return
        self._peers = reply.peers
        self._has_beaten = True
        if reply.reclaimed:
            self._undertaker.set_aside_at = time.monotonic()

    def _on_silence(self, seconds: float) -> None:
        """In the heart's thread: the broker is away, and was last there so long ago."""
        if seconds >= self._longest_outage and not self._broker_is_gone:
            self._broker_is_gone = True
            self._wake()

    def _keep_house(self) -> None:
        """On this host a dead worker shows at once: nobody holds its scoreboard's lock. Results
        whose time is over go. And here, not in the heart's thread, is told that it beats."""
        if self._has_beaten:
            self._has_beaten = False
            signals.heartbeat_sent.send(self._heart)
        if (now := time.monotonic()) >= self._look_for_peers_at:
            self._look_for_peers_at = now + LOOK_FOR_PEERS
            self._undertaker.inherit(self._peers)
        self._undertaker.tend_when_due()
        if now >= self._prune_at:
            self._prune_at = now + PRUNE
            self._undertaker.prune()

    def _on_revocations(self, entries: tuple[Revocation, ...]) -> None:
        """In the control thread."""
        self._revocations.extend(entries)
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_write, b"\0")

    def _say_ready(self) -> None:
        if not self._ready_sent and self._children.is_any_ready():
            self._ready_sent = True
            logger.info("%s ready.", self._setup.hostname)
            signals.worker_ready.send(self._sender)

    # Termination.

    def _terminate_what_is_revoked(self) -> None:
        """Once for each task that runs, now or within the next seconds."""
        now = time.monotonic()
        while self._revocations:
            revocation = self._revocations.popleft()
            if self._server is None:
                task_id = revocation.task_id
                logger.warning("The solo pool can't terminate %s: only stop cold.", task_id)
            else:
                self._terminating.append((revocation, now + TERMINATING))
        if self._terminating:
            ended = self._children.terminate(revocation for revocation, _ in self._terminating)
            self._terminating = [
                (revocation, until)
                for revocation, until in self._terminating
                if now < until and revocation.task_id not in ended
            ]

    # Shutdown.

    def _on_signal(self, number: int) -> None:
        """SIGTERM and the first SIGINT stop warm; SIGQUIT and a second SIGINT cold."""
        stop = self._stop
        cold = number == signal.SIGQUIT or (number == signal.SIGINT and stop is not None)
        if number == signal.SIGTERM and os.environ.get("REMAP_SIGTERM") == "SIGQUIT":
            cold = True
        if stop is not None and stop.how == "Cold":
            if number in (signal.SIGINT, signal.SIGQUIT):
                self._on_another_signal(stop)
            return
        if not cold and stop is not None:
            return
        interrupted = number == signal.SIGINT and not cold
        code = ExitCode.INTERRUPTED if interrupted else ExitCode.OK
        self._begin_stop("Cold" if cold else "Warm", signal.Signals(number).name, code)
        if cold:
            self._begin_cold()

    def _begin_stop(self, how: str, sig: str, code: int) -> None:
        """`sig` is the name of the signal; empty where there was none."""
        self._stop = Stop(how, code)
        logger.warning("%s shutdown (%s).", how, sig or "no broker")
        signals.worker_shutting_down.send(self._setup.hostname, sig=sig, how=how, exitcode=code)
        self._children.tell_all(STOP_WARM)

    def _begin_cold(self) -> None:
        assert self._stop is not None
        active = self._children.is_any_active()
        if self._soft_timeout > 0 and (active or self._soft_on_idle):
            self._stop.soft_until = time.monotonic() + self._soft_timeout
            logger.warning("Running tasks have %.1f s to end.", self._soft_timeout)
        else:
            self._children.kill_all()

    def _on_another_signal(self, stop: Stop) -> None:
        """During the soft wait: cold now. After that: leave at once."""
        if stop.soft_until is not None:
            stop.soft_until = None
            self._children.kill_all()
            return
        self._leave_at_once()

    def _leave_at_once(self) -> NoReturn:
        logger.critical("Ending at once.")
        if self._server is not None:
            self._server.kill()
        os._exit(ExitCode.INTERRUPTED)

    def _advance_stop(self) -> None:
        stop = self._stop
        if stop is None:
            return
        if stop.soft_until is not None and time.monotonic() >= stop.soft_until:
            stop.soft_until = None
            self._children.kill_all()
        cold = stop.how == "Cold" and stop.soft_until is None
        self._children.remind_all(cold)
        if cold and not self._children:
            self._bury_at_the_end()

    def _bury_at_the_end(self) -> None:
        """What a cold stop set aside ends now, by one more process, if it can be done soon."""
        self._is_burying = True
        self._hear()  # what came before that
        self._undertaker.settle_down(LAST_BURIALS)
        if self._server is None or not self._undertaker.set_aside_at:
            return
        self._undertaker.set_aside_at = 0.0
        self._children.spawn(burials_only=True)
