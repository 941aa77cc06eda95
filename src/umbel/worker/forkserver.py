"""The fork server: a process that does nothing but fork pool processes and report their deaths.

It is forked from the worker's first process once the app is imported and before any thread or
connection exists, so each pool process starts from that clean state. The chain supervisor →
fork server → pool process ends by parent-death signal; where there is none, by the end of the
pipe that the supervisor holds.

Both ways go lines of JSON: ``{"slot": 0, "number": 3, "burials_only": false}`` down,
``{"number": 3, "pid": 4711, "status": null}`` up; `status` is that of ``waitpid`` after death.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import logging
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NoReturn

logger = logging.getLogger("umbel.worker")

PR_SET_PDEATHSIG: Final = 1
LINE_BYTES: Final = 65536
FORK_FAILED: Final = 71 << 8
"""The wait status of an exit code 71, the system's word for "can't fork"."""

Body = Callable[["Order"], int]
"""What a pool process runs; its exit code."""


@dataclass(frozen=True, slots=True)
class Order:
    """A request for one pool process."""

    slot: int
    number: int
    burials_only: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """`status` None: the process was started; else it is dead, with that wait status."""

    number: int
    pid: int
    status: int | None = None


class ForkServer:
    """The supervisor's end."""

    def __init__(self, pid: int, line: socket.socket) -> None:
        self.pid = pid
        self._line = line
        self._rest = b""
        self.lost = False
        """The fork server is gone, and with it all pool processes."""

    @classmethod
    def start(cls, body: Body) -> ForkServer:
        """Fork the server. Call it from the main thread, before there is any other."""
        ours, theirs = socket.socketpair()
        supervisor = os.getpid()
        gc.freeze()
        pid = os.fork()
        if pid == 0:
            ours.close()
            die_with_parent(supervisor)
            _run(_Server(theirs, body).serve)
        theirs.close()
        ours.setblocking(False)
        return cls(pid, ours)

    def fileno(self) -> int:
        return self._line.fileno()

    def spawn(self, order: Order) -> None:
        line = {"slot": order.slot, "number": order.number, "burials_only": order.burials_only}
        try:
            self._line.sendall(json.dumps(line).encode() + b"\n")
        except OSError:
            self.lost = True

    def reports(self) -> list[Report]:
        """What has been reported since the last call; never blocks."""
        try:
            while data := self._line.recv(LINE_BYTES):
                self._rest += data
            self.lost = True
        except BlockingIOError:
            pass
        except OSError:
            self.lost = True
        *lines, self._rest = self._rest.split(b"\n")
        return [Report(**json.loads(line)) for line in lines]

    def close(self) -> None:
        """Let the server end (it ends when the line does) and reap it."""
        self._line.close()
        os.waitpid(self.pid, 0)

    def kill(self) -> None:
        """End the server and, by the chain, every pool process at once."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.close()


class _Server:
    """The loop of the fork server's own process."""

    def __init__(self, line: socket.socket, body: Body) -> None:
        self._line = line
        self._body = body
        self._children: dict[int, int] = {}

    def serve(self) -> int:
        # SIGUSR1 too, since it may reach a pool process before that has its handler.
        ignored = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR1)
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)
        wake_read, wake_write = wakeup_pipe()
        line = self._line.fileno()
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        rest = b""
        while True:
            ready, _, _ = select.select([line, wake_read], [], [])
            if wake_read in ready:
                os.read(wake_read, 4096)
                self._reap()
            if line in ready:
                data = self._line.recv(LINE_BYTES)
                if not data:
                    return 0
                *orders, rest = (rest + data).split(b"\n")
                for order in orders:
                    self._fork(Order(**json.loads(order)))

    def _fork(self, order: Order) -> None:
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            # No more processes, or no memory: as if it had died at once, so that it's tried later.
            logger.error("No pool process can be started: %s", error)
            self._report(Report(order.number, 0))
            self._report(Report(order.number, 0, FORK_FAILED))
            return
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            die_with_parent(parent)
            os.register_at_fork(after_in_child=self._line.close)  # of what a task forks
            if not can_die_with_parent():
                _watch(self._line)
            _run(lambda: self._body(order))
        self._children[pid] = order.number
        self._report(Report(order.number, pid))

    def _reap(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            if (number := self._children.pop(pid, None)) is not None:
                self._report(Report(number, pid, status))

    def _report(self, report: Report) -> None:
        line = {"number": report.number, "pid": report.pid, "status": report.status}
        self._line.sendall(json.dumps(line).encode() + b"\n")


def wakeup_pipe() -> tuple[int, int]:
    """A pipe for `signal.set_wakeup_fd`: (read end, write end), neither blocks."""
    ends = os.pipe()
    for end in ends:
        os.set_blocking(end, False)
    return ends


def can_die_with_parent() -> bool:
    """Whether the system has a parent-death signal."""
    return sys.platform == "linux"


def die_with_parent(parent: int) -> None:
    """Ask for SIGKILL when the parent dies; end at once where it already has."""
    if can_die_with_parent():
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def _watch(line: socket.socket) -> None:
    """End this process with the line to the supervisor, where no signal does it."""

    def wait() -> None:
        while line.recv(1, socket.MSG_PEEK):
            select.select([], [], [], 0.2)
        os._exit(1)

    threading.Thread(target=wait, name="umbel-parent", daemon=True).start()


def _run(body: Callable[[], int]) -> NoReturn:
    """Run a forked process's body to its end; nothing of the parent's stack unwinds here."""
    code = 1
    try:
        code = body()
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 1
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        os._exit(code)
