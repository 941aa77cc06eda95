"""The settings ``database_…``, each changed and seen to matter; races; servers that are away."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event, text
from tests.servers import MariaDB, PostgreSQL, Server

from umbel.exceptions import BackendStoreError, ImproperlyConfigured, StoreUnavailable
from umbel.message import Result
from umbel.states import FAILURE, STARTED, SUCCESS
from umbel.stores.sql import SqlOptions, SqlStore
from umbel.testing.contract.rig import Background, eventually
from umbel.testing.contract.storing import result


def tables_in(file: Path) -> set[str]:
    with closing(sqlite3.connect(file)) as db:
        rows = db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    return {name for (name,) in rows} - {"sqlite_sequence"}


def used(url: str, **options: Any) -> SqlStore:
    """A store that was written to and read."""
    store = SqlStore(url, SqlOptions(**options))
    store.open()
    for n in range(3):
        store.put([result(f"m{n}")])
        assert store.get([f"m{n}"]) == [result(f"m{n}")]
    return store


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "results.db"


@pytest.fixture
def url(file: Path) -> str:
    return f"sqlite:///{file}"


def test_table_names(url: str, file: Path) -> None:
    used(url, names={"task": "mine", "group": "mine_too"}).close()
    assert tables_in(file) == {"mine", "mine_too"}


def test_tables_are_celery_s_by_default(url: str, file: Path) -> None:
    used(url).close()
    assert tables_in(file) == {"celery_taskmeta", "celery_tasksetmeta"}


def test_table_schemas(postgresql: PostgreSQL) -> None:
    plain = SqlStore(postgresql.url)
    with plain.engine.begin() as connection:
        connection.execute(text("DROP SCHEMA IF EXISTS results CASCADE"))
        connection.execute(text("CREATE SCHEMA results"))
    used(postgresql.url, schemas={"task": "results", "group": "results"}).close()
    with plain.engine.connect() as connection:
        rows = connection.execute(text("SELECT count(*) FROM results.celery_taskmeta")).scalar()
    plain.close()
    assert rows == 3


def test_create_tables_at_setup_off_leaves_that_to_others(url: str, file: Path) -> None:
    store = SqlStore(url, SqlOptions(create_tables=False))
    with pytest.raises(ImproperlyConfigured, match="'celery_taskmeta' isn't there, and database_c"):
        store.open()
    assert tables_in(file) == set()
    used(url).close()
    store.open()
    assert store.get(["m1"]) == [result("m1")]
    store.close()


def test_engine_options(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    store = used(url, engine={"pool_size": 3, "max_overflow": 0})
    assert store.engine.pool.size() == 3  # type: ignore[attr-defined]  # a QueuePool's
    store.close()
    with pytest.raises(ImproperlyConfigured, match=r"database_engine_options .*nonsense"):
        SqlStore(url, SqlOptions(engine={"nonsense": 1}))


def connects(url: str, **options: Any) -> int:
    """Connections that `used` makes."""
    made: list[object] = []

    def watch(engine: Engine) -> None:
        event.listen(engine, "connect", lambda *args: made.append(args))

    used(url, engine_callback=watch, **options).close()
    return len(made)


def test_short_lived_sessions(url: str) -> None:
    assert connects(url) == 1
    # The options of a pool, which there is none of then, do no harm.
    assert connects(url, short_lived=True, engine={"pool_size": 3}) > 6


def called_by_name(engine: Engine) -> None:
    engine.dialect.umbel_was_here = True  # type: ignore[attr-defined]  # a mark for the test


def test_engine_callback_may_be_a_dotted_name(url: str) -> None:
    for name in (f"{__name__}.called_by_name", f"{__name__}:called_by_name"):
        store = SqlStore(url, SqlOptions(engine_callback=name))
        assert vars(store.engine.dialect)["umbel_was_here"]
        store.close()


@pytest.mark.parametrize("callback", [3, "nowhere.at_all", "nodots"])
def test_an_engine_callback_that_is_none(url: str, callback: object) -> None:
    with pytest.raises(ImproperlyConfigured, match="database_engine_callback"):
        SqlStore(url, SqlOptions(engine_callback=callback))


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("nonsense", "can't read the URL behind db"),
        ("cobol://host/db", "isn't installed"),
        ("mysql+mysqlconnector://host/db", "isn't installed"),
        ("sqlite://", "name a file"),
        ("sqlite:///:memory:", "name a file"),
    ],
)
def test_a_url_that_cannot_be(url: str, sentence: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=sentence):
        SqlStore(url)


def test_a_password_is_shown_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    store = SqlStore("postgresql+psycopg://user:geheim@127.0.0.1:1/db")
    assert "geheim" not in store.location
    with caplog.at_level("WARNING", "umbel"):
        store.open()
    with pytest.raises(StoreUnavailable) as caught:
        store.get(["a"])
    assert "used as soon as it can be" in caplog.text
    assert "geheim" not in str(caught.value) + caplog.text
    store.close()


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, dict[str, str]]:
    """(URL, table names), on each database."""
    names = {"task": f"t{abs(hash(tmp_path)):x}", "group": f"g{abs(hash(tmp_path)):x}"}
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/results.db", names
    return request.getfixturevalue(request.param).url, names


def test_writers_that_meet_never_replace_a_success(anywhere: tuple[str, dict[str, str]]) -> None:
    """Six writers on the same ids, in batches of different orders, from the table's creation on."""
    url, names = anywhere
    ids = [f"m{n}" for n in range(12)]

    def write(state: str, order: list[str]) -> Callable[[], None]:
        def work() -> None:
            store = SqlStore(url, SqlOptions(names=names))
            store.open()
            for _ in range(4):
                patiently(lambda: store.put([result(task_id, state) for task_id in order]))
            store.close()

        return work

    states = (STARTED, FAILURE, SUCCESS) * 2
    orders = (ids, ids[::-1])
    writers = [Background(write(state, orders[n % 2])) for n, state in enumerate(states)]
    for writer in writers:
        writer.result()
    store = SqlStore(url, SqlOptions(names=names))
    store.open()
    assert store.get(ids) == [result(task_id) for task_id in ids]
    store.close()


