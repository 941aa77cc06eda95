"""`place`: a broker file with its workers and client, for tests with real processes.

At the end of the session the kills of `ledger` are shown; a place without one fails the session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.worker.ledger import pytest_sessionfinish, pytest_terminal_summary
from tests.worker.living import Place

pytest.register_assert_rewrite("tests.worker.table")

__all__ = ["pytest_sessionfinish", "pytest_terminal_summary"]


@pytest.fixture
def make_place(tmp_path: Path) -> Iterator[Callable[[float], Place]]:
    """Makes the test's place, with a lease time in seconds."""
    with ExitStack() as stack:

        def make(lease: float) -> Place:
            place = Place(tmp_path, lease)
            stack.callback(place.close)
            return place

        yield make


@pytest.fixture
def place(make_place: Callable[[float], Place]) -> Place:
    """A place with the lease time that workers have by default."""
    return make_place(30.0)
