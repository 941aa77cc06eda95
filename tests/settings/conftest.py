"""`place` for tests with real workers, `app` for tests that only send."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from tests.worker.conftest import make_place, place, url

from umbel import Umbel
from umbel.clock import ManualClock

__all__ = ["make_place", "place", "url"]

pytest.register_assert_rewrite("tests.worker.table")

_numbers = itertools.count(1)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def app(clock: ManualClock) -> Iterator[Umbel]:
    with Umbel("proj", broker=f"memory://set-{next(_numbers)}", clock=clock) as made:
        yield made
