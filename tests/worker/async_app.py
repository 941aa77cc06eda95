"""Coroutines that send tasks and wait for them."""

from __future__ import annotations

import asyncio
from typing import Any

from umbel import Umbel
from umbel.result import allow_join_result

app = Umbel("async")


@app.task
def double(x: int) -> int:
    return 2 * x


@app.task
async def fan_out(count: int) -> list[str]:
    results = await asyncio.gather(*(double.adelay(n) for n in range(count)))
    return [result.id for result in results]


@app.task
async def add_up(count: int) -> int:
    results = await asyncio.gather(*(double.adelay(n) for n in range(count)))
    with allow_join_result():
        return sum(await asyncio.gather(*results))


@app.task
async def wait_unasked() -> Any:
    return await (await double.adelay(1))


@app.task
def wait_unasked_too() -> Any:
    return double.delay(1).get(timeout=10)
