from __future__ import annotations

from pathlib import Path

from umbel.brokers.memory import MemoryBroker
from umbel.clock import Clock
from umbel.ports import BrokerOptions
from umbel.testing.contract import BrokerContract, CoordinatorContract, InspectorContract


class TestMemoryBroker(BrokerContract, CoordinatorContract, InspectorContract):
    @staticmethod
    def connect(where: Path, options: BrokerOptions, clock: Clock) -> MemoryBroker:
        return MemoryBroker(str(where), options, clock=clock)
