"""Apps on the memory broker, each on one of its own, with the clock in the test's hand."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from umbel import Umbel
from umbel.clock import ManualClock
from umbel.shared import SHARED

_numbers = itertools.count(1)


@pytest.fixture(autouse=True)
def no_shared_tasks() -> Iterator[None]:
    """What a test shares is gone afterwards."""
    before = len(SHARED)
    yield
    del SHARED[before:]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def app(clock: ManualClock) -> Iterator[Umbel]:
    with Umbel("proj", broker=f"memory://api-{next(_numbers)}", clock=clock) as made:
        yield made
