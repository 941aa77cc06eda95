"""What can be wrong with a broker file, and what is said about it."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from umbel.brokers.sqlite import SqliteBroker
from umbel.exceptions import BrokerUnavailable, NoWorkerYet, RunLost, StoreUnavailable
from umbel.exchanges import Binding
from umbel.message import Posting, Result, Unreadable
from umbel.ports import BrokerOptions, Ready
from umbel.stores.sqlite import SqliteStore
from umbel.testing.contract.rig import QUEUE, eventually, ids, message, posting


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "umbel.db"


def _broker(path: Path) -> SqliteBroker:
    broker = SqliteBroker(path, BrokerOptions())
    broker.open()
    return broker


def _age(path: Path) -> None:
    """Make the file one of format 1, which knew no bindings."""
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("DROP TABLE binding; DROP TABLE own; PRAGMA user_version = 1")


def test_a_file_of_the_first_format_is_brought_up_to_date(broker: SqliteBroker, path: Path) -> None:
    broker.publish([posting("old")])
    broker.close()
    _age(path)
    broker.open()
    broker.declare([], [Binding(QUEUE, "news", "topic", "#")])
    broker.publish([Posting(message("new"), "a.b", "news")])
    turn = broker.turn("run#1", 1, queues=[QUEUE], limit=5)
    assert ids(turn.deliveries) == ["old", "new"]
    assert len(broker.bindings()) == 1


def test_bindings_are_made_again_in_a_file_that_was_deleted(path: Path) -> None:
    broker = _broker(path)
    kept, dropped = Binding("new", "news", "fanout"), Binding(QUEUE, "news", "fanout")
    broker.declare([QUEUE], [kept, dropped])
    broker.unbind([dropped])
    path.unlink()
    with pytest.raises(BrokerUnavailable):
        broker.queues()
    with pytest.warns(NoWorkerYet):
        broker.publish([Posting(message("a"), "", "news")])
    assert broker.bindings() == (kept,)
    assert broker.peek("new", 1) == (message("a"),)
    broker.close()


def _use(broker: SqliteBroker) -> None:
    broker.open()
    broker.queues()


@pytest.fixture
def broker(path: Path) -> Iterator[SqliteBroker]:
    """Open, with a queue and an owner."""
    broker = _broker(path)
    broker.declare([QUEUE])
    broker.enlist("run", "run#1", b"")
    yield broker
    broker.close()


def test_the_location_is_the_real_path_and_the_stores_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path)
    location = f"sqlite:{tmp_path.resolve()}/real/a.db"
    assert SqliteBroker("link/a.db", BrokerOptions()).location == location
    assert SqliteStore("real/a.db").location == location


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(BrokerUnavailable, match=f"directory {tmp_path}/no doesn't exist"):
        _broker(tmp_path / "no" / "a.db")
    with pytest.raises(StoreUnavailable, match="Create it"):
        SqliteStore(tmp_path / "no" / "a.db").open()


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(BrokerUnavailable, match=f"{tmp_path} is a directory"):
        _broker(tmp_path)


_AS_NOBODY = """
import os, sys
from umbel.brokers.sqlite import SqliteBroker
from umbel.exceptions import BrokerUnavailable
from umbel.ports import BrokerOptions
if os.geteuid() == 0:
    os.seteuid(65534)
try:
    broker = SqliteBroker(sys.argv[1], BrokerOptions())
    broker.open()
    broker.declare(["q"])
except BrokerUnavailable as error:
    print(error)
