"""One file, opened by one process: connections, transactions, patience and errors.

Several threads share one guarded connection. It is closed before a fork and opened again when
it is next used, in parent and child alike: SQLite's locks don't survive a fork.
"""

from __future__ import annotations

import contextlib
import os
import random
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator
from importlib import resources
from typing import Final, Literal

from umbel.arguments import is_unicode
from umbel.brokers.sqlite import errors
from umbel.exceptions import OperationalError

Synchronous = Literal["normal", "full"]

SCHEMA_VERSION: Final = 4
_PAUSE: Final = (0.0002, 0.002)
_FORK_PATIENCE: Final = 0.05
_WAL_BYTES: Final = 8 * 2**20
_WAL_EVERY: Final = 16

_SCHEMA: Final = (
    resources.files("umbel.brokers.sqlite").joinpath("schema.sql").read_text(encoding="utf-8")
)
_PRAGMAS: Final = (
    "PRAGMA temp_store = MEMORY",
    "PRAGMA cache_size = -4000",
    # For many processes of few writes each; those of many do it themselves, in `_bound_wal`.
    "PRAGMA wal_autocheckpoint = 8192",
    f"PRAGMA journal_size_limit = {_WAL_BYTES}",
)
_SNAPSHOT: Final = "SELECT 1 FROM queue LIMIT 1"
_HAS_OTHER_TABLES: Final = "SELECT 1 FROM sqlite_master LIMIT 1"


