"""Arguments beyond JSON's types: there and back by the annotation, and by every serializer."""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Optional, TypedDict, Union
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from umbel.exceptions import EncodeError
from umbel.formats import CallFormat
from umbel.protocol import NO_EMBED
from umbel.serialization import JSON, as_call, dumps_call, find_serializer, loads_call
from umbel.typed import Typed, Unfit, typed_parameters, typed_return

if TYPE_CHECKING:
    from nowhere import Unknown  # type: ignore[import-not-found]


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Mixed(enum.Enum):
    ONE = 1
    HALF = 0.5
    TEXT = "text"


class Words(enum.StrEnum):
    YES = "yes"


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


@dataclasses.dataclass
class Point3(Point):
    z: int = 0


@dataclasses.dataclass(frozen=True)
class Order:
    id: UUID
    made: datetime
    total: Decimal
    colour: Colour
    files: tuple[Path, ...] = ()
    tags: frozenset[str] = frozenset()
    wait: timedelta | None = None
    parent: Order | None = None


class Item(msgspec.Struct):
    name: str
    raw: bytes = b""


class Pair(NamedTuple):
    left: int
    right: date


class Options(TypedDict):
    when: time


class Model(pydantic.BaseModel):
    id: UUID
    names: set[str] = set()


class Lossy(pydantic.BaseModel):
    shown: int
    hidden: int = pydantic.Field(0, exclude=True)


ORDER = Order(
    UUID(int=7),
    datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
    Decimal("1.10"),
    Colour.BLUE,
    (Path("/a/b"), Path("c")),
    frozenset({"x", "é"}),
    timedelta(days=-1, microseconds=3),
    Order(UUID(int=8), datetime(2026, 1, 1, tzinfo=UTC), Decimal(2), Colour.RED),
)


def shown(value: object) -> str:
    """The same in every process, whatever the order of a set."""
    if isinstance(value, set | frozenset):
        return str(sorted(value, key=str))
    return str(value)[:40]


VALUES: list[tuple[Any, Any]] = [
    (Order, ORDER),
    (Optional[Order], ORDER),  # noqa: UP045
    (Order | None, None),
    (Union[Order, None], ORDER),  # noqa: UP007
    (list[Order], [ORDER, ORDER]),
    (dict[str, Order], {"a": ORDER}),
    (dict[int, Point], {1: Point(1), -2: Point(2)}),
    (dict[UUID, Point], {UUID(int=1): Point(1)}),
    (Sequence[Point], [Point(1)]),
    (Mapping[str, Point], {"a": Point(1)}),
    (Item, Item("a", b"\xff")),
    (list[Point | Item], [Point(1), Item("a"), Point(2, 3)]),
    (Point | Item | None, Item("a")),
    (Pair, Pair(1, date(2026, 1, 2))),
    (Options, {"when": time(1, 2, 3)}),
    (Colour, Colour.RED),
    (Level, Level.HIGH),
    (Mixed, Mixed.HALF),
    (list[Mixed], [Mixed.ONE, Mixed.TEXT]),
    (Words, Words.YES),
    (Colour | None, Colour.RED),
    (Colour | int, Colour.RED),
    (Colour | int, 5),
    (UUID, UUID(int=5)),
    (datetime, datetime(2026, 1, 2, tzinfo=UTC)),
    (datetime | None, datetime(2026, 1, 2, 3, 4, 5, 678901)),  # noqa: DTZ001
    (date, date(2026, 1, 2)),
    (time, time(3, 4, 5, 6)),
    (timedelta, timedelta(days=3, seconds=1)),
    (Decimal, Decimal("1.10")),
    (set[int], {1, 2}),
    (set, {1, "a"}),
    (set[UUID], {UUID(int=1)}),
    (frozenset[str], frozenset({"a"})),
    (tuple[int, str], (1, "a")),
    (tuple[Point, ...], (Point(1), Point(2))),
    (tuple, (1, "a")),
    (Path, Path("/tmp/x")),
    (PurePosixPath, PurePosixPath("a/b")),
    (list[Path | None], [Path("a"), None]),
    (int | Path, 5),
    (int | Path, Path("a")),
    (Annotated[Point, "a note"], Point(1)),
    (Model, Model(id=UUID(int=3), names={"a"})),
    (Model | None, Model(id=UUID(int=3))),
    (list[Model], [Model(id=UUID(int=3))]),
    (Model | Point, Point(4)),
]


def parameters_of(annotation: Any) -> Typed | None:
    def task(value: Any) -> None: ...

    task.__annotations__ = {"value": annotation}
    return typed_parameters(task)