"""


@pytest.mark.skipif(os.name == "nt", reason="rights are POSIX's")
@pytest.mark.parametrize("there_is_a_file", [True, False])
def test_a_file_that_may_not_be_written_is_named(path: Path, there_is_a_file: bool) -> None:
    if there_is_a_file:
        _broker(path).close()
        path.chmod(0o444)
    for parent in (path.parent, path.parent.parent):
        parent.chmod(0o755)
    path.parent.chmod(0o555)
    answer = subprocess.run(
        [sys.executable, "-c", _AS_NOBODY, str(path)], capture_output=True, text=True, check=False
    )
    path.parent.chmod(0o755)
    assert answer.stderr == ""
    assert str(path) in answer.stdout
    assert "can't be" in answer.stdout


def test_a_file_that_is_no_database_is_left_as_it_is(path: Path) -> None:
    path.write_bytes(b"This is a letter to my mother.\n" * 500)
    with pytest.raises(BrokerUnavailable, match=f"{path} is not a database or is damaged"):
        _broker(path)
    assert path.read_bytes().startswith(b"This is a letter")


def test_a_damaged_file_is_left_as_it_is(path: Path) -> None:
    broker = _broker(path)
    broker.declare([f"queue {n}" for n in range(500)])
    broker.close()
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    path.write_bytes(content)
    damaged = SqliteBroker(path, BrokerOptions())
    with pytest.raises(BrokerUnavailable, match="damaged"):
        _use(damaged)
    damaged.close()
    assert path.read_bytes() == content


def test_a_database_of_another_program_is_refused(path: Path) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE message (text)")
    with pytest.raises(BrokerUnavailable, match="of another program"):
        _broker(path)


def test_a_file_of_a_newer_version_is_refused(path: Path) -> None:
    _broker(path).close()
    with closing(sqlite3.connect(path)) as newer:
        newer.execute("PRAGMA user_version = 99")
    with pytest.raises(BrokerUnavailable, match=r"made by a newer Umbel .*99"):
        _broker(path)


def test_a_corrupt_message_is_handed_out_as_unreadable(broker: SqliteBroker, path: Path) -> None:
    broker.publish([posting("a"), posting("b")])
    with closing(sqlite3.connect(path, isolation_level=None)) as vandal:
        vandal.execute("UPDATE message SET blob = x'7b22' WHERE id = 'a'")
    first, second = broker.turn("run#1", 1, queues=[QUEUE], limit=2).deliveries
    assert isinstance(first.message, Unreadable)
    assert first.message.raw == b'{"'
    assert second.message == posting("b").message


def test_a_full_disk_undoes_the_operation_and_is_got_over(broker: SqliteBroker) -> None:
    broker.publish([posting("before")])
    with broker.database.read() as tx:
        pages = tx.execute("PRAGMA page_count").fetchone()[0]
        tx.execute(f"PRAGMA max_page_count = {pages + 3}")
    batch = [posting(f"m{n}") for n in range(200)]
    with pytest.raises(BrokerUnavailable, match=r"disk of .* is full; nothing was done"):
        broker.publish(batch)
    assert broker.queues()[0].ready == 1
    with broker.database.read() as tx:
        tx.execute("PRAGMA max_page_count = 1000000")
    broker.publish(batch)
    assert broker.queues()[0].ready == 201


def test_a_lock_that_stays_too_long_is_an_error_and_a_short_one_is_waited_for(
    broker: SqliteBroker, path: Path
) -> None:
    broker.database.patience = 0.1
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(BrokerUnavailable, match="locked by another process for too long"):
            broker.publish([posting("a")])
        assert broker.find("a") == ()
        other.execute("COMMIT")
    broker.publish([posting("a")])
    assert broker.find("a") == (Ready(QUEUE, 0),)


def test_a_deleted_file_is_noticed_and_made_anew(broker: SqliteBroker, path: Path) -> None:
    broker.publish([posting("lost with its file")])
    path.unlink()
    for operation in (
        lambda: broker.publish([posting("a")]),
        lambda: broker.wait([QUEUE], 60.0),
    ):
        with pytest.raises(BrokerUnavailable, match="deleted or replaced"):
            operation()
        broker.publish([posting("a")])  # to a new file, with the queues that were declared
        assert broker.find("a") == (Ready(QUEUE, 0),)
        path.unlink()
    with pytest.raises(BrokerUnavailable, match="deleted or replaced"):
        broker.beat("run")
    assert not broker.beat("run").alive
    with pytest.raises(RunLost):
        broker.turn("run#1", 1)


def test_a_replaced_file_is_noticed(broker: SqliteBroker, path: Path, tmp_path: Path) -> None:
    shutil.copy(path, tmp_path / "copy")
    os.replace(tmp_path / "copy", path)
    with pytest.raises(BrokerUnavailable, match="deleted or replaced"):
        broker.publish([posting("a")])


def test_a_closed_broker_says_so(path: Path) -> None:
    broker = _broker(path)
    broker.close()
    with pytest.raises(BrokerUnavailable, match="closed"):
        broker.queues()


def test_a_call_from_a_signal_handler_into_itself_is_refused(broker: SqliteBroker) -> None:
    with broker.database.write() as tx:
        tx.execute("INSERT INTO queue (name) VALUES ('x')")
        with pytest.raises(BrokerUnavailable, match="signal handler"):
            broker.publish([posting("a")])
    assert [queue.name for queue in broker.queues()] == [QUEUE, "x"]


def test_sending_to_a_file_that_no_worker_opened_warns_once(path: Path) -> None:
    broker = _broker(path)
    broker.declare([QUEUE])
    with pytest.warns(NoWorkerYet, match=str(path)):
        broker.publish([posting("a")])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        broker.publish([posting("b")])
    broker.close()


def test_a_file_that_a_worker_once_opened_needs_no_warning(broker: SqliteBroker) -> None:
    broker.leave("run")
    broker.publish([posting("a")])
    assert broker.find("a") == (Ready(QUEUE, 0),)


def test_settled_messages_leave_no_growing_file(broker: SqliteBroker, path: Path) -> None:
    store = SqliteStore(path)
    store.open()
    store.put([Result("r", "SUCCESS", bytes(100_000))])
    store.forget(["r"])
    size = path.stat().st_size
    for _ in range(20):
        store.put([Result("r", "SUCCESS", bytes(100_000))])
        store.forget(["r"])
    store.close()
    assert path.stat().st_size <= size + 300_000


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_parent_and_child_go_on_after_a_fork(path: Path) -> None:
    script = """
