"""``file:///folder`` as result store: one file per record, named and filled as Celery's.

A file's time of modification is its expiry less `result_expires`: the time of writing, unless the
record's life is another one. So Celery's clean-up, which adds `result_expires` to it, deletes at
the right time as well, and what Celery wrote expires here. It is a century ahead for a record that
never expires. Where `result_expires` is None, none does.

Writers take turns by a lock on ``.umbel.lock``; readers need none, since a record appears by
renaming. Nothing is synced to the disk: what a power loss takes with it is what the system had
not written yet.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from umbel.clock import SYSTEM, Clock
from umbel.exceptions import (
    BackendGetMetaError,
    ImproperlyConfigured,
    StoreUnavailable,
)
from umbel.formats import JSON_RESULTS, ResultFormat
from umbel.message import Result
from umbel.polling import Pauses, poll
from umbel.states import SUCCESS
from umbel.stored import decode_meta

PREFIX: Final = "celery-task-meta-"
LOCK: Final = ".umbel.lock"
_NEW: Final = ".umbel-new-"
_CENTURY: Final = 100 * 365 * 86_400.0
_LONGEST_NAME: Final = 200
_ABANDONED: Final = 3600.0


class FileStore:
    """States and values by task id, in one folder. `expires` is `result_expires`, in seconds."""

    def __init__(
        self,
        folder: str,
        *,
        expires: float | None = None,
        form: ResultFormat = JSON_RESULTS,
        clock: Clock = SYSTEM,
    ) -> None:
        self._form = form
        self._folder = Path(folder).absolute()
        self._expires = expires
        self._clock = clock
        self._pauses = Pauses()

    @property
    def location(self) -> str:
        return f"file:{self._folder}"

    def open(self) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with self._alone():
                pass
        except StoreUnavailable as error:
            raise ImproperlyConfigured(
                f"the result store file://{self._folder} can't be used: {error.__cause__}; name a "
                "folder that this process may write in"
            ) from error
        except OSError as error:
            raise ImproperlyConfigured(
                f"the result store file://{self._folder} can't be made: {error}; name a folder "
                "that this process may write in"
            ) from error
        self._pauses.open()

    def close(self) -> None:
        self._pauses.close()

    def put(self, results: Sequence[Result]) -> None:
        with self._translated(), self._alone():
            for result in results:
                if not self._has_success(result.task_id):
                    self._write(result)

    def get(self, task_ids: Sequence[str]) -> list[Result | None]:
        with self._translated():
            return [self._read(task_id) for task_id in task_ids]

    def wait(self, task_ids: Sequence[str], timeout: float) -> None:
        poll(self.get, task_ids, timeout, self._pauses)

    def interrupt(self) -> None:
        self._pauses.interrupt()

    def forget(self, task_ids: Sequence[str]) -> None:
        with self._translated(), self._alone():
            for task_id in task_ids:
                self._path(task_id).unlink(missing_ok=True)

    def prune(self, keep: int | None = None) -> int:
        with self._translated():
            self._drop_abandoned()
            pruned = sum(
                self._unlink_if_old(path, written_at)
                for written_at, path in self._records()
                if self._is_expired(written_at)
            )
            if keep is None:
                return pruned
            newest_first = sorted(self._records(), reverse=True)
            done = [each for each in newest_first if self._state_in(each[1]) == SUCCESS]
            return pruned + sum(self._unlink_if_old(path, at) for at, path in done[keep:])

    def _path(self, task_id: str) -> Path:
        """As Celery's where the id can be a file's name; no id leads out of the folder."""
        name = task_id.replace("%", "%25").replace("/", "%2F").replace("\0", "%00")
        encoded = name.encode("utf-8", "surrogatepass")
        if len(encoded) > _LONGEST_NAME or encoded != name.encode("utf-8", "replace"):
            name = f"%{hashlib.sha256(encoded).hexdigest()}"
        return self._folder / f"{PREFIX}{name}"

    def _read(self, task_id: str) -> Result | None:
        try:
            with self._path(task_id).open("rb") as file:
                written_at = os.fstat(file.fileno()).st_mtime
                meta = file.read()
        except FileNotFoundError:
            return None
        if self._is_expired(written_at):
            return None
        return Result(task_id, decode_meta(meta, self._form).status, meta, self._expiry(written_at))

    def _has_success(self, task_id: str) -> bool:
        try:
            old = self._read(task_id)
        except BackendGetMetaError:
            return False
        return old is not None and old.state == SUCCESS

    def _state_in(self, path: Path) -> str:
        try:
            return decode_meta(path.read_bytes(), self._form).status
        except (FileNotFoundError, BackendGetMetaError):
            return ""

    def _write(self, result: Result) -> None:
        new = self._folder / f"{_NEW}{uuid.uuid4().hex}"
        try:
            new.write_bytes(result.meta)
            written_at = round(self._time_of(result) * 1e9)
            os.utime(new, ns=(written_at, written_at))
            new.replace(self._path(result.task_id))
        except BaseException:
            new.unlink(missing_ok=True)
            raise

    def _time_of(self, result: Result) -> float:
        if self._expires is not None and result.expires_at is not None:
            return result.expires_at - self._expires
        now = self._clock.wall()
        return now if self._expires is None else now + _CENTURY

    def _expiry(self, written_at: float) -> float | None:
        """None: never."""
        if self._expires is None or written_at > self._clock.wall() + _CENTURY / 2:
            return None
        return written_at + self._expires

    def _is_expired(self, written_at: float) -> bool:
        expires_at = self._expiry(written_at)
        return expires_at is not None and expires_at <= self._clock.wall()

    def _records(self) -> Iterator[tuple[float, Path]]:
        """(time of modification, path) of each record."""
        with os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.name.startswith(PREFIX):
                    with contextlib.suppress(FileNotFoundError):
                        yield entry.stat().st_mtime, Path(entry.path)

    def _unlink_if_old(self, path: Path, written_at: float) -> bool:
        """Unless another record has taken its place meanwhile."""
        with self._alone(), contextlib.suppress(FileNotFoundError):
            if path.stat().st_mtime == written_at:
                path.unlink()
                return True
        return False

    def _drop_abandoned(self) -> None:
        """Files that a killed writer never renamed."""
        for path in self._folder.glob(f"{_NEW}*"):
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_ctime < self._clock.wall() - _ABANDONED:
                    path.unlink()

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """No other writer is at work, in this process or another."""
        with self._translated():
            file = os.open(self._folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        finally:
            os.close(file)

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreUnavailable(
                f"the folder {self._folder} can't keep results now: {error}."
            ) from error
