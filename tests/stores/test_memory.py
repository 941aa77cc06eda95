from __future__ import annotations

from pathlib import Path

from umbel.brokers.memory import MemoryBroker
from umbel.clock import Clock
from umbel.ports import BrokerOptions
from umbel.stores.memory import MemoryStore
from umbel.testing.contract import ResultStoreContract, SharedDatabaseContract


class TestMemoryStore(ResultStoreContract, SharedDatabaseContract):
    @staticmethod
    def connect(where: Path, options: BrokerOptions, clock: Clock) -> MemoryBroker:
        return MemoryBroker(str(where), options, clock=clock)

    @staticmethod
    def connect_store(where: Path, clock: Clock) -> MemoryStore:
        return MemoryStore(str(where), clock=clock)