def patiently(call: Callable[[], object]) -> None:
    """As a worker does: a database may ask to repeat what deadlocked."""

    def did() -> bool:
        try:
            call()
        except StoreUnavailable:
            return False
        return True

    eventually(did)


def test_a_large_result_fits(anywhere: tuple[str, dict[str, str]]) -> None:
    url, names = anywhere
    store = SqlStore(url, SqlOptions(names=names))
    store.open()
    large = result("a", value="x" * 3_000_000)
    store.put([large])
    assert store.get(["a"]) == [large]
    store.close()


def test_more_ids_than_one_statement_takes(anywhere: tuple[str, dict[str, str]]) -> None:
    url, names = anywhere
    store = SqlStore(url, SqlOptions(names=names))
    store.open()
    records = [result(f"m{n}") for n in range(2500)]
    store.put(records)
    assert store.get([f"m{n}" for n in range(2500)]) == records
    assert store.prune(100) == 2400
    store.forget([f"m{n}" for n in range(2500)])
    assert store.get(["m2499"]) == [None]
    store.close()


def test_a_result_larger_than_a_packet_is_refused_not_tried_for_ever(mariadb: MariaDB) -> None:
    store = SqlStore(mariadb.url, SqlOptions(names={"task": "packets"}))
    store.open()
    with pytest.raises(BackendStoreError, match="max_allowed_packet"):
        store.put([result("a", value="x" * 17_000_000)])
    store.close()


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_what_a_column_does_not_take_is_refused(kind: str, request: pytest.FixtureRequest) -> None:
    store = SqlStore(request.getfixturevalue(kind).url, SqlOptions(names={"task": "refusing"}))
    store.open()
    record = Result("x" * 200, SUCCESS, result("x" * 200).meta)
    with pytest.raises(BackendStoreError, match="refuses it"):
        store.put([record])
    assert store.get(["x" * 200]) == [None]
    store.close()


@pytest.mark.parametrize("kind", [PostgreSQL, MariaDB])
def test_a_server_that_is_away_and_comes_back(kind: type[PostgreSQL | MariaDB]) -> None:
    server: Server = kind()
    try:
        server.prepare()
        server.start()
        assert isinstance(server, PostgreSQL | MariaDB)
        store = used(server.url, engine={"pool_pre_ping": True})
        server.kill()
        for call in (
            lambda: store.put([result("a")]),
            lambda: store.get(["a"]),
            lambda: store.forget(["a"]),
            store.prune,
        ):
            with pytest.raises(StoreUnavailable, match="can't be used now"):
                call()
        server.start()
        store.put([result("a")])
        assert store.get(["a", "m0"]) == [result("a"), result("m0")]
        store.close()
    finally:
        server.remove()