class Database:
    """The file at `path`, for one process; thread-safe.

    `unavailable` is the exception class that every failure of SQLite becomes.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        unavailable: type[OperationalError],
        synchronous: Synchronous = "normal",
    ) -> None:
        self.path = os.path.realpath(path)
        self.queue_ids: dict[str, int] = {}
        """Queue ids by name, as far as this process has met them."""
        self.declared: set[str] = set()
        """Queues that this process declared; made again in a file that was deleted."""
        self.bound: set[tuple[str, str, str, str, str]] = set()
        """Rows of the bindings that it declared, likewise."""
        self.patience = 10.0
        """Seconds of waiting for another process's write before giving up."""
        self._unavailable = unavailable
        self._synchronous = synchronous
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None
        self._pid = os.getpid()
        self._inside = False
        self._is_open = False
        self._writes = 0
        self._trace: errors.Trace | None = None
        with _forking:
            _databases.add(self)

    def open(self) -> None:
        """Connect, and create the file or its tables where they are missing."""
        self._is_open = True
        with self._guarded():
            self._connected()

    def close(self) -> None:
        """Let go of the file."""
        self._is_open = False
        with self._lock:
            self._drop()

    def set_trace(self, trace: errors.Trace | None) -> None:
        """Call `trace` with the text of each statement before it runs."""
        self._trace = trace
        with self._lock:
            if self._connection is not None:
                self._connection.set_trace_callback(trace)

    @contextlib.contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """A transaction that holds the file's one write lock; all of the body or nothing."""
        with self._guarded():
            connection = self._begin("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                _roll_back(connection)
                raise
            self._bound_wal(connection)

    @contextlib.contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """A view of the file at one moment; blocks nobody and takes no lock."""
        with self._guarded():
            connection = self._begin("BEGIN", _SNAPSHOT)
            try:
                yield connection
            finally:
                _roll_back(connection)

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """This thread alone, and no exception of SQLite's beyond this point."""
        if self._pid != os.getpid():
            self._after_fork()
        with self._lock:
            if self._inside:  # from a signal handler that interrupted this very thread
                raise self._unavailable(
                    f"{self.path} is in use by the code that this call interrupted; "
                    "repeat the call outside of the signal handler"
                )
            try:
                self._inside = True
                yield
            except sqlite3.Error as error:
                if errors.is_about_the_file(error):
                    self._drop()
                raise self._unavailable(errors.sentence(error, self.path)) from error
            finally:
                self._inside = False
                if self._connection is not None:
                    # An exception from a signal handler, such as a soft time limit, can come
                    # between any two lines: never keep the write lock.
                    _roll_back(self._connection)

    def _begin(self, *statements: str) -> sqlite3.Connection:
        """Start a transaction, waiting for others' writes."""
        give_up_at = time.monotonic() + self.patience
        while True:
            connection = self._connected()
            try:
                for statement in statements:
                    connection.execute(statement)
                return connection
            except sqlite3.OperationalError as error:
                _roll_back(connection)
                if not errors.is_busy(error) or time.monotonic() > give_up_at:
                    raise
            time.sleep(random.uniform(*_PAUSE))

    def _connected(self) -> sqlite3.Connection:
        if self._connection is not None and not self._is_same_file():
            self._drop()
            raise self._unavailable(errors.gone(self.path))
        if self._connection is None:
            if not self._is_open:
                raise self._unavailable(f"{self.path} is closed; call open() first")
            self._connection = self._connect()
        return self._connection

    def _is_same_file(self) -> bool:
        try:
            found = os.stat(self.path)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._identity

    def _connect(self) -> sqlite3.Connection:
        errors.check_place(self.path, self._unavailable)
        give_up_at = time.monotonic() + self.patience
        while True:
            connection = sqlite3.connect(
                self.path,
                timeout=0,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=256,
            )
            try:
                self._prepare(connection)
                break
            except BaseException as error:
                connection.close()
                if not errors.is_busy(error) or time.monotonic() > give_up_at:
                    raise
            time.sleep(random.uniform(*_PAUSE))
        found = os.stat(self.path)
        self._identity = (found.st_dev, found.st_ino)
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Settings of the connection; tables, where the file is new or of an older format."""
        connection.set_trace_callback(self._trace)
        version = self._check_version(connection)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {self._synchronous}")
        for pragma in _PRAGMAS:
            connection.execute(pragma)
        if version < SCHEMA_VERSION:
            connection.executescript(
                f"BEGIN IMMEDIATE; {_SCHEMA}; PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"
            )
        if self.declared:
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(
                "INSERT OR IGNORE INTO queue (name) VALUES (?)", [(q,) for q in self.declared]
            )
            connection.executemany(
                "INSERT OR IGNORE INTO binding (exchange, type, queue, routing_key, arguments)"
                " VALUES (?, ?, ?, ?, ?)",
                self.bound,
            )
            connection.execute("COMMIT")

    def _check_version(self, connection: sqlite3.Connection) -> int:
        """The format of the file, 0 for a new one. One view of the file, in which nothing of
        another program's is changed, and another process that creates the tables isn't one."""
        connection.execute("BEGIN")
        version: int = connection.execute("PRAGMA user_version").fetchone()[0]
        foreign = version == 0 and connection.execute(_HAS_OTHER_TABLES).fetchone() is not None
        connection.execute("ROLLBACK")
        if foreign:
            raise self._unavailable(errors.foreign(self.path))
        if version > SCHEMA_VERSION:
            raise self._unavailable(errors.newer(self.path, version, SCHEMA_VERSION))
        return version

    def _bound_wal(self, connection: sqlite3.Connection) -> None:
        """Bring what the log file has gathered into the database, and start it anew.

        SQLite's own checkpoint never comes to its end where others write all the time: the
        log would grow without bound. So one process does the bulk beside the writers, and the
        rest while it holds them up. What fails here is no failure of the caller's operation.
        """
        self._writes += 1
        if self._writes % _WAL_EVERY:
            return
        with contextlib.suppress(OSError, sqlite3.Error):
            if os.stat(self.path + "-wal").st_size <= _WAL_BYTES:
                return
            busy, _, _ = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            if not busy:
                connection.execute("PRAGMA busy_timeout = 100")
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                connection.execute("PRAGMA busy_timeout = 0")

    def _drop(self) -> None:
        self.queue_ids = {}
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    def _after_fork(self) -> None:
        """In a child: forget what is the parent's. Closing it would be felt by the parent."""
        if self._connection is not None:
            _leaked.append(self._connection)
            self._connection = None
        self.queue_ids = {}
        self._lock = threading.RLock()
        self._inside = False
        self._pid = os.getpid()

    def __del__(self) -> None:
        if self._pid == os.getpid():
            self._drop()

    def _hold_for_fork(self) -> bool:
        """Keep all other threads out; False where one stays inside."""
        if not self._lock.acquire(timeout=_FORK_PATIENCE):
            return False
        if not self._inside:
            self._drop()
        return True

    def _go_on_after_fork(self) -> None:
        self._lock.release()


def sought(text: str) -> str | None:
    """What to look for in a column: `text`; None, which no row equals, where it isn't Unicode."""
    return text if text.isascii() or is_unicode(text) else None


def _roll_back(connection: sqlite3.Connection) -> None:
    with contextlib.suppress(sqlite3.Error):
        if connection.in_transaction:  # SQLite itself rolls back when the disk is full
            connection.execute("ROLLBACK")


_databases: weakref.WeakSet[Database] = weakref.WeakSet()
_leaked: list[sqlite3.Connection] = []


class _Forks(threading.local):
    """The forks that this thread has begun and not ended, each with what it holds."""

    def __init__(self) -> None:
        self.held: list[list[Database]] = []


# Of one thread at a time, and re-entrant, since a signal handler may fork in the midst of a fork.
_forking = threading.RLock()
_forks = _Forks()


def _before_fork() -> None:
    while True:
        _forking.acquire()
        held: list[Database] = []
        try:
            for database in list(_databases):
                if not database._hold_for_fork():
                    break
                held.append(database)
            else:
                _forks.held.append(held)
                return
        except BaseException:
            _let_go(held)
            raise
        # Whoever is inside may be about to fork itself, and wait for this very lock.
        _let_go(held)
        time.sleep(random.uniform(*_PAUSE))


def _let_go(held: list[Database]) -> None:
    for database in held:
        database._go_on_after_fork()
    _forking.release()


def _after_fork_in_parent() -> None:
    if _forks.held:
        _let_go(_forks.held.pop())


def _after_fork_in_child() -> None:
    global _forking
    for database in _databases:
        database._after_fork()
    _forks.held.clear()
    _forking = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )
