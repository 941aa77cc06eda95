from __future__ import annotations

from pathlib import Path

import pytest
from tests.servers import MariaDB, PostgreSQL

from umbel.clock import Clock
from umbel.stores.sql import SqlOptions, SqlStore
from umbel.testing.contract import ResultStoreContract


class TestSqlStoreOnSqlite(ResultStoreContract):
    @staticmethod
    def connect_store(where: Path, clock: Clock) -> SqlStore:
        return SqlStore(f"sqlite:///{where}", clock=clock)


def tables_for(where: Path) -> dict[str, str]:
    """Names that no other test has, the same for the same path."""
    tag = f"{abs(hash(str(where))):x}"
    return {"task": f"t_{tag}", "group": f"g_{tag}"}


_url: list[str] = []


class OnServer(ResultStoreContract):
    @staticmethod
    def connect_store(where: Path, clock: Clock) -> SqlStore:
        return SqlStore(_url[0], SqlOptions(names=tables_for(where)), clock=clock)


class TestSqlStoreOnPostgreSQL(OnServer):
    @pytest.fixture(autouse=True)
    def _server(self, postgresql: PostgreSQL) -> None:
        _url[:] = [postgresql.url]


class TestSqlStoreOnMariaDB(OnServer):
    @pytest.fixture(autouse=True)
    def _server(self, mariadb: MariaDB) -> None:
        _url[:] = [mariadb.url]