import os, sys
from umbel.brokers.sqlite import SqliteBroker
from umbel.ports import BrokerOptions
from umbel.testing.contract.rig import posting
broker = SqliteBroker(sys.argv[1], BrokerOptions())
broker.open()
broker.declare(["work"])
broker.enlist("run", None, b"")
broker.publish([posting("before")])
child = os.fork()
for n in range(50):
    broker.publish([posting(f"{'child' if not child else 'parent'}{n}")])
if not child:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert broker.queues()[0].ready == 101, broker.queues()
broker.close()
"""
    answer = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.stderr == ""
    assert answer.returncode == 0


def test_the_tables_are_made_whatever_the_locale(path: Path) -> None:
    script = """
import sys
from umbel.brokers.sqlite import SqliteBroker
from umbel.ports import BrokerOptions
broker = SqliteBroker(sys.argv[1], BrokerOptions())
broker.open()
broker.close()
"""
    ascii_only = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    answer = subprocess.run(
        [sys.executable, "-W", "error", "-X", "warn_default_encoding", "-c", script, str(path)],
        env={**os.environ, **ascii_only},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.stderr == ""


def test_the_log_file_does_not_grow_for_ever(broker: SqliteBroker, path: Path) -> None:
    """A reader that holds its view keeps SQLite from starting the log anew; afterwards it must."""
    wal = path.with_name("umbel.db-wal")
    store = SqliteStore(path)
    store.open()
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM queue").fetchall()
        while wal.stat().st_size < 40 * 2**20:
            store.put([Result("r", "STARTED", os.urandom(2_000_000))])

    def shrunk() -> bool:
        store.put([Result("r", "STARTED", b"{}")])
        return wal.stat().st_size < 9 * 2**20

    eventually(shrunk)
    store.close()
