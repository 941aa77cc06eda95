"""Rows that Celery wrote are read, and what is written is what Celery writes.

The golden files are dumps of databases that Celery 5.7 and 5.5 filled; `date_done` and the ids of
the rows are theirs.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from umbel.clock import ManualClock
from umbel.exceptions import BackendGetMetaError
from umbel.formats import JSON_RESULTS, ResultFormat
from umbel.message import Result
from umbel.states import FAILURE, RETRY, STARTED, SUCCESS
from umbel.stored import Meta, decode_exception, decode_meta, encode_meta
from umbel.stores.sql import SqlOptions, SqlStore

EXTENDED = {
    "name": "proj.add",
    "args": [2, 3],
    "kwargs": {"z": 1},
    "worker": "celery@h",
    "retries": 1,
    "queue": "celery",
}

TRUSTING = ResultFormat.find("json", None, ("json", "pickle"), {}, 2**20)
Open = Callable[..., SqlStore]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "results.db"


@pytest.fixture
def open_store(file: Path) -> Iterator[Open]:
    opened: list[SqlStore] = []

    def make(
        dump: str = "",
        clock: ManualClock | None = None,
        form: ResultFormat = JSON_RESULTS,
        **options: Any,
    ) -> SqlStore:
        if dump:
            with closing(sqlite3.connect(file)) as db:
                db.executescript((Path(__file__).parent / dump).read_text())
        store = SqlStore(
            f"sqlite:///{file}", SqlOptions(**options), form=form, clock=clock or ManualClock()
        )
        store.open()
        opened.append(store)
        return store

    yield make
    for store in opened:
        store.close()


def meta_of(store: SqlStore, task_id: str) -> Meta:
    (record,) = store.get([task_id])
    assert record is not None
    return decode_meta(record.meta)


def columns(file: Path, task_id: str) -> dict[str, object]:
    with closing(sqlite3.connect(file)) as db:
        db.row_factory = sqlite3.Row
        row = db.execute("SELECT * FROM celery_taskmeta WHERE task_id = ?", (task_id,)).fetchone()
    return dict(row)


def test_a_success_of_celery(open_store: Open) -> None:
    meta = meta_of(open_store("celery_5_7.sql"), "t1")
    assert (meta.status, meta.result, meta.children) == (SUCCESS, {"a": [1, None]}, [])
    assert meta.date_done is not None
    assert datetime.fromisoformat(meta.date_done).tzinfo is not None
    assert meta.extra == EXTENDED


def test_its_children(open_store: Open) -> None:
    assert meta_of(open_store("celery_5_7.sql"), "t2").children == [[["child-1", None], None]]


@pytest.mark.parametrize(
    ("task_id", "state", "text"),
    [("t3", FAILURE, "KeyError('k')"), ("t5", RETRY, "ValueError('again')")],
)
@pytest.mark.parametrize("dump", ["celery_5_7.sql", "celery_5_5.sql"])
def test_its_exceptions(open_store: Open, dump: str, task_id: str, state: str, text: str) -> None:
    meta = meta_of(open_store(dump, form=TRUSTING), task_id)
    assert meta.status == state
    assert repr(decode_exception(meta.result)) == text
    assert meta.traceback is not None


def test_its_states_that_are_not_final(open_store: Open) -> None:
    meta = meta_of(open_store("celery_5_7.sql"), "t4")
    assert (meta.status, meta.date_done) == (STARTED, None)
    assert meta.result == {"pid": 1, "hostname": "celery@h"}


def test_its_stamps(open_store: Open) -> None:
    stamps = {"stamped_headers": ["tenant"], "tenant": ["a"]}
    assert meta_of(open_store("celery_5_7.sql"), "t6").extra == {**EXTENDED, **stamps}


def test_pickled_rows_of_an_older_celery_are_read_where_pickle_is_accepted(
    open_store: Open,
) -> None:
    store = open_store("celery_5_5.sql", form=TRUSTING)
    assert meta_of(store, "t1").result == {"a": [1, None]}
    assert meta_of(store, "t2").result is None
    assert meta_of(store, "t6").result == 6
    assert meta_of(store, "t1").extra == EXTENDED


def test_else_they_are_refused_in_a_sentence(open_store: Open) -> None:
    store = open_store("celery_5_5.sql")
    with pytest.raises(BackendGetMetaError, match="result of the stored result of task t1 is pick"):
        store.get(["t1"])
    assert meta_of(store, "t2").result is None  # NULL is no pickle


def test_an_older_table_takes_new_records_without_the_columns_it_lacks(
    open_store: Open, file: Path
) -> None:
    store = open_store("celery_5_5.sql")
    children = [[["child", None], None]]
    meta = encode_meta("new", SUCCESS, 1, None, children, extended=EXTENDED)
    store.put([Result("new", SUCCESS, meta, 2e9)])
    assert meta_of(store, "new").extra == EXTENDED
    assert meta_of(store, "new").children == []
    assert "expires_at" not in columns(file, "new")
    assert store.prune() == 0


def test_a_success_of_celery_is_not_overwritten(open_store: Open) -> None:
    store = open_store("celery_5_7.sql")
    store.put([Result("t6", FAILURE, encode_meta("t6", FAILURE, ValueError("late")))])
    assert meta_of(store, "t6").result == 6


def test_rows_of_celery_expire_by_when_the_task_ended(open_store: Open) -> None:
    ended = datetime(2026, 11, 30, 18, tzinfo=UTC).timestamp()
    clock = ManualClock(wall=ended + 86_000)
    store = open_store("celery_5_7.sql", clock, expires=86_400.0)
    assert store.prune() == 0
    clock.advance(2000)
    assert store.get(["t1"]) == [None]
    assert store.prune() == 4
    assert store.get(["t4"])[0] is not None  # not ended


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York"])
def test_rows_expire_in_the_zone_of_the_app(open_store: Open, file: Path, zone: str) -> None:
    ended = datetime(2026, 11, 30, 12, tzinfo=UTC)
    clock = ManualClock(wall=ended.timestamp() + 3500)
    store = open_store(clock=clock, zone=ZoneInfo(zone), expires=3600.0)
    meta = encode_meta("a", SUCCESS, 1, date_done=ended.isoformat())
    store.put([Result("a", SUCCESS, meta)])
    assert (store.prune(), columns(file, "a")["expires_at"]) == (0, None)
    assert store.get(["a"])[0] is not None
    clock.advance(200)
    assert store.get(["a"]) == [None]
    assert store.prune() == 1


def test_the_columns_are_what_celery_writes(open_store: Open, file: Path) -> None:
    store = open_store()
    meta = encode_meta(
        "a",
        SUCCESS,
        {"x": "é"},
        None,
        [[["c", None], None]],
        "2026-01-02T03:04:05.678901+00:00",
        extended={**EXTENDED, "stamped_headers": ["tenant"], "tenant": ["a"]},
    )
    store.put([Result("a", SUCCESS, meta, 5.5e9)])
    row = columns(file, "a")
    assert row.pop("id") == 1
    assert row == {
        "task_id": "a",
        "status": SUCCESS,
        "result": b'{"x":"\xc3\xa9"}',
        "date_done": "2026-01-02 03:04:05.678901",
        "traceback": None,
        "children": b'[[["c",null],null]]',
        "name": "proj.add",
        "args": b"[2,3]",
        "kwargs": b'{"z":1}',
        "worker": "celery@h",
        "retries": 1,
        "queue": "celery",
        "stamps": b'{"stamped_headers":["tenant"],"stamps":{"tenant":["a"]}}',
        "expires_at": 5.5e9,
    }
    (record,) = store.get(["a"])
    assert record is not None
    assert record.meta == meta


def test_nothing_is_null_that_celery_has_null_for_nothing(open_store: Open, file: Path) -> None:
    store = open_store()
    store.put([Result("a", STARTED, encode_meta("a", STARTED, {"pid": 1}, children=[]))])
    row = columns(file, "a")
    kept = {"id", "task_id", "status", "result"}
    assert {name for name, value in row.items() if value is not None} == kept


def test_times_are_naive_in_the_zone_of_the_app(open_store: Open, file: Path) -> None:
    store = open_store(zone=ZoneInfo("Asia/Tokyo"))
    meta = encode_meta("a", SUCCESS, 1, date_done="2026-11-30T14:03:00+00:00")
    store.put([Result("a", SUCCESS, meta)])
    assert columns(file, "a")["date_done"] == "2026-11-30 23:03:00.000000"
    assert meta_of(store, "a").date_done == "2026-11-30T23:03:00+09:00"


def test_bytes_that_are_no_result_are_named(open_store: Open, file: Path) -> None:
    store = open_store("celery_5_7.sql")
    with closing(sqlite3.connect(file)) as db, db:
        db.execute("UPDATE celery_taskmeta SET result = 'half a j' WHERE task_id = 't1'")
        db.execute("UPDATE celery_taskmeta SET result = X'80054B' WHERE task_id = 't6'")
    with pytest.raises(BackendGetMetaError, match="result of the stored result of task t1 can't"):
        store.get(["t1"])
    store.close()
    store = open_store(form=TRUSTING)
    with pytest.raises(
        BackendGetMetaError, match="result of the stored result of task t6 is pickled"
    ):
        store.get(["t6"])
    store.close()
