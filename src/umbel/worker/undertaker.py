"""What is left of dead processes: settled, given back and set aside, from the scoreboard.

A thread of the supervisor, so that a broker that is away holds up neither liveness nor limits.
It ends no task: what was running is set aside in the broker, and a pool process buries it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Final

import msgspec
from msgspec.structs import replace

from umbel.drivers import BrokerDriver
from umbel.exceptions import BackendStoreError, OperationalError, RunLost
from umbel.message import Dead, How, Loss, Lost, Settlement
from umbel.ports import ResultStore, RunRecord
from umbel.states import SUCCESS
from umbel.worker.consumer import targets
from umbel.worker.patience import longest_pause
from umbel.worker.scoreboard import Scoreboard, Slot, dead_boards
from umbel.worker.stopping import forbid_behind
from umbel.worker.storing import store_first, without_results

logger = logging.getLogger("umbel.worker")

FIRST_PAUSE: Final = 0.05
TEND_AGAIN: Final = 10.0
"""Seconds after which a broker that couldn't be tended is tended again."""
_unpack_settlement = msgspec.msgpack.Decoder(Settlement).decode
Job = Callable[[], None]
LostBy = Callable[[int], Lost]
"""Why a lease that was running is lost."""


class Undertaker:
    """Does its jobs one after the other, each until the broker has taken it."""

    def __init__(
        self,
        broker: BrokerDriver,
        store: ResultStore | None,
        lease_time: float,
        *,
        keep: int | None = None,
    ) -> None:
        self._keep = keep
        self._broker = broker
        self._store = store
        self._separate_store = None if store and store.location == broker.location else store
        self._longest_pause = longest_pause(lease_time)
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="umbel-undertaker", daemon=True)
        self._giving_up = threading.Event()
        self._freeing: set[str] = set()
        """Owners for which a job waits already."""
        self._tend_at = 0.0
        """Monotonic time at which the broker is to be tended; infinite while that is under way."""
        self.set_aside_at = 0.0
        """Monotonic time at which something was last set aside for burial; 0 is never."""
        self.failed = False
        """A job was given up: the scoreboard must stay for a later run."""
        self.broken = False
        """A job failed for another reason than a broker that is away."""

    def start(self) -> None:
        self._thread.start()

    def finish(self, timeout: float) -> None:
        """Do what is queued, give up what the broker doesn't take within `timeout` seconds."""
        self._jobs.put(None)
        self._thread.join(timeout)
        self._giving_up.set()
        self._thread.join()

    def settle_down(self, timeout: float) -> None:
        """Wait until what is queued now is done, at the most `timeout` seconds."""
        done = threading.Event()
        self._jobs.put(done.set)
        done.wait(timeout)

    def bury(self, owner: str, slot: Slot, lost: LostBy, then: Job) -> None:
        """Abandon a dead process's owner; `then` runs in this thread afterwards."""

        def job() -> None:
            self._abandon(owner, slot, lost)
            then()

        self._jobs.put(job)

    def free(self, owner: str, slot: Slot, lease: int) -> None:
        """Give back all that stands behind the newest lease that has started, while what runs
        takes long, and settle what is decided.

        The broker is asked, since a turn under way may have brought what the process hasn't
        seen yet.
        """

        def job() -> None:
            self._freeing.discard(owner)
            behind = sorted(each for each in self._broker.held(owner) if each > lease)
            if not behind or not forbid_behind(slot, lease, behind[-1]):
                return
            settled = self._settled_first(owner, decided_outcomes(slot))
            releases = [Settlement(each, How.RELEASE) for each in behind]
            self._broker.turn(owner, 0, settlements=[*settled, *releases])

        if owner not in self._freeing:
            self._freeing.add(owner)
            self._jobs.put(job)

    def prune(self) -> None:
        """Delete results that have expired, and what `result_keep` leaves no room for."""
        if self._store is not None:
            store = self._store
            self._jobs.put(lambda: _prune(store, self._keep))

    def tend_when_due(self) -> None:
        """Do what the broker needs done now and then, at the start too (`Broker.tend`)."""

        def job() -> None:
            due_in = TEND_AGAIN
            try:
                due_in = self._broker.tend()
            except OperationalError as error:
                # What others left has time; what this worker's dead held has not.
                logger.warning("%s It is looked after again in %g s.", error, due_in)
            self._tend_at = time.monotonic() + due_in

        if time.monotonic() >= self._tend_at:
            self._tend_at = math.inf
            self._jobs.put(job)

    def inherit(self, peers: Sequence[RunRecord]) -> None:
        """Take over runs of this host whose processes are all gone, at once."""
        for peer in peers:
            path = board_path(peer.info)
            board = None if path is None else Scoreboard.of_dead_run(path, peer.run)
            if board is not None:
                self._jobs.put(self._inheritance(peer.run, board))

    def sweep(self) -> None:
        """Delete what runs left on this host that the broker doesn't know (any more): they died
        while they started or ended, or were reclaimed by somebody who couldn't read it."""

        def job() -> None:
            boards = list(dead_boards(self._broker.location))
            known = {record.run for record in self._broker.runs()}
            for board in boards:
                if board.run in known:
                    board.close()
                else:
                    board.remove()

        self._jobs.put(job)

    def _inheritance(self, run: str, board: Scoreboard) -> Job:
        lost = Lost(Loss.WORKER, "Worker exited prematurely: the whole worker died.")

        def job() -> None:
            for slot in board.slots:
                if slot.number:
                    self._abandon(f"{run}#{slot.number}", slot, lambda _lease: lost)
            self._broker.leave(run)
            board.remove()
            logger.warning("Took over what the dead worker run %s had held on this host.", run)

        return job

    def _abandon(self, owner: str, slot: Slot, lost: LostBy) -> None:
        decided = self._settled_first(owner, decided_outcomes(slot))
        ended = {settlement.lease for settlement in decided}
        running = {
            lease: lost(lease)
            for lease in slot.running_leases()
            if lease not in ended and not slot.skipped(lease)
        }
        try:
            self._broker.abandon(owner, decided=decided, running=running)
        except (OperationalError, RunLost):
            raise
        except Exception:
            # Something in an outcome can't be settled: then its task counts as lost, and nothing
            # else of the worker's.
            logger.critical("What a dead process had decided can't be settled.", exc_info=True)
            self._broker.abandon(
                owner, running={**{lease: lost(lease) for lease in ended}, **running}
            )
        if running:
            self.set_aside_at = time.monotonic()

    def _settled_first(self, owner: str, decided: Sequence[Settlement]) -> Sequence[Settlement]:
        """Queues that follow-ups go to exist first; with a result store of its own, results go
        there first, of leases still held."""
        if named := targets(decided):
            self._broker.declare(sorted(named))
        store = self._separate_store
        if store is None:
            return decided
        held = self._broker.held(owner)
        lost = [without_results(each) for each in decided if each.lease not in held]
        return [
            *lost,
            *store_first(store, [each for each in decided if each.lease in held], _unstorable),
        ]

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            pause = FIRST_PAUSE
            while True:
                try:
                    job()
                    break
                except OperationalError as error:
                    if self._giving_up.wait(pause):
                        self.failed = True
                        break
                    logger.warning("%s Trying again.", error)
                    pause = min(pause * 2, self._longest_pause)
                except RunLost:
                    break
                except Exception:
                    logger.critical("What a dead process held can't be settled.", exc_info=True)
                    self.failed = self.broken = True
                    break


