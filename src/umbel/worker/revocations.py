"""What a pool process knows of the revocation log."""

from __future__ import annotations

import threading
from typing import Final

from umbel.ports import Coordinator
from umbel.worker.patience import patiently

MOST_STALE: Final = 10_000
"""Ids beyond the last whole reading, after which the log is read whole again: it forgets, too."""


class Revocations:
    """Follows the log from version to version; before an id counts, the log has the last word,
    since an id can have been taken out of it. Thread-safe."""

    def __init__(self, log: Coordinator) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._ids: set[str] = set()
        self._version = 0
        self._whole_version = 0
        self._whole_size = 0

    def follow(self, version: int) -> None:
        """Read what was added up to `version`. Raises what the log raises."""
        with self._lock:
            if version <= self._version:
                return
            self._version, entries = self._log.revoked(self._version)
            self._ids.update(entry.task_id for entry in entries)
            if len(self._ids) > self._whole_size + MOST_STALE:
                self._read_whole()

    def names(self, task_id: str) -> bool:
        """Whether the log, as it is now, names this id."""
        if task_id not in self._ids:
            return False
        with self._lock:
            if self._whole_version != self._version:
                patiently(self._read_whole)
            return task_id in self._ids

    def _read_whole(self) -> None:
        self._version, entries = self._log.revoked(0)
        self._ids = {entry.task_id for entry in entries}
        self._whole_version, self._whole_size = self._version, len(self._ids)