def there_and_back(typed: Typed, value: object, serializer: str = "json") -> Any:
    """`value` as the function gets it, and nothing but plain data on the way."""
    chosen = find_serializer(serializer)
    sent = typed.lower((value,), {}, chosen.keeps)
    form = None if chosen is JSON else CallFormat(chosen)
    if form is None:
        args, kwargs, _ = loads_call(dumps_call(*sent, NO_EMBED))
    else:
        args, kwargs, _ = as_call(chosen.loads(form.body(*sent, NO_EMBED, 10**6)))
    (given_back,), _ = typed.rebuild(args, kwargs)
    return given_back


@pytest.mark.parametrize("serializer", ["json", "msgpack", "yaml", "pickle"])
@pytest.mark.parametrize(("annotation", "value"), VALUES, ids=shown)
def test_every_value_comes_back_by_every_serializer(
    annotation: Any, value: object, serializer: str
) -> None:
    typed = parameters_of(annotation)
    assert typed is not None
    back = there_and_back(typed, value, serializer)
    assert back == value
    assert type(back) is type(value)


@given(
    st.builds(
        Order,
        id=st.uuids(),
        made=st.datetimes(timezones=st.just(UTC)),
        total=st.decimals(allow_nan=False),
        colour=st.sampled_from(Colour),
        files=st.lists(st.sampled_from([Path("a"), Path("/b/c")])).map(tuple),
        tags=st.frozensets(st.text()),
        wait=st.none() | st.timedeltas(),
    ),
    st.sampled_from(["json", "msgpack", "yaml"]),
)
def test_all_orders_come_back(order: Order, serializer: str) -> None:
    typed = parameters_of(Order)
    assert typed is not None
    assert there_and_back(typed, order, serializer) == order


def test_what_celery_would_see_is_plain() -> None:
    def task(point: Point, colours: set[Colour], wait: timedelta, path: Path) -> None: ...

    typed = typed_parameters(task)
    assert typed is not None
    sent = typed.lower(
        (Point(1), {Colour.RED}), {"wait": timedelta(hours=1), "path": Path("/a")}, JSON.keeps
    )
    assert json.loads(dumps_call(*sent, {}))[:2] == [
        [{"x": 1, "y": 0}, ["red"]],
        {"wait": "PT3600S", "path": "/a"},
    ]


@pytest.mark.parametrize("serializer", ["json", "msgpack", "yaml", "pickle"])
@pytest.mark.parametrize(("annotation", "value"), VALUES, ids=shown)
def test_every_return_value_is_made_what_its_serializer_carries(
    annotation: Any, value: object, serializer: str
) -> None:
    def task() -> None: ...

    task.__annotations__ = {"return": annotation}
    returned = typed_return(task)
    assert returned is not None
    chosen = find_serializer(serializer)
    plain = returned.lower(value, chosen.keeps)
    assert (chosen.loads(chosen.dumps(plain)) is None) == (value is None)
    if chosen.name == "pickle":
        assert plain is value


@pytest.mark.parametrize(
    "annotation",
    [None, int, "int", object, Any, list[int], "Unknown", Point | complex, inspect.Signature.empty],
    ids=str,
)
def test_other_annotations_leave_the_return_value(annotation: Any) -> None:
    def task() -> None: ...

    task.__annotations__ = {"return": annotation}
    assert typed_return(task) is None
    assert typed_return(len) is None


def test_methods_coroutines_and_texts_say_what_they_return() -> None:
    class Holder:
        def method(self) -> Point:
            return Point(1)

    async def later() -> list[Point]:
        return []

    for function in (Holder().method, later, functools.partial(later)):
        found = typed_return(function)
        assert found is not None
        assert found.lower([Point(1)], ()) == [{"x": 1, "y": 0}]


@pytest.mark.parametrize(
    "annotation",
    [
        int, str, float, bool, None, Any, object, list, dict, list[int], dict[str, list[int]],
        int | None, Literal["a", "b"], bytes, Callable[[], None], complex, range,
        list[complex], Point | complex, "Unknown", "Nowhere | None", list["Unknown"], type,
        Decimal | range, Annotated[int, 5], type("Own", (), {}),
    ],
    ids=str,
)  # fmt: skip
def test_other_annotations_say_nothing(annotation: Any) -> None:
    assert parameters_of(annotation) is None


def test_parameters_without_annotations_and_functions_in_c() -> None:
    def bare(a, b=1, *c, **d):  # type: ignore[no-untyped-def]
        return None

    assert typed_parameters(bare) is None
    assert typed_parameters(print) is None
    assert typed_parameters(max) is None


def test_each_kind_of_parameter_takes_part() -> None:
    def task(
        a: Point, /, b: Point, plain: int, *rest: Path, c: Colour, **more: Decimal
    ) -> None: ...

    typed = typed_parameters(task)
    assert typed is not None
    args = (Point(1), Point(2), 3, Path("x"), Path("y"))
    kwargs = {"c": Colour.RED, "z": Decimal("1.5"), "a": Decimal(2)}
    sent = typed.lower(args, kwargs, ())
    assert sent == (
        [{"x": 1, "y": 0}, {"x": 2, "y": 0}, 3, "x", "y"],
        {"c": "red", "z": "1.5", "a": "2"},
    )
    back = typed.rebuild(*sent)
    assert (tuple(back[0]), back[1]) == (args, kwargs)


