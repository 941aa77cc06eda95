"""JSON with Celery's types: what comes back, what is refused and where, what strangers send."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import enum
import json
import math
import sys
from collections import Counter, OrderedDict, namedtuple
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from umbel.exceptions import DecodeError, EncodeError, ImproperlyConfigured
from umbel.jsonplain import MAX_DEPTH
from umbel.serialization import decode, dumps, dumps_call, loads, loads_call

EMBED = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
TAG_WORDS = st.sampled_from(["__type__", "__value__", "__plain__", "datetime", "bytes", "uuid"])
ANY_TEXT = st.text(st.characters(exclude_categories=()))  # lone surrogates too
OFFSETS = st.integers(-86_399, 86_399).map(lambda s: timezone(timedelta(seconds=s)))

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**200), 2**200),
    st.floats(allow_nan=False),
    ANY_TEXT,
    TAG_WORDS,
)
extra_types = st.one_of(
    st.datetimes(timezones=st.none() | OFFSETS),
    st.dates(),
    st.times(timezones=st.none() | OFFSETS),
    st.decimals(allow_nan=False),
    st.uuids(),
    st.binary(),
    ANY_TEXT.map(lambda text: text.encode("utf-8", "ignore")),
)


def nested(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        tag_like = st.fixed_dictionaries(
            {"__type__": TAG_WORDS | inner, "__value__": inner},
            optional={"__plain__": st.integers(-1, 3) | inner},
        )
        keys = ANY_TEXT | TAG_WORDS
        return st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4) | tag_like

    return st.recursive(leaves, containers, max_leaves=12)


values = nested(scalars | extra_types)


def same(left: Any, right: Any) -> bool:
    """Equality that tells True from 1, 1.0 from 1 and -0.0 from 0.0, all the way down."""
    if type(left) is not type(right):
        return False
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, float):
        return math.copysign(1, left) == math.copysign(1, right) and left == right
    if isinstance(left, Decimal):
        return str(left) == str(right)
    return bool(left == right)


def read_as_kombu_does(data: bytes) -> Any:
    """Exactly these two keys make a tag, and an unknown type is an error."""
    known: dict[str, Callable[[Any], Any]] = {
        "datetime": datetime.fromisoformat,
        "date": date.fromisoformat,
        "time": time.fromisoformat,
        "decimal": Decimal,
        "uuid": lambda value: UUID(**value),
        "bytes": lambda value: value.encode("utf-8"),
        "base64": base64.b64decode,
    }

    def hook(found: dict[str, Any]) -> Any:
        if found.keys() == {"__type__", "__value__"}:
            return known[found["__type__"]](found["__value__"])
        return found

    return json.loads(data.decode("utf-8"), object_hook=hook)


class TestRoundTrips:
    @given(values)
    def test_every_value_comes_back_as_it_was(self, value: Any) -> None:
        assert same(loads(dumps(value)), value)

    @given(nested(scalars | extra_types).filter(lambda v: b"__plain__" not in dumps(v)))
    def test_celery_reads_what_we_write(self, value: Any) -> None:
        assert same(read_as_kombu_does(dumps(value)), value)

    @given(st.lists(values, max_size=3), st.dictionaries(st.text(), values, max_size=3))
    def test_calls_come_back(self, args: list[Any], kwargs: dict[str, Any]) -> None:
        got_args, got_kwargs, got_embed = loads_call(dumps_call(args, kwargs, EMBED))
        assert same(got_args, args)
        assert same(got_kwargs.keys() - kwargs.keys(), kwargs.keys() - got_kwargs.keys())
        assert got_embed == EMBED

    @pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
    def test_numbers_that_json_lacks_travel_as_celery_writes_them(self, number: float) -> None:
        data = dumps({"n": [number]})
        assert repr(loads(data)["n"][0]) == repr(number)
        assert repr(json.loads(data)["n"][0]) == repr(number)

    def test_user_data_that_looks_like_a_tag_is_plain_data_to_celery(self) -> None:
        mine = {"__type__": "datetime", "__value__": "x"}
        data = dumps({"row": mine})
        assert loads(data) == {"row": mine}
        assert read_as_kombu_does(data) == {"row": {**mine, "__plain__": 1}}

    def test_a_dict_that_looks_like_our_escape_comes_back_too(self) -> None:
        value = {"__type__": 1, "__value__": 2, "__plain__": 1}
        assert loads(dumps(value)) == value
        assert loads(dumps({**value, "__plain__": True}))["__plain__"] is True

    def test_deep_data_comes_back_and_deeper_is_refused_on_both_ways(self) -> None:
        leaf: Any
        for leaf, levels in ((None, 0), (date(2026, 1, 2), 1)):
            value: Any = leaf
            for _ in range(MAX_DEPTH - 1 - levels):
                value = [value]
            assert loads(dumps([value])) == [value]
            with pytest.raises(EncodeError, match=r"^value(\[0\]){12}\[…\]: nested more than"):
                dumps([[[value, object()]]])


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Name(enum.StrEnum):
    ADA = "ada"


class Shouting(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "!"


@dataclasses.dataclass
class Row:
    id: int


class Record(msgspec.Struct):
    id: int


class Money:
    def __init__(self, cents: Any) -> None:
        self.cents = cents

    def __json__(self) -> Any:
        return {"cents": self.cents}


class Broken:
    def __json__(self) -> Any:
        raise RuntimeError("no")


Point = namedtuple("Point", "x y")


class TestLowering:
    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            ((1, (2,)), [1, [2]]),
            (Point(1, 2), [1, 2]),
            ([Level.HIGH, Name.ADA, Shouting("a")], [3, "ada", "a"]),
            ({True: 1, False: 2}, {"true": 1, "false": 2}),
            ({Level.HIGH: 1, Name.ADA: 2}, {"3": 1, "ada": 2}),
            (
                {1: "a", 2.5: "b", None: "c"},
                {"1": "a", "2.5": "b", "null": "c"},
            ),
            (OrderedDict(a=1), {"a": 1}),
            (Counter("aa"), {"a": 2}),
            (Money((1, Money(2))), {"cents": [1, {"cents": 2}]}),
            (datetime(2026, 1, 2, 3, tzinfo=UTC), datetime(2026, 1, 2, 3, tzinfo=UTC)),
            ("a\0b\ud800", "a\0b\ud800"),
            pytest.param(10**4000, 10**4000, id="big"),
        ],
    )
    def test_what_it_becomes(self, value: Any, expected: Any) -> None:
        got = loads(dumps(value))
        assert same(got, expected)
        assert dumps(got) == dumps(expected)

    def test_the_wire_form_of_each_extra_type(self) -> None:
        wire = json.loads(
            dumps(
                [
                    datetime(2026, 1, 2),  # noqa: DTZ001
                    date(2026, 1, 2),
                    time(3),
                    Decimal("1.50"),
                    UUID(int=7),
                    b"a",
                    b"\xff",
                ]
            )
        )
        assert [tuple(tag.values()) for tag in wire] == [
            ("datetime", "2026-01-02T00:00:00"),
            ("date", "2026-01-02"),
            ("time", "03:00:00"),
            ("decimal", "1.50"),
            ("uuid", {"hex": "00000000000000000000000000000007"}),
            ("bytes", "a"),
            ("base64", "/w=="),
        ]
        assert all(list(tag) == ["__type__", "__value__"] for tag in wire)


class TestRefusals:
    @pytest.mark.parametrize(
        ("value", "advice"),
        [
            ({1, 2}, "list(value)"),
            (iter([1]), "list(value)"),
            (range(3), "list(value)"),
            ({}.keys(), "list(value)"),
            (Colour.RED, "value.value"),
            (timedelta(1), "total_seconds()"),
            (bytearray(b"a"), "bytes(value)"),
            (Path("a"), "str(value)"),
            (ValueError("a"), "str(value)"),
            (Row(1), "dataclasses.asdict(value)"),
            (Record(1), "msgspec.to_builtins(value)"),
            (type("Proxy", (), {})(), "__json__()"),
            (Row, "__json__()"),
            (Money, "__json__()"),
            (1j, "__json__()"),
            pytest.param(10**5000, "hex(value)", id="huge"),
        ],
    )
    def test_the_place_and_what_to_do_are_named(self, value: object, advice: str) -> None:
        with pytest.raises(EncodeError) as caught:
            dumps_call((1,), {"rows": [0, {"a": 1}, 2, value]}, EMBED)
        text = str(caught.value)
        assert text.startswith("kwargs['rows'][3]: ")
        assert "can't be sent as JSON" in text
        assert advice in text

    def test_each_part_of_a_call_has_its_name(self) -> None:
        bad = object()
        for args, kwargs, embed, place in (
            ([1, bad], {}, {}, "args[1]: "),
            ([], {"k": (bad,)}, {}, "kwargs['k'][0]: "),
            ([], {}, {"chain": [{"args": [bad]}]}, "embed['chain'][0]['args'][0]: "),
        ):
            with pytest.raises(EncodeError) as caught:
                dumps_call(args, kwargs, embed)
            assert str(caught.value).startswith(place + "object of type object can't")

    def test_keys(self) -> None:
        with pytest.raises(EncodeError, match=r"^value\[0\]: the key \(1, 2\) of type tuple"):
            dumps([{(1, 2): 3}])
        with pytest.raises(EncodeError, match="two of its keys become '1'"):
            dumps({1: "a", "1": "b"})

    def test_a_value_that_contains_itself(self) -> None:
        value: list[Any] = []
        value.extend([value, value])
        with pytest.raises(EncodeError, match="or contains itself"):
            dumps(value)

    def test_failing_code_of_the_users(self) -> None:
        class Endless:
            def __json__(self) -> Any:
                return Endless()

        class Torn(dict[str, int]):
            def items(self) -> Any:
                raise OSError("gone")

        for value, text in ((Broken(), "no"), (Endless(), "nested"), (Torn(a=1), "gone")):
            with pytest.raises(EncodeError, match=text):
                dumps([value])

    def test_no_stack_left(self) -> None:
        value: Any = []
        for _ in range(MAX_DEPTH - 1):
            value = [value]

        def at_depth(frames: int) -> bytes:
            return at_depth(frames - 1) if frames else dumps(value)

        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(1000)
        try:
            with pytest.raises(EncodeError, match="nested too deeply"):
                at_depth(800)
        finally:
            sys.setrecursionlimit(limit)


class TestStrangers:
    @given(st.binary())
    def test_arbitrary_bytes(self, data: bytes) -> None:
        for read in (loads, loads_call):
            with contextlib.suppress(DecodeError):
                read(data)

    @given(nested(scalars), st.data())
    def test_damaged_json(self, value: Any, data: st.DataObject) -> None:
        whole = bytearray(json.dumps(value).encode())
        at = data.draw(st.integers(0, len(whole) - 1))
        whole[at] = data.draw(st.integers(0, 255))
        for body in (bytes(whole), bytes(whole[:at])):
            with contextlib.suppress(DecodeError):
                loads(body)

    @given(nested(scalars))
    def test_any_json_of_a_stranger_is_read_or_a_decode_error(self, value: Any) -> None:
        with contextlib.suppress(DecodeError):
            loads(json.dumps(value).encode())

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"nope",
            b"[1",
            b"\xff\xfe",
            b'"\x00"',
            b"\xef\xbb\xbf1",
            b"[" * 100_000,
            b"9" * 5000,
            b'{"__type__": "nope", "__value__": 1}',
            b'{"__type__": ["a"], "__value__": 1}',
            b'{"__type__": "datetime", "__value__": "x"}',
            b'{"__type__": "datetime", "__value__": null}',
            b'{"__type__": "decimal", "__value__": "x"}',
            b'{"__type__": "decimal", "__value__": [1]}',
            b'{"__type__": "uuid", "__value__": {}}',
            b'{"__type__": "uuid", "__value__": {"hex": 5}}',
            b'{"__type__": "uuid", "__value__": "x"}',
            b'{"__type__": "bytes", "__value__": 5}',
            b'{"__type__": "bytes", "__value__": "\\ud800"}',
            b'{"__type__": "base64", "__value__": "?"}',
            b'{"__type__": "base64", "__value__": "\xc3\xa9"}',
        ],
    )
    def test_bad_content(self, data: bytes) -> None:
        with pytest.raises(DecodeError):
            loads(data)

    def test_tags_nested_deeper_than_the_stack(self) -> None:
        deep = b'[{"__type__": "bytes", "__value__": "a"},' + b"[" * 900 + b"]" * 900 + b"]"
        with contextlib.suppress(DecodeError):
            assert loads(deep)[0] == b"a"

    @pytest.mark.parametrize(
        "data",
        [b"{}", b"[[],{}]", b"[[],{},{},1]", b"[{},{},{}]", b"[[],[],{}]", b"[[],{},1]", b"1"],
    )
    def test_bodies_that_are_no_calls(self, data: bytes) -> None:
        with pytest.raises(DecodeError, match="positional arguments"):
            loads_call(data)

    def test_a_call_without_workflow(self) -> None:
        assert loads_call(b'[[1], {"a": 2}, null]') == ([1], {"a": 2}, {})


class TestContentTypes:
    def test_charsets(self) -> None:
        text = '["é"]'
        for charset in (
            "utf-8",
            "UTF-8",
            "utf8",
            "binary",
            "",
            None,
            "latin-1",
            "utf-16",
            "cp1252",
        ):
            body = text.encode(charset if charset and charset != "binary" else "utf-8")
            assert decode(body, "application/json", charset) == ["é"]

    @pytest.mark.parametrize(
        "charset",
        ["nope", "hex", "zlib", "rot13", "a\0b", "\ud800", "ascii", "undefined", "idna"],
    )
    def test_charsets_that_cannot_be_read(self, charset: str) -> None:
        with pytest.raises(DecodeError, match="encoding"):
            decode(b'["\xc3\xa9"]\\q', "application/json", charset)

    @given(
        st.binary(), st.text(max_size=12) | st.sampled_from(["unicode_escape", "utf-7", "punycode"])
    )
    def test_any_charset_of_a_stranger(self, data: bytes, charset: str) -> None:
        with contextlib.suppress(DecodeError):
            decode(data, "application/json", charset)

    @pytest.mark.parametrize("name", ["json", "application/json"])
    def test_accepted_by_name_or_type(self, name: str) -> None:
        assert decode(b"[1]", "application/json", "utf-8", [name]) == [1]
        assert decode(b"[1]", "Application/JSON; charset=utf-8", "utf-8", [name]) == [1]

    def test_refused_types_name_what_is_accepted(self) -> None:
        with pytest.raises(DecodeError, match="isn't accepted here; accepted: application/json"):
            decode(b"", "application/x-python-serialize", "binary")
        with pytest.raises(DecodeError, match="accepted: nothing"):
            decode(b"1", "application/json", "utf-8", [])
        with pytest.raises(ImproperlyConfigured, match="no serializer 'application/unknown'"):
            decode(b"", "application/unknown", "utf-8", ["application/unknown"])
