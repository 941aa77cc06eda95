"""SIGKILL before every statement of every operation: it happened whole or not at all.

The statements are enumerated through SQLite's trace hook and their number is asserted, so that
a statement that is added to an operation is a statement that was killed.
"""

from __future__ import annotations

import importlib.util
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType

import pytest

_PROGRAM = Path(__file__).with_name("sqlite_killing.py")


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sqlite_killing", _PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


killing = _load()

STATEMENTS = {
    "open": 41,
    "declare": 5,
    "declare bindings": 9,
    "declare own queue": 8,
    "unbind": 5,
    "publish to an exchange": 16,
    "publish one": 10,
    "publish three": 16,
    "enlist": 6,
    "turn that settles": 58,
    "turn that leases": 26,
    "beat": 70,
    "abandon": 32,
    "leave": 61,
    "revoke": 15,
    "revoke once": 12,
    "unrevoke": 5,
    "acquire": 4,
    "release": 3,
    "take": 4,
    "count": 4,
    "broadcast": 3,
    "purge": 10,
    "dead_requeue": 11,
    "dead_delete": 8,
    "find": 20,
    "put": 4,
    "forget": 4,
    "prune": 6,
}
"""How many statements each operation has on the template."""

Dump = dict[str, list[tuple[object, ...]]]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("template") / "umbel.db"
    killing.make_template(path)
    return path


def test_every_operation_is_counted() -> None:
    assert STATEMENTS.keys() == killing.OPERATIONS.keys()


@pytest.fixture(scope="module")
def killer() -> Iterator[subprocess.Popen[str]]:
    server = subprocess.Popen(
        [sys.executable, str(_PROGRAM)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with server:
        yield server
        assert server.stdin is not None
        server.stdin.close()


def _kill(killer: subprocess.Popen[str], operation: str, n: int, path: Path) -> int:
    assert killer.stdin is not None
    assert killer.stdout is not None
    print(operation, n, path, sep="\t", file=killer.stdin, flush=True)
    return int(killer.stdout.readline())


def _dump(path: Path) -> Dump:
    """Every row of every table, as a process that comes after the death sees them."""
    if not path.exists():
        return {}
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        return {
            name: sorted(connection.execute(f"SELECT * FROM {name}").fetchall(), key=repr)
            for (name,) in tables.fetchall()
        }


def _work_on(path: Path) -> None:
    """A process that comes after the death finds a file that works."""
    survivor = killing.Pair(path).broker
    survivor.open()
    survivor.declare(["work"])
    survivor.enlist("survivor", "survivor#1", b"")
    survivor.publish([killing.posting("next")])
    assert survivor.turn("survivor#1", 1, queues=["work"], limit=1).deliveries
    survivor.close()


@pytest.mark.parametrize("operation", killing.OPERATIONS)
def test_a_kill_at_every_statement_leaves_all_or_nothing(
    operation: str, template: Path, killer: subprocess.Popen[str], tmp_path: Path
) -> None:
    def fresh(name: str) -> Path:
        path = tmp_path / name
        if operation != "open":
            shutil.copy(template, path)
        return path

    whole = fresh("whole")
    before = _dump(whole)
    statements: list[str] = []
    pair = killing.Pair(whole)
    if operation != "open":
        pair.open()
    pair.trace(statements.append)
    killing.OPERATIONS[operation](pair)
    pair.trace(None)
    pair.close()
    after = _dump(whole)
    assert before != after, "the operation does nothing on the template"

    happened = [False]
    for n in range(1, len(statements) + 1):
        path = fresh(f"killed{n}")
        assert _kill(killer, operation, n, path) == -9
        found = _dump(path)
        if operation == "open" and not found:
            found = before
        assert found in (before, after), f"half done when killed before {statements[n - 1]!r}"
        happened.append(found == after)
    assert happened == sorted(happened), "what had happened was undone"
    _work_on(tmp_path / f"killed{len(statements)}")
    assert _kill(killer, operation, len(statements) + 1, fresh("not killed")) == 0
    assert _dump(tmp_path / "not killed") == after
    assert len(statements) == STATEMENTS.get(operation), statements
