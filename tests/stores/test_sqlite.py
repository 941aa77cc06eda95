from __future__ import annotations

from pathlib import Path

import pytest

from umbel.brokers.sqlite import SqliteBroker
from umbel.clock import Clock
from umbel.ports import BrokerOptions
from umbel.stores.sqlite import SqliteStore
from umbel.testing.contract import ResultStoreContract, SharedDatabaseContract


class TestSqliteStore(ResultStoreContract):
    @staticmethod
    def connect_store(where: Path, clock: Clock) -> SqliteStore:
        return SqliteStore(where, clock=clock)


@pytest.mark.filterwarnings("ignore::umbel.exceptions.NoWorkerYet")
class TestSqliteBrokerAndStore(SharedDatabaseContract):
    @staticmethod
    def connect(where: Path, options: BrokerOptions, clock: Clock) -> SqliteBroker:
        return SqliteBroker(where, options, clock=clock)

    @staticmethod
    def connect_store(where: Path, clock: Clock) -> SqliteStore:
        return SqliteStore(where, clock=clock)