def _unstorable(settlement: Settlement, error: BackendStoreError) -> Settlement:
    """A result that the store refuses for good: its message is kept, and says why."""
    logger.error("A result can't be stored: %s", error)
    succeeded = settlement.result is not None and settlement.result.state == SUCCESS
    return replace(
        settlement,
        result=None,
        # What would have followed comes once the dead letter is sent again.
        follow_ups=() if succeeded else settlement.follow_ups,
        dead=Dead(str(error), type(error).__name__),
    )


def _prune(store: ResultStore, keep: int | None) -> None:
    # A store that is away has time: it isn't asked again before the next clean-up.
    with contextlib.suppress(OperationalError):
        if count := store.prune(keep):
            logger.info("Deleted %d results that were too old or too many.", count)


def decided_outcomes(slot: Slot) -> list[Settlement]:
    """What the ring holds; outcomes that were settled long ago among them do no harm."""
    outcomes = []
    for lease, packed in slot.decided():
        try:
            settlement = _unpack_settlement(packed)
        except msgspec.MsgspecError:
            continue
        if settlement.lease == lease:
            outcomes.append(settlement)
    return outcomes


def board_path(info: bytes) -> Path | None:
    """Where a run's scoreboard lies, if it runs on this host."""
    try:
        known = json.loads(info)
        return Path(known["board"]) if known["host"] == host_id() else None
    except (ValueError, KeyError, TypeError):
        return None


def host_id() -> str:
    """This host, for runs that look for each other's scoreboards."""
    return os.uname().nodename


def lost_process(status: int) -> Lost:
    """What a wait status says, in Celery's words."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            name = signal.Signals(number).name
        except ValueError:
            name = "unknown"
        return Lost(Loss.PROCESS, f"Worker exited prematurely: signal {number} ({name}).")
    code = os.WEXITSTATUS(status)
    return Lost(Loss.PROCESS, f"Worker exited prematurely: exitcode {code}.")
