"""Doorbells: how a process that waits is woken by one that writes, without polling the file.

Beside the file lies a directory ``<file>-bells``. A waiter has a datagram socket in it; its name
says whether, and for what, it waits::

    -UNIQUE          nobody waits at this bell now
    w3.UNIQUE        a worker waits for queue 3        w*.UNIQUE   for several queues
    r1f2e3d4c.UNIQUE a caller waits for one result (checksum of its task id)
    s*.UNIQUE        a subscriber waits for broadcasts

Ringing is one byte that is sent without blocking: a frozen waiter's full socket takes none, and
the socket of a dead one refuses it and is then removed. The order "hang up the bell, then look,
then sleep" against "commit, then ring" leaves no gap in which a wake-up could be lost.

Where there are no such sockets (Windows, some file systems, a path that is too long, a process
that may open no more files) a waiter looks every 30 ms.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import select
import socket
import threading
import time
import weakref
import zlib
from collections.abc import Collection, Iterator, Mapping
from typing import Final, Literal

Kind = Literal["w", "r", "s"]
ANY: Final = "*"
"""The tag of a waiter that waits for more than one thing; rung whatever the tag."""

_IDLE: Final = "-"
_LONGEST_PATH: Final = 100
_LOOK_EVERY: Final = 0.03
_NOT_LISTENING: Final = (errno.ECONNREFUSED, errno.ENOTSOCK, errno.EPROTOTYPE)


def result_tag(task_id: str) -> str:
    """The tag of a waiter for one task's result."""
    return f"{zlib.crc32(task_id.encode('utf-8', 'surrogatepass')):08x}"


class Bell:
    """A place to sleep at until somebody rings or the time is over."""

    def __init__(self, tower: Doorbells) -> None:
        self._tower = tower
        self._unique = f"{os.getpid():x}{secrets.token_hex(3)}"
        self._socket: socket.socket | None = None
        self._poll = None if os.name == "nt" else select.poll()
        self.name = _IDLE + self._unique

    def hang(self, kind: Kind, tag: str) -> None:
        """Let publishers see it."""
        armed = f"{kind}{tag}.{self._unique}"
        if self._socket is not None and self._rename(armed):
            return
        self._bind()
        if self._socket is not None and not self._rename(armed):
            self.close()

    def take_down(self) -> None:
        """Spare publishers the ringing."""
        if self._socket is not None:
            self._rename(_IDLE + self._unique)

    def sleep(self, seconds: float) -> bool:
        """Until rung, at most `seconds`; whether it was rung, as far as can be known."""
        if self._socket is None or self._poll is None:
            time.sleep(min(seconds, _LOOK_EVERY))
            return False
        if not self._poll.poll(seconds * 1000):
            return False
        with contextlib.suppress(OSError):
            while self._socket.recv(1):
                pass
        return True

    def close(self) -> None:
        """Remove it."""
        self.forget()
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(self._tower.directory, self.name))

    def forget(self) -> None:
        """Close this process's end only."""
        if self._socket is not None:
            if self._poll is not None:
                self._poll.unregister(self._socket)
            self._socket.close()
            self._socket = None

    def _bind(self) -> None:
        self.forget()
        self.name = _IDLE + self._unique
        address = self._tower.address(self.name, create=True)
        if address is None or self._poll is None:
            return
        try:
            bell = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        except OSError:  # no file is left to be opened
            return
        try:
            bell.setblocking(False)
            bell.bind(address)
            os.chmod(address, self._tower.mode())
        except OSError:
            bell.close()
            return
        self._socket = bell
        self._poll.register(bell, select.POLLIN)

    def _rename(self, name: str) -> bool:
        directory = self._tower.directory
        try:
            os.rename(os.path.join(directory, self.name), os.path.join(directory, name))
        except OSError:
            return False
        self.name = name
        return True


