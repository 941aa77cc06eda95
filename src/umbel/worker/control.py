"""The control thread: obeys what comes through the mailbox, and follows the log of revocations.

No task code runs here, nor anything that waits for the pool, so a worker answers whatever its
tasks do. What may take the broker long is left to a second thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Final

from msgspec.structs import replace

from umbel import mailbox
from umbel.app import Umbel
from umbel.asking import serializer_of
from umbel.exceptions import DecodeError, OperationalError, SecurityError
from umbel.mailbox import Command
from umbel.ports import Revocation, Subscription
from umbel.publish import new_id
from umbel.revoking import signal_name, store_revoked
from umbel.saferepr import safe_repr

logger = logging.getLogger("umbel.worker")

WAIT: Final = 1.0
MOST_TOLD: Final = 50_000
"""Ids of the log, the newest, that a worker of Celery is told when it starts; it keeps no more."""

Heard = Callable[[tuple[Revocation, ...]], None]


class Control:
    """Carries out commands of others, and reads the log when a broadcast says that it has grown.

    A broadcast can be missed; the log can't: it is read from where the last reading ended.
    """

    def __init__(self, app: Umbel, node: str, heard: Heard) -> None:
        """`node` is the worker's name; `heard` gets revocations that end running tasks."""
        self._app = app
        self._broker = app.broker
        self._node = node
        self._heard = heard
        self._obeys = app.conf.worker_enable_remote_control
        self._channel = mailbox.channel(app.conf.control_exchange)
        self._accepted = app.call_reader().accepted
        self._serializer = serializer_of(app)
        self._methods: dict[str, Callable[[Command], object]] = {
            "ping": lambda _: {"ok": "pong"},
            "hello": self._hello,
            "revoke": self._revoke,
            "terminate": self._terminate,
        }
        self._version = 0
        self._looking = threading.Lock()
        self._subscription: Subscription | None = None
        self._stopping = threading.Event()
        self._slow: SimpleQueue[Command | None] = SimpleQueue()
        """Commands for which the broker looks through its queues; meanwhile others are obeyed."""
        self._threads = [
            threading.Thread(target=self._work, name="umbel-control", daemon=True),
            threading.Thread(target=self._work_slowly, name="umbel-revoking", daemon=True),
        ]

    def start(self) -> None:
        """All that is told once this has returned is heard, unless the broker is away."""
        with suppress(OperationalError):
            self._subscribed()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if (subscription := self._subscription) is not None:
            # So that it needn't wait out its time.
            subscription.close()
        self._slow.put(None)
        for thread in self._threads:
            thread.join()

    def look(self) -> None:
        """Pass on what the log has gained since the last look."""
        with self._looking:
            self._version, entries = self._broker.revoked(self._version)
        terminating = tuple(entry for entry in entries if entry.terminate)
        if terminating:
            self._heard(terminating)

    def _work(self) -> None:
        payload: bytes | None = None
        is_behind = False
        while not self._stopping.is_set():
            try:
                subscription = self._subscribed()
                if is_behind:
                    self.look()
                    is_behind = False
                if payload is None:
                    heard = subscription.get(WAIT)
                    payload = None if heard is None else heard[1]
                if payload is not None:
                    self._take(payload)
                    payload = None
            except OperationalError as error:
                logger.warning("No control commands: %s", error)
                # What the log has gained meanwhile is missed by nobody.
                is_behind = True
                self._stopping.wait(WAIT)
            except Exception:
                # Whatever a stranger has sent, the next command is to be obeyed.
                logger.critical("A control command failed.", exc_info=True)
                payload = None
        if self._subscription is not None:
            self._subscription.close()

    def _work_slowly(self) -> None:
        """All that came before the stop, unless the broker is away then."""
        while (command := self._slow.get()) is not None:
            while True:
                try:
                    self._answer(command, self._carried_out(command))
                    break
                except OperationalError as error:
                    logger.warning("Control command %s: %s", command.method, error)
                    if self._stopping.wait(WAIT):
                        return

    def _subscribed(self) -> Subscription:
        if self._subscription is None:
            self._subscription = self._broker.subscribe([self._channel])
            # What was revoked before this worker started ends no task of it.
            self._version, _ = self._broker.revoked(self._version)
        return self._subscription

    def _take(self, payload: bytes) -> None:
        """Carry out a command, if it is for this worker. Raises `OperationalError`, and is then
        to be called again."""
        try:
            command = mailbox.read_command(payload, self._accepted)
            is_ours = self._obeys and command.audience.has(self._node)
        except (DecodeError, SecurityError) as error:
            logger.warning("A control command can't be read: %s", error)
            self.look()  # it may have been about the log
            return
        if command.is_logged:
            self.look()
        elif not is_ours:
            return
        elif command.is_lasting:
            self._slow.put(command)
        elif not command.is_late(self._app.clock.wall()):
            self._answer(command, self._carried_out(command))

    def _carried_out(self, command: Command) -> object:
        """The answer. As in Celery, what can't be done is an answer, too."""
        method = self._methods.get(command.method)
        if method is None:
            return {"error": repr(KeyError(command.method))}
        try:
            return method(command)
        except OperationalError:
            raise
        # Strangers send what they like, and nobody here waits for an exception.
        except Exception as error:
            logger.warning("Control command %s: %s", command.method, safe_repr(error))
            return {"error": safe_repr(error)}

    def _answer(self, command: Command, answer: object) -> None:
        to = command.reply_to
        if to is not None:
            packed = mailbox.pack_answer(
                self._node, answer, command.ticket, to, new_id(), self._serializer
            )
            self._broker.answer(to.exchange, to.routing_key, packed)

    # Commands.

    def _hello(self, command: Command) -> object:
        """A worker of Celery that starts asks the others what is revoked."""
        if command.arguments.get("from_node") == self._node:
            return None
        _, entries = self._broker.revoked(0)
        ids = dict.fromkeys(entry.task_id for entry in entries[-MOST_TOLD:])
        return {"revoked": list(ids), "clock": 0}

    def _revoke(self, command: Command) -> object:
        """Write to the log what a stranger revokes: all workers will know, and all who start."""
        ids = _ids(command)
        terminate = command.arguments.get("terminate") is True
        signal = signal_name(command.arguments.get("signal"))
        entries = [Revocation(task_id, terminate, signal) for task_id in ids]
        found = self._broker.revoke(entries, once=command.tag)
        self.look()
        store_revoked(self._app, found)
        if terminate:
            return {"ok": f"terminate: {', '.join(ids)}"}
        return {"ok": f"tasks {', '.join(ids)} flagged as revoked"}

    def _terminate(self, command: Command) -> object:
        arguments = {**command.arguments, "terminate": True}
        return self._revoke(replace(command, arguments=arguments))


def _ids(command: Command) -> list[str]:
    given = command.arguments.get("task_id")
    ids = [given] if isinstance(given, str) else given
    if not isinstance(ids, list) or not all(isinstance(each, str) and each for each in ids):
        raise ValueError(f"task_id is {given!r:.80}; expected a task id, or a list of these")
    return ids
