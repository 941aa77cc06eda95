"""The async twins inside a worker, and against one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from tests.worker.harness import Worker, client

from umbel import Umbel
from umbel.result import ResultSet, as_completed

PATIENCE = 30.0


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Umbel]:
    """An app that sends to a worker of ``async_app``."""
    broker = f"sqlite:///{tmp_path_factory.mktemp('async') / 'x.db'}"
    with Worker(broker, "-c", "2", app="async_app") as worker, client(broker) as app:
        worker.pool(app.broker)
        yield app


def test_what_a_task_sends_without_waiting_is_its_child(app: Umbel) -> None:
    async def main() -> None:
        result = await app.asend_task("async_app.fan_out", (50,))
        sent = await result.aget(timeout=PATIENCE)
        assert len(sent) == 50
        assert [child.id for child in result.children or ()] == sent
        values = await ResultSet([app.AsyncResult(each) for each in sent]).aget(timeout=PATIENCE)
        assert values == [2 * n for n in range(50)]

    asyncio.run(main())


def test_a_task_may_wait_where_it_says_so(app: Umbel) -> None:
    result = app.send_task("async_app.add_up", (10,))
    assert result.get(timeout=PATIENCE) == 90


@pytest.mark.parametrize("name", ["wait_unasked", "wait_unasked_too"])
def test_a_task_that_waits_unasked_is_told_what_to_do(app: Umbel, name: str) -> None:
    with pytest.raises(RuntimeError, match=rf"async_app\.{name} waits .*chain.*allow_join_result"):
        app.send_task(f"async_app.{name}").get(timeout=PATIENCE)


def test_a_thousand_at_once(app: Umbel) -> None:
    async def main() -> None:
        calls = (app.asend_task("async_app.double", (n,)) for n in range(1000))
        results = await asyncio.gather(*calls)
        ended = [each.id async for each in as_completed(results, timeout=PATIENCE)]
        assert sorted(ended) == sorted(each.id for each in results)
        assert await asyncio.gather(*results) == [2 * n for n in range(1000)]

    asyncio.run(main())