class Doorbells:
    """The bells beside one file, as this process hangs and rings them; thread-safe."""

    def __init__(self, path: str) -> None:
        self.directory = f"{path}-bells"
        self._path = path
        self._lock = threading.Lock()
        self._spare: list[Bell] = []
        self._hanging: list[Bell] = []
        self._sender: socket.socket | None = None
        self._fd: int | None = None
        _towers.add(self)

    @contextlib.contextmanager
    def waiting(self, kind: Kind, tag: str) -> Iterator[Bell]:
        """A bell that hangs while the body runs."""
        with self._lock:
            bell = self._spare.pop() if self._spare else Bell(self)
            self._hanging.append(bell)
        try:
            bell.hang(kind, tag)
            yield bell
        finally:
            bell.take_down()
            with self._lock:
                if bell in self._hanging:
                    self._hanging.remove(bell)
                    self._spare.append(bell)
                else:  # closed meanwhile
                    bell.close()

    def ring(self, wanted: Mapping[str, Collection[str] | None]) -> None:
        """Wake who waits, by kind: for one of these tags, or (None) for anything."""
        try:
            names = os.listdir(self.directory)
        except OSError:  # nobody has ever waited
            return
        for name in names:
            if name[0] in wanted:
                tags = wanted[name[0]]
                tag = name[1 : name.find(".")]
                if tags is None or tag == ANY or tag in tags:
                    self._ring(name)

    def ring_own(self) -> None:
        """Wake every thread of this process that waits here. Takes no lock."""
        for bell in tuple(self._hanging):
            self._ring(bell.name)

    def close(self) -> None:
        """Take down all bells of this process."""
        with self._lock:
            spare, self._spare = self._spare, []
            hanging, self._hanging = self._hanging, []
            sender, self._sender = self._sender, None
            fd, self._fd = self._fd, None
        for bell in hanging:  # their threads wake up and close them
            self._ring(bell.name, sender)
        for bell in spare:
            bell.close()
        if sender is not None:
            sender.close()
        if fd is not None:
            os.close(fd)

    def mode(self) -> int:
        """Who may ring: whoever may write the file."""
        return os.stat(self._path).st_mode & 0o666

    def address(self, name: str, *, create: bool = False) -> str | None:
        """Where the socket `name` is, in the 100 bytes that a socket's address may have."""
        if not hasattr(socket, "AF_UNIX"):
            return None
        direct = os.path.join(self.directory, name)
        try:
            if create:
                self._make_directory()
            if len(os.fsencode(direct)) < _LONGEST_PATH:
                return direct
            if not os.path.isdir("/proc/self/fd"):
                return None
            return f"/proc/self/fd/{self._directory_fd()}/{name}"
        except OSError:
            return None

    def _directory_fd(self) -> int:
        if self._fd is not None and os.fstat(self._fd).st_nlink == 0:  # it was deleted
            fd, self._fd = self._fd, None
            os.close(fd)
        if self._fd is None:
            self._fd = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return self._fd

    def _make_directory(self) -> None:
        with contextlib.suppress(FileExistsError):
            os.mkdir(self.directory)
            mode = self.mode()
            os.chmod(self.directory, mode | (mode & 0o444) >> 2)
            return
        for name in os.listdir(self.directory):
            if name[0] == _IDLE:
                self._remove_if_deaf(name)

    def _remove_if_deaf(self, name: str) -> None:
        """Remove the bell of a process that is no more. A live bell that is hit in the instant
        of its making finds its name gone when it is hung up, and is made again."""
        address = self.address(name)
        if address is None:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(address)
            except OSError as error:
                self._remove(name, error)

    def _ring(self, name: str, sender: socket.socket | None = None) -> None:
        address = self.address(name)
        if address is None:
            return
        try:
            (sender or self._sending()).sendto(b"!", socket.MSG_DONTWAIT, address)
        except OSError as error:
            self._remove(name, error)

    def _remove(self, name: str, error: OSError) -> None:
        if error.errno in _NOT_LISTENING:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(self.directory, name))

    def _sending(self) -> socket.socket:
        if self._sender is None:
            self._sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._sender.setblocking(False)
        return self._sender

    def _after_fork(self) -> None:
        """In a child, the bells are the parent's."""
        self._lock = threading.Lock()
        for bell in (*self._spare, *self._hanging):
            bell.forget()
        self._spare, self._hanging = [], []


_towers: weakref.WeakSet[Doorbells] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for tower in list(_towers):
        tower._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
