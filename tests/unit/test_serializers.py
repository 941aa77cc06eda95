"""msgpack, YAML, pickle, custom serializers: every value, every stranger's bytes."""

from __future__ import annotations

import contextlib
import json
import math
import pickle
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.golden_bodies import ARGS, BODIES, KWARGS, Body

from umbel.exceptions import DecodeError, EncodeError, ImproperlyConfigured
from umbel.formats import CallFormat, CallReader, encode_call
from umbel.message import Message
from umbel.protocol import NO_EMBED
from umbel.serialization import decode, find_serializer, readers, register, unregister

BINARY = ("msgpack", "yaml", "pickle")
UNSIGNED = [body for body in BODIES if body.serializer != "auth"]

texts = st.text()
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(allow_nan=False), texts
)
plain = st.recursive(
    scalars | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=15,
)
minutes = st.integers(-1439, 1439).map(lambda n: timezone(timedelta(minutes=n)))


def through(name: str, value: object) -> Any:
    serializer = find_serializer(name)
    return serializer.loads(serializer.dumps(value))


@given(st.sampled_from(BINARY), plain)
def test_plain_data_comes_back(name: str, value: object) -> None:
    assert through(name, value) == value


@pytest.mark.parametrize(
    ("value", "kept_by"),
    [
        (b"\xff\x00", "json msgpack yaml pickle"),
        (datetime.fromisoformat("2026-01-02T03:04:05.000006"), "json yaml pickle"),
        (datetime(2026, 1, 2, tzinfo=UTC), "json yaml pickle"),
        (date(2026, 1, 2), "json yaml pickle"),
        (time(3, 4, 5), "json pickle"),
        (Decimal("1.10"), "json pickle"),
        (UUID(int=5), "json pickle"),
        (timedelta(1), "pickle"),
        ({1, 2}, "pickle"),
        (frozenset({1}), "pickle"),
        (1 + 2j, "pickle"),
        (2**70, "json yaml pickle"),
        ({1: "a"}, "yaml pickle"),
        (math.inf, "json msgpack yaml pickle"),
        ("\ud800", "json pickle"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("name", ["json", *BINARY])
def test_each_value_comes_back_or_is_refused(name: str, value: object, kept_by: str) -> None:
    if name in kept_by.split():
        back = through(name, value)
        assert back == value
        assert type(back) is type(value)
    elif name == "json" and value == {1: "a"}:
        assert through(name, value) == {"1": "a"}  # as Celery's JSON has it
    else:
        with pytest.raises(EncodeError):
            find_serializer(name).dumps(value)


@given(st.datetimes(timezones=st.none() | minutes))
def test_datetimes_in_yaml(value: datetime) -> None:
    back = through("yaml", value)
    assert back == value
    assert back.utcoffset() == value.utcoffset()


def test_an_offset_that_yaml_has_no_form_for_is_refused() -> None:
    odd = datetime(1900, 1, 1, tzinfo=timezone(timedelta(hours=1, seconds=3)))
    with pytest.raises(EncodeError, match="send its text"):
        find_serializer("yaml").dumps(odd)


@pytest.mark.parametrize("name", ["msgpack", "yaml"])
def test_what_is_refused_is_named_by_its_place(name: str) -> None:
    form = CallFormat(find_serializer(name))
    with pytest.raises(EncodeError, match=r"^kwargs\['rows'\]\[1\]: object of type object can't"):
        form.body((), {"rows": [1, object()]}, NO_EMBED, 10**6)


def test_tuples_subclasses_and_objects_that_know_their_json() -> None:
    class Text(str): ...

    class Own:
        def __json__(self) -> object:
            return {"own": (1,)}

    for name in ("msgpack", "yaml"):
        back = through(name, [(1, 2), Text("x"), Own()])
        assert back == [[1, 2], "x", {"own": [1]}]
        assert type(back[1]) is str


@pytest.mark.parametrize("body", UNSIGNED, ids=lambda b: f"{b.serializer}-{b.compression}")
def test_what_celery_sends_is_read(body: Body) -> None:
    reader = CallReader.accepting([body.serializer], {}, 10**6)
    assert reader.call(message_of(body)) == (ARGS, KWARGS, dict(NO_EMBED))


@pytest.mark.parametrize("body", UNSIGNED, ids=lambda b: f"{b.serializer}-{b.compression}")
def test_what_we_send_is_marked_as_celery_marks_it(body: Body) -> None:
    form = CallFormat.find(body.serializer, body.compression, {})
    blank = Message(
        body=encode_call(ARGS, KWARGS, NO_EMBED, form, 10**6),
        content_type="application/json",
        content_encoding="utf-8",
        headers={"task": "t"},
        properties={},
    )
    sent = blank if form is None else form.marked(blank)
    assert (sent.content_type, sent.content_encoding, sent.headers.get("compression")) == (
        body.content_type,
        body.content_encoding,
        body.header,
    )
    if body.compression == "zlib" and body.serializer == "json":
        assert sent.body.startswith(b"\x78\x9c")


def message_of(body: Body) -> Message:
    return Message(
        body=body.data,
        content_type=body.content_type,
        content_encoding=body.content_encoding,
        headers={"compression": body.header} if body.header else {},
        properties={},
    )


# Strangers.


@given(st.sampled_from(BINARY), st.binary(max_size=200))
def test_random_bytes_are_a_value_or_a_decode_error(name: str, data: bytes) -> None:
    with contextlib.suppress(DecodeError):
        find_serializer(name).loads(data)


@pytest.mark.parametrize("name", BINARY)
@given(plain, st.data())
def test_damaged_bytes_are_a_value_or_a_decode_error(
    name: str, value: object, data: st.DataObject
) -> None:
    good = bytearray(find_serializer(name).dumps(value))
    for _ in range(3):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(DecodeError):
        find_serializer(name).loads(bytes(good))


LAUGHS = b"a: &a [x,x,x,x,x,x,x,x,x]\n" + b"".join(
    b"%c: &%c [%s]\n" % (n, n, b",".join([b"*%c" % (n - 1)] * 9)) for n in range(98, 107)
)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("msgpack", b"\xdd\xff\xff\xff\xff"),
        ("msgpack", b"\xdf\xff\xff\xff\xff"),
        ("msgpack", b"\xc6\xff\xff\xff\xff"),
        ("msgpack", b"\x91" * 100_000),
        ("msgpack", b"\xd6\x05abcd"),
        ("msgpack", b"\x01\x01"),
        ("msgpack", b"\x81\x81\x01\x02\x03"),
        ("msgpack", b""),
        ("yaml", LAUGHS),
        ("yaml", b"&a [*a]"),
        ("yaml", b"a: &a {x: 1}\nb: {<<: *a}"),
        ("yaml", b"[" * 100_000),
        ("yaml", b"!!python/object/apply:os.system ['true']"),
        ("yaml", b"2001-99-99"),
        ("yaml", b"\xff\xfe\x00"),
        ("yaml", b"1" * 5000),
        ("pickle", b""),
        ("pickle", b"cos\nnothing\n."),
        ("pickle", pickle.dumps([1])[:-3]),
        ("json", b"[" * 100_000),
        ("json", b'{"__type__": "datetime", "__value__": "x"}'),
    ],
)
def test_hostile_bytes(name: str, data: bytes) -> None:
    with pytest.raises(DecodeError):
        find_serializer(name).loads(data)


def test_aliases_of_a_usual_message_are_read() -> None:
    shared = [1, 2]
    assert through("yaml", [shared, shared]) == [shared, shared]


@pytest.mark.parametrize("name", BINARY)
def test_nothing_but_json_is_accepted_unless_it_is_named(name: str) -> None:
    serializer = find_serializer(name)
    data = serializer.dumps([[], {}, {}])
    with pytest.raises(DecodeError, match=f"{serializer.content_type!r} isn't accepted here"):
        decode(data, serializer.content_type, serializer.content_encoding)
    assert decode(data, serializer.content_type, serializer.content_encoding, [name])
    assert decode(data, serializer.content_type.upper(), None, [serializer.content_type])


class Bomb:
    fired = False

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return fire, ()


def fire() -> None:
    Bomb.fired = True


def test_a_pickle_that_is_not_accepted_is_not_looked_at() -> None:
    data = pickle.dumps(Bomb())
    with pytest.raises(DecodeError):
        decode(data, "application/x-python-serialize", "binary", ["json", "msgpack", "yaml"])
    assert not Bomb.fired
    decode(data, "application/x-python-serialize", "binary", ["pickle"])
    assert Bomb.fired


def test_names_of_arguments_that_are_no_text() -> None:
    for name in ("yaml", "pickle"):
        serializer = find_serializer(name)
        message = Message(
            body=serializer.dumps([[], {1: 2}, {}]),
            content_type=serializer.content_type,
            content_encoding=serializer.content_encoding,
            headers={},
            properties={},
        )
        with pytest.raises(DecodeError, match="named arguments"):
            CallReader.accepting([name], {}, 10**6).call(message)


# Custom ones.


@pytest.fixture
def rot13() -> Iterator[str]:
    def swap(data: bytes) -> bytes:
        return bytes(reversed(data))

    register(
        "rot13",
        lambda value: swap(json.dumps(value).encode()),
        lambda data: json.loads(swap(data)),
        "application/x-rot13",
        "binary",
    )
    yield "rot13"
    unregister("rot13")


def test_a_serializer_of_ones_own(rot13: str) -> None:
    serializer = find_serializer(rot13)
    data = serializer.dumps([1, "a"])
    assert data == b']"a" ,1['
    assert find_serializer("application/x-rot13") is serializer
    assert decode(data, "application/x-rot13", "binary", [rot13]) == [1, "a"]
    with pytest.raises(DecodeError, match="isn't rot13"):
        serializer.loads(b"\xff")
    with pytest.raises(EncodeError, match=r"can't be sent as rot13: TypeError"):
        serializer.dumps(object())


def test_text_of_an_encoder_is_sent_as_utf_8() -> None:
    register("words", lambda value: " ".join(value), lambda data: data.decode().split(), "text/w")
    try:
        assert find_serializer("words").dumps(["é"]) == "é".encode()
        assert through("words", ["a", "é"]) == ["a", "é"]
    finally:
        unregister("words")
    with pytest.raises(ImproperlyConfigured, match="no serializer 'words' is known here"):
        find_serializer("words")


def test_what_cannot_be_registered() -> None:
    def same(value: Any) -> Any:
        return value

    with pytest.raises(ValueError, match="would take JSON's place"):
        register("mine", same, same, "application/json")
    with pytest.raises(ValueError, match="would take JSON's place"):
        register("json", same, same, "application/x-mine")
    with pytest.raises(TypeError, match="expects two functions"):
        register("mine", None, same, "application/x-mine")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected a text"):
        register("", same, same, "application/x-mine")
    with pytest.raises(ImproperlyConfigured, match="did you mean 'msgpack'"):
        find_serializer("msgpak")
    with pytest.raises(ValueError, match="can't be unregistered"):
        unregister("json")


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from umbel import serializers

    monkeypatch.setitem(sys.modules, "yaml", None)
    serializers._yaml.cache_clear()
    try:
        with pytest.raises(ImproperlyConfigured, match=r"pip install 'umbel\[yaml\]'"):
            readers(["yaml"])
    finally:
        serializers._yaml.cache_clear()
