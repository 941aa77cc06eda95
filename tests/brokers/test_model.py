"""Both embedded drivers against the model, step by step."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

from umbel.brokers.memory import MemoryBroker, reset
from umbel.brokers.sqlite import SqliteBroker
from umbel.clock import Clock
from umbel.ports import BrokerOptions
from umbel.testing.model import BrokerMachine


class MemoryMachine(BrokerMachine):
    @staticmethod
    def connect(where: Path, options: BrokerOptions, clock: Clock) -> MemoryBroker:
        return MemoryBroker(str(where), options, clock=clock)

    def teardown(self) -> None:
        super().teardown()
        reset()


class SqliteMachine(BrokerMachine):
    @staticmethod
    def connect(where: Path, options: BrokerOptions, clock: Clock) -> SqliteBroker:
        return SqliteBroker(where, options, clock=clock)


TestMemoryMachine = MemoryMachine.TestCase
TestMemoryMachine.settings = settings(max_examples=60, stateful_step_count=40)

TestSqliteMachine = pytest.mark.filterwarnings("ignore::umbel.exceptions.NoWorkerYet")(
    SqliteMachine.TestCase
)
TestSqliteMachine.settings = settings(max_examples=15, stateful_step_count=30)
