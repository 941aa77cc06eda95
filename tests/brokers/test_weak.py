"""The suites on a broker that can do little: each flag's weaker promise holds and is asserted."""

from __future__ import annotations

from pathlib import Path

from tests.brokers.weak import WeakBroker

from umbel.clock import Clock
from umbel.ports import BrokerOptions
from umbel.testing.contract import BrokerContract, CoordinatorContract, InspectorContract


class TestWeakBroker(BrokerContract, CoordinatorContract, InspectorContract):
    @staticmethod
    def connect(where: Path, options: BrokerOptions, clock: Clock) -> WeakBroker:
        return WeakBroker(str(where), options, clock=clock)
