"""``pydantic=True``: validation of arguments, dumps of models, and its options."""

from __future__ import annotations

import asyncio
import json
from datetime import date
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError, ValidationInfo, field_validator
from tests.api.looking import only

from umbel import Task, Umbel
from umbel.exceptions import EncodeError

contexts: list[dict[str, Any]] = []


class Order(BaseModel):
    number: int
    day: date | None = None

    @field_validator("number")
    @classmethod
    def note(cls, value: int, info: ValidationInfo) -> int:
        if info.context:
            contexts.append(info.context)
        return value


class Odd(BaseModel):
    value: float

    def __eq__(self, other: object) -> bool:
        return False


@pytest.mark.option("pydantic", "pydantic_context")
def test_arguments_are_validated_and_the_return_value_is_dumped(app: Umbel) -> None:
    @app.task(pydantic=True, pydantic_context={"tenant": 3})
    def take(order: Order, other: Order | None = None, plain: int = 1) -> Order:
        assert isinstance(order, Order)
        return Order(number=order.number + plain + (other.number if other else 0))

    call: Any = take
    contexts.clear()
    assert call({"number": "4"}) == {"number": 5, "day": None}
    assert contexts[0] == {"tenant": 3, "celery_app": app, "celery_task_name": take.name}
    assert call(Order(number=1), other={"number": 10}, plain=2) == {"number": 13, "day": None}
    with pytest.raises(ValidationError, match="number"):
        call({"number": "x"})


def test_models_are_sent_as_plain_data(app: Umbel) -> None:
    @app.task(pydantic=True)
    def take(order: Order) -> None: ...

    @app.task(pydantic=True)
    def odd(value: Odd) -> None: ...

    take.delay(Order(number=1, day=date(2026, 1, 2)))
    args = json.loads(only(app).body)[0]
    assert args == [{"number": 1, "day": "2026-01-02"}]
    with pytest.raises(EncodeError, match="isn't the same after"):
        odd.delay(Odd(value=1))
    app.conf.task_always_eager = True
    assert take.delay(Order(number=1)).get() is None
    bad: Any = {"number": "x"}
    assert isinstance(take.delay(bad).get(propagate=False), ValidationError)


@pytest.mark.option("pydantic_strict", "pydantic_dump_kwargs")
def test_strict_and_dump_kwargs(app: Umbel) -> None:
    @app.task(pydantic=True, pydantic_strict=True, pydantic_dump_kwargs={"exclude_none": True})
    def take(order: Order) -> Order:
        return order

    call: Any = take
    assert call({"number": 4}) == {"number": 4}
    with pytest.raises(ValidationError):
        call({"number": "4"})


def test_bound_and_async_tasks(app: Umbel) -> None:
    @app.task(pydantic=True, bind=True)
    def bound(self: Task[..., Any], order: Order) -> tuple[str, int]:
        return self.name, order.number

    @app.task(pydantic=True)
    async def co(order: Order) -> Order:
        await asyncio.sleep(0)
        return order

    call: Any = bound
    assert call({"number": 1}) == (bound.name, 1)
    loose: Any = co
    assert co.is_async
    assert asyncio.run(loose({"number": 1})) == {"number": 1, "day": None}
    assert co.apply(({"number": 2},)).get()["number"] == 2
