"""`place`: a broker with its workers and client, for tests with real processes.

The broker is a file, and where the test is marked `ON_BOTH` also a Redis server.

At the end of the session the kills of `ledger` are shown; a place without one fails the session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.servers import Redis, redis
from tests.worker.ledger import pytest_sessionfinish, pytest_terminal_summary
from tests.worker.living import Place

pytest.register_assert_rewrite("tests.worker.table")

__all__ = ["pytest_sessionfinish", "pytest_terminal_summary", "redis"]


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of the test's broker, which is empty."""
    if getattr(request, "param", "sqlite") == "sqlite":
        return f"sqlite:///{tmp_path}/broker.db"
    server: Redis = request.getfixturevalue("redis")
    server.flush()
    return server.url


@pytest.fixture
def make_place(tmp_path: Path, url: str) -> Iterator[Callable[[float], Place]]:
    """Makes the test's place, with a lease time in seconds."""
    with ExitStack() as stack:

        def make(lease: float) -> Place:
            place = Place(tmp_path, lease, url=url)
            stack.callback(place.close)
            return place

        yield make


@pytest.fixture
def place(make_place: Callable[[float], Place]) -> Place:
    """A place with the lease time that workers have by default."""
    return make_place(30.0)
