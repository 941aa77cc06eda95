"""`result_backend` in all its forms, and each setting of the stores, changed in an app."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import event
from tests.servers import Memcached, PostgreSQL

from umbel import Umbel
from umbel.clock import ManualClock
from umbel.exceptions import BackendGetMetaError, ImproperlyConfigured, StoreUnavailable
from umbel.patientstore import PatientStore
from umbel.ports import ResultStore
from umbel.states import SUCCESS
from umbel.stores.cache import MemcachedStore
from umbel.stores.filesystem import FileStore
from umbel.stores.memory import MemoryStore
from umbel.stores.sql import SqlStore
from umbel.testing.contract.storing import result

Open = Callable[..., Any]


@pytest.fixture
def open_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Open:
    """The store of an app with these settings, in an empty working directory."""
    monkeypatch.chdir(tmp_path)

    def store(url: str, clock: ManualClock | None = None, **settings: object) -> Any:
        app = Umbel(
            "proj", broker="memory://settings", backend=url, changes=settings,
            clock=clock or ManualClock(), set_as_current=False,
        )  # fmt: skip
        request.addfinalizer(app.close)
        opened = app.store
        return opened.store if isinstance(opened, PatientStore) else opened

    return store


@pytest.mark.setting("result_backend")
@pytest.mark.parametrize(
    ("url", "kind", "location"),
    [
        ("db+sqlite:///results.db", SqlStore, "db:sqlite:///results.db"),
        ("cache+memory://", MemoryStore, "memory://cache+memory"),
        ("cache+memcached://127.0.0.1:1/", MemcachedStore, "memcached:127.0.0.1:1"),
        ("cache+memcached://a;b:2;c/", MemcachedStore, "memcached:a:11211;b:2;c:11211"),
        ("file://results", FileStore, "file:{cwd}/results"),
        ("file://{cwd}/in/depth", FileStore, "file:{cwd}/in/depth"),
        ("file://localhost{cwd}/r%20s", FileStore, "file:{cwd}/r s"),
    ],
)
def test_result_backend(open_store: Open, url: str, kind: type[ResultStore], location: str) -> None:
    store = open_store(url.format(cwd=os.getcwd()))
    assert isinstance(store, kind)
    assert store.location == location.format(cwd=os.getcwd())


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("db://results.db", "names no database behind db"),
        ("cache://host", r"expected cache\+memcached"),
        ("cache+memcached://", r"expected cache\+memcached"),
        ("cache+pylibmc://host", r"expected cache\+memcached"),
        ("file://", "names no folder"),
        ("fil:///results", "did you mean file://"),
        ("db+nonsense://x", "isn't installed"),
        ("memory+x://", "did you mean memory"),
    ],
)
def test_a_result_backend_that_cannot_be(open_store: Open, url: str, sentence: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=sentence):
        open_store(url)


@pytest.mark.parametrize("url", ["db+sqlite:///x.db", "cache+memcached://h", "file:///x"])
def test_no_store_is_a_broker(url: str) -> None:
    with pytest.raises(ImproperlyConfigured, match="isn't a URL that is known"):
        Umbel("proj", broker=url, set_as_current=False).broker  # noqa: B018


def test_a_missing_package_is_named(open_store: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name in [name for name in sys.modules if name.startswith("umbel.stores.sql")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    with pytest.raises(ImproperlyConfigured, match=r"pip install 'umbel\[sql\]'"):
        open_store("db+sqlite:///results.db")
    monkeypatch.setitem(sys.modules, "pymemcache.client.base", None)
    with pytest.raises(ImproperlyConfigured, match=r"pip install 'umbel\[cache\]'"):
        open_store("cache+memcached://h")


def tables(name: str = "results.db") -> set[str]:
    with closing(sqlite3.connect(name)) as db:
        return {row[0] for row in db.execute("SELECT name FROM sqlite_master")}


DB = "db+sqlite:///results.db"


@pytest.mark.setting("database_table_names")
def test_database_table_names(open_store: Open) -> None:
    open_store(DB, database_table_names={"task": "mine"})
    assert {"mine", "celery_tasksetmeta"} <= tables()


@pytest.mark.setting("database_create_tables_at_setup")
def test_database_create_tables_at_setup(open_store: Open) -> None:
    with pytest.raises(ImproperlyConfigured, match="database_create_tables_at_setup is off"):
        open_store(DB, database_create_tables_at_setup=False)


@pytest.mark.setting("database_engine_options")
def test_database_engine_options(open_store: Open) -> None:
    assert open_store(DB, database_engine_options={"pool_size": 3}).engine.pool.size() == 3


@pytest.mark.setting("database_engine_callback")
def test_database_engine_callback(open_store: Open) -> None:
    handed: list[object] = []
    store = open_store(DB, database_engine_callback=handed.append)
    assert handed == [store.engine]


@pytest.mark.setting("database_short_lived_sessions")
def test_database_short_lived_sessions(open_store: Open) -> None:
    counts = []
    for short in (False, True):
        made: list[object] = []
        store = open_store(DB, database_short_lived_sessions=short)
        event.listen(store.engine, "connect", lambda *args, made=made: made.append(args))
        for _ in range(3):
            store.get(["a"])
        counts.append(len(made))
    assert counts == [0, 3]


@pytest.mark.setting("database_table_schemas")
def test_database_table_schemas(open_store: Open, postgresql: PostgreSQL) -> None:
    url = f"db+{postgresql.url}"
    with pytest.raises(ImproperlyConfigured, match=r"result_backend: .*nowhere"):
        open_store(url, database_table_schemas={"task": "nowhere"})


@pytest.mark.setting("cache_backend_options")
def test_cache_backend_options(open_store: Open, memcached: Memcached) -> None:
    url = f"cache+memcached://127.0.0.1:{memcached.port}/"
    plain, prefixed = open_store(url), open_store(url, cache_backend_options={"key_prefix": b"p:"})
    plain.put([result("options")])
    assert prefixed.get(["options"]) == [None]
    plain.forget(["options"])


def test_result_keep_is_refused_where_it_cannot_be_kept(open_store: Open) -> None:
    with pytest.raises(ImproperlyConfigured, match="result_keep is set, and Memcached"):
        open_store("cache+memcached://h", result_keep=1)


def test_result_expires_of_rows_that_celery_wrote(open_store: Open) -> None:
    clock = ManualClock()
    store = open_store("file://results", clock, result_expires=50)
    path = Path("results", "celery-task-meta-a")
    path.write_bytes(result("a").meta)
    os.utime(path, (clock.wall(), clock.wall()))
    assert store.get(["a"])[0].expires_at == clock.wall() + 50


def test_timezone_is_that_of_date_done(open_store: Open) -> None:
    store = open_store(DB, timezone="Asia/Tokyo")
    store.put([result("a")])
    with closing(sqlite3.connect("results.db")) as db:
        [(done,)] = db.execute("SELECT date_done FROM celery_taskmeta").fetchall()
    assert done == "2026-01-02 12:04:05.000000"
    assert ZoneInfo("Asia/Tokyo").key in str(store._options.zone)


def test_result_accept_content_lets_old_rows_in(open_store: Open) -> None:
    with closing(sqlite3.connect("results.db")) as db:
        db.executescript((Path(__file__).parent / "celery_5_5.sql").read_text())
    with pytest.raises(BackendGetMetaError, match="add 'pickle' to result_accept_content"):
        open_store(DB, result_expires=None).get(["t1"])
    store = open_store(DB, result_expires=None, result_accept_content=["json", "pickle"])
    assert store.get(["t1"])[0].state == SUCCESS


def test_a_memcached_that_is_away(open_store: Open) -> None:
    store = open_store("cache+memcached://127.0.0.1:1/")
    with pytest.raises(StoreUnavailable, match=r"memcached:127\.0\.0\.1:1 doesn't answer"):
        store.get(["a"])
    with pytest.raises(StoreUnavailable, match=r"memcached:127\.0\.0\.1:1 doesn't answer"):
        store.put([result("a")])
