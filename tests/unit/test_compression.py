"""Compression: every kind, foreign bodies, bombs, damage, packages that are missing."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import sys
import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.golden_bodies import BODIES

from umbel.compression import BOMB_FACTOR, find_compression, inflate
from umbel.exceptions import DecodeError, ImproperlyConfigured, MessageTooLarge
from umbel.formats import CallFormat, CallReader
from umbel.message import Message
from umbel.protocol import NO_EMBED
from umbel.serialization import JSON

NAMES = ("zlib", "bzip2", "lzma", "zstd", "brotli")


@given(st.sampled_from(NAMES), st.binary(max_size=2000), st.integers(1, 300))
def test_what_is_deflated_is_inflated(name: str, data: bytes, times: int) -> None:
    kind = find_compression(name)
    whole = data * times
    assert inflate(kind.deflate(whole), kind.content_type, len(whole)) == whole


@pytest.mark.parametrize(
    ("alias", "name", "content_type"),
    [
        ("zlib", "zlib", "application/x-gzip"),
        ("gzip", "zlib", "application/x-gzip"),
        ("GZIP", "zlib", "application/x-gzip"),
        ("bzip2", "bzip2", "application/x-bz2"),
        ("bzip", "bzip2", "application/x-bz2"),
        ("lzma", "lzma", "application/x-lzma"),
        ("xz", "lzma", "application/x-lzma"),
        ("zstd", "zstd", "application/zstd"),
        ("zstandard", "zstd", "application/zstd"),
        ("brotli", "brotli", "application/x-brotli"),
        ("application/x-brotli", "brotli", "application/x-brotli"),
    ],
)
def test_names_and_aliases(alias: str, name: str, content_type: str) -> None:
    found = find_compression(alias)
    assert (found.name, found.content_type) == (name, content_type)


def test_gzip_is_a_zlib_stream_and_a_true_gzip_file_is_read_too() -> None:
    kind = find_compression("gzip")
    assert kind.deflate(b"[1]").startswith(b"\x78\x9c")
    assert inflate(zlib.compress(b"[1]", 9), kind.content_type, 10) == b"[1]"
    assert inflate(gzip.compress(b"[1]"), kind.content_type, 10) == b"[1]"


def test_a_stranger_may_write_a_name_in_place_of_the_type() -> None:
    assert inflate(zlib.compress(b"[1]"), "gzip", 10) == b"[1]"


def test_unknown_ones() -> None:
    with pytest.raises(ImproperlyConfigured, match="did you mean 'zlib' or 'gzip'"):
        find_compression("zlip")
    with pytest.raises(ImproperlyConfigured, match="known: brotli, bzip2, lzma, zlib, zstd"):
        find_compression(7)
    with pytest.raises(DecodeError, match="'application/x-rar', which isn't known"):
        inflate(b"", "application/x-rar", 10)
    with pytest.raises(DecodeError, match="isn't known"):
        inflate(b"", ["application/zstd"], 10)


@pytest.mark.parametrize("name", NAMES)
def test_a_bomb_is_not_inflated(name: str) -> None:
    kind = find_compression(name)
    bomb = kind.deflate(b"\0" * 30_000_000)
    assert len(bomb) < 60_000
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError, match="stand for more than 100000"):
            inflate(bomb, kind.content_type, 100_000)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000  # the dictionary of lzma has 8 MiB
    finally:
        tracemalloc.stop()


def test_memory_that_lzma_asks_for_is_bounded() -> None:
    import lzma

    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 28}]
    greedy = lzma.compress(b"[]", filters=filters)
    with pytest.raises(DecodeError, match="isn't compressed by lzma"):
        inflate(greedy, "application/x-lzma", 100)


@pytest.mark.parametrize("name", NAMES)
@given(st.binary(min_size=1, max_size=300), st.data())
def test_damage_is_a_decode_error_or_other_bytes(
    name: str, data: bytes, draw: st.DataObject
) -> None:
    kind = find_compression(name)
    packed = bytearray(kind.deflate(data))
    packed[draw.draw(st.integers(0, len(packed) - 1))] = draw.draw(st.integers(0, 255))
    for hostile in (bytes(packed), bytes(packed[: draw.draw(st.integers(0, len(packed)))])):
        with contextlib.suppress(DecodeError):
            assert len(inflate(hostile, kind.content_type, 1000)) <= 1000


@pytest.mark.parametrize("name", NAMES)
@given(st.binary(max_size=100))
def test_random_bytes_are_a_decode_error_or_other_bytes(name: str, data: bytes) -> None:
    with contextlib.suppress(DecodeError):
        inflate(data, find_compression(name).content_type, 1000)


@pytest.mark.parametrize("name", NAMES)
def test_what_breaks_off_is_not_read(name: str) -> None:
    kind = find_compression(name)
    packed = kind.deflate(bytes(range(256)) * 40)
    with pytest.raises(DecodeError):
        inflate(packed[:-1], kind.content_type, 100_000)


@pytest.mark.parametrize(("name", "module"), [("zstd", "backports.zstd"), ("brotli", "brotli")])
def test_a_package_that_is_missing_is_named(
    name: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in (module, "backports", "compression.zstd"):
        monkeypatch.setitem(sys.modules, each, None)
    kind = find_compression(name)
    with pytest.raises(ImproperlyConfigured, match=r"pip install 'umbel\[compression\]'"):
        kind.deflate(b"")
    with pytest.raises(DecodeError, match=r"pip install 'umbel\[compression\]'"):
        inflate(b"x", kind.content_type, 10)


def a_message(body: bytes, content_type: str, compression: object) -> Message:
    return Message(
        body=body,
        content_type=content_type,
        content_encoding="utf-8",
        headers={"compression": compression},
        properties={},
    )


def test_what_is_not_accepted_is_not_inflated() -> None:
    reader = CallReader.accepting(["json"], {}, 1000)
    with pytest.raises(DecodeError, match="isn't accepted here"):
        reader.call(a_message(b"no zlib at all", "application/x-yaml", "application/x-gzip"))


def test_bodies_are_bounded_by_the_largest_message() -> None:
    form = CallFormat(JSON, find_compression("zlib"))
    reader = CallReader.accepting(["json"], {}, 1000)
    fits = form.body(("x" * 15_000,), {}, NO_EMBED, 1000)
    assert reader.call(a_message(fits, "application/json", "application/x-gzip"))[0][0][-1] == "x"
    with pytest.raises(MessageTooLarge, match=f"{BOMB_FACTOR} times task_max_message_size"):
        form.body(("x" * 16_000,), {}, NO_EMBED, 1000)
    larger = form.body(("x" * 16_000,), {}, NO_EMBED, 2000)
    with pytest.raises(DecodeError, match=f"{BOMB_FACTOR} times task_max_message_size"):
        reader.call(a_message(larger, "application/json", "application/x-gzip"))


def test_an_empty_header_is_no_compression() -> None:
    reader = CallReader.accepting(["json"], {}, 1000)
    for empty in (None, ""):
        assert reader.call(a_message(b"[[], {}, null]", "application/json", empty)) == ([], {}, {})


def test_celerys_bodies_are_of_every_kind() -> None:
    assert {body.header for body in BODIES} == {
        None, *(find_compression(name).content_type for name in NAMES)
    }  # fmt: skip
    assert bz2.decompress(find_compression("bzip2").deflate(b"x")) == b"x"
