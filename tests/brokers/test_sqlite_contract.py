from __future__ import annotations

from pathlib import Path

import pytest

from umbel.brokers.sqlite import SqliteBroker
from umbel.clock import Clock
from umbel.ports import BrokerOptions
from umbel.testing.contract import BrokerContract, CoordinatorContract, InspectorContract


@pytest.mark.filterwarnings("ignore::umbel.exceptions.NoWorkerYet")
class TestSqliteBroker(BrokerContract, CoordinatorContract, InspectorContract):
    @staticmethod
    def connect(where: Path, options: BrokerOptions, clock: Clock) -> SqliteBroker:
        return SqliteBroker(where, options, clock=clock)
