from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from umbel.clock import Clock, ManualClock
from umbel.exceptions import ImproperlyConfigured, StoreUnavailable
from umbel.states import STARTED
from umbel.stores.filesystem import FileStore
from umbel.testing.contract import ResultStoreContract
from umbel.testing.contract.storing import result

DAY = 86_400.0


class TestFileStore(ResultStoreContract):
    @staticmethod
    def connect_store(where: Path, clock: Clock) -> FileStore:
        return FileStore(str(where), expires=DAY, clock=clock)


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    store = FileStore(str(tmp_path / "results"), expires=DAY, clock=ManualClock())
    store.open()
    return store


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "results"


def test_a_file_of_celery_is_read_and_expires_by_its_age(store: FileStore, folder: Path) -> None:
    clock = ManualClock()
    path = folder / "celery-task-meta-from-celery"
    path.write_bytes(result("from-celery").meta)
    os.utime(path, (clock.wall(), clock.wall()))
    assert store.get(["from-celery"]) == [result("from-celery", expires_at=clock.wall() + DAY)]
    os.utime(path, (clock.wall() - DAY, clock.wall() - DAY))
    assert store.get(["from-celery"]) == [None]
    assert store.prune() == 1
    assert not path.exists()


def test_celery_finds_the_file_under_its_name(store: FileStore, folder: Path) -> None:
    store.put([result("an-id")])
    assert (folder / "celery-task-meta-an-id").read_bytes() == result("an-id").meta


@pytest.mark.parametrize(
    "task_id", ["../../out", "a/b", "\0", "a%2Fb", "x" * 300, "é" * 150, "\ud800"]
)
def test_no_id_leads_out_of_the_folder(store: FileStore, folder: Path, task_id: str) -> None:
    kept = result("a")
    store.put([type(kept)(task_id, kept.state, kept.meta), result("a")])
    assert store.get([task_id]) == [type(kept)(task_id, kept.state, kept.meta)]
    assert len(list(folder.glob("celery-task-meta-*"))) == 2
    assert {path.parent for path in folder.parent.rglob("celery-task*")} == {folder}
    store.forget([task_id])
    assert store.get([task_id, "a"]) == [None, result("a")]


def test_ids_that_differ_have_files_that_differ(store: FileStore, folder: Path) -> None:
    store.put([result("a/b"), result("a%2Fb"), result("a%252Fb")])
    assert len(list(folder.glob("celery-task-meta-*"))) == 3


def test_a_record_that_cannot_be_read_is_replaced(store: FileStore, folder: Path) -> None:
    (folder / "celery-task-meta-a").write_bytes(b"half a rec")
    store.put([result("a")])
    assert store.get(["a"]) == [result("a")]


def test_what_a_killed_writer_left_goes_after_an_hour(folder: Path) -> None:
    clock = ManualClock(wall=time.time())
    store = FileStore(str(folder), expires=DAY, clock=clock)
    store.open()
    new = folder / ".umbel-new-0"
    new.write_bytes(b"{")
    clock.advance(3590)
    store.prune()
    assert new.exists()
    clock.advance(20)
    store.prune()
    assert not new.exists()


def test_without_result_expires_nothing_expires(folder: Path) -> None:
    clock = ManualClock()
    store = FileStore(str(folder), clock=clock)
    store.open()
    store.put([result("a", STARTED, expires_at=clock.wall() + 1), result("b")])
    clock.advance(1e9)
    assert store.get(["a", "b"]) == [result("a", STARTED), result("b")]
    assert store.prune() == 0


def test_a_folder_that_cannot_be_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ImproperlyConfigured, match=r"file/results can't be made"):
        FileStore(str(tmp_path / "file" / "results")).open()


def test_a_folder_that_vanished_is_a_store_that_is_away(store: FileStore, folder: Path) -> None:
    (folder / ".umbel.lock").unlink()
    folder.rmdir()
    with pytest.raises(StoreUnavailable, match="can't keep results now"):
        store.put([result("a")])
    folder.mkdir()
    store.put([result("a")])
    assert store.get(["a"]) == [result("a")]