def test_too_many_arguments_are_left_to_the_function() -> None:
    typed = parameters_of(Point)
    assert typed is not None
    assert typed.rebuild([{"x": 1}, 2], {"other": 3}) == ([Point(1), 2], {"other": 3})


def test_plain_data_is_sent_as_it_is() -> None:
    typed = parameters_of(Order)
    assert typed is not None
    plain = {
        "id": str(UUID(int=7)),
        "made": "2026-01-02T03:04:05Z",
        "total": "1.10",
        "colour": "red",
        "more": 1,
    }
    assert typed.lower((plain,), {}, JSON.keeps) == ([plain], {})
    (order,), _ = typed.rebuild([plain], {})
    assert isinstance(order, Order)
    assert order.total == Decimal("1.10")


@pytest.mark.parametrize(
    ("annotation", "value", "said"),
    [
        (Point, {"y": 1}, "the argument 'value' is .*, which isn't Point: .*required field `x`"),
        (Point, {"x": "1"}, r"isn't Point: Expected `int`, got `str` - at `\$.x`"),
        (Point, 5, "isn't Point"),
        (Colour, "green", "isn't Colour"),
        (Mixed, "no", "isn't Mixed"),
        (UUID, "not-a-uuid", "isn't UUID: Invalid UUID"),
        (datetime, "tomorrow", "isn't datetime"),
        (set[int], ["a"], r"isn't set\[int\]"),
        (tuple[int, str], [1], "isn't tuple"),
        (Path, 5, "isn't Path: expected text, got int"),
        (Point | Item, {"z": 1}, "no Point: .*; no Item: "),
        (Model, {"id": "x"}, "isn't Model"),
        (list[Point], None, "isn't list"),
    ],
)
def test_what_does_not_fit_is_named(annotation: Any, value: object, said: str) -> None:
    typed = parameters_of(annotation)
    assert typed is not None
    with pytest.raises(Unfit, match=f"(?s){said}"):
        typed.rebuild([value], {})
    with pytest.raises(EncodeError, match=f"(?s){said}"):
        typed.lower((value,), {}, JSON.keeps)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Point, Point3(1, 2, 3)),
        (list[Point], [Point(1), Point3(1, 2, 3)]),
        (dict[str, Point], {"a": Point3(1)}),
        (str | Path, Path("a")),
        (str | Colour, Colour.RED),
        (Lossy, Lossy(shown=1, hidden=2)),
    ],
)
def test_what_would_not_come_back_as_it_is_is_refused(annotation: Any, value: object) -> None:
    typed = parameters_of(annotation)
    assert typed is not None
    with pytest.raises(EncodeError, match="the argument 'value' would not arrive as it is"):
        typed.lower((value,), {}, JSON.keeps)


def test_what_cannot_be_sent_at_all_is_refused() -> None:
    @dataclasses.dataclass
    class Holder:
        anything: Any

    typed = parameters_of(Holder)
    assert typed is not None
    with pytest.raises(EncodeError, match=r"the argument 'value' can't be sent: .* type object"):
        typed.lower((Holder(object()),), {}, JSON.keeps)
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(EncodeError, match="the argument 'value' can't be sent"):
        typed.lower((Holder(loop),), {}, JSON.keeps)


def test_a_constructor_that_refuses() -> None:
    @dataclasses.dataclass
    class Positive:
        x: int

        def __post_init__(self) -> None:
            if self.x < 0:
                raise RuntimeError("negative")

    typed = parameters_of(Positive)
    assert typed is not None
    with pytest.raises(Unfit, match="negative"):
        typed.rebuild([{"x": -1}], {})


def test_objects_that_are_equal_to_nothing_are_sent_too() -> None:
    @dataclasses.dataclass(eq=False)
    class Thing:
        x: int

    typed = parameters_of(Thing)
    assert typed is not None
    assert typed.lower((Thing(1),), {}, JSON.keeps) == ([{"x": 1}], {})


def test_a_datetime_is_a_date() -> None:
    typed = parameters_of(date)
    assert typed is not None
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    assert there_and_back(typed, moment) == moment


def test_pydantic_is_never_imported() -> None:
    code = """
import sys
from dataclasses import dataclass
from umbel.typed import typed_parameters

@dataclass
class Point:
    x: int

def task(point: Point, other: range): ...

typed = typed_parameters(task)
assert typed.rebuild(*typed.lower((Point(1),), {}, ()))[0] == [Point(1)]
assert "pydantic" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
