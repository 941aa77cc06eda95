"""Compressed bodies: by the name in an option, by the content type in the header `compression`.

As Kombu has them. ``gzip`` is a zlib stream, whatever its name says; a true gzip file is read too.
Reading stops at a limit, since a few kilobytes can stand for gigabytes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

from umbel.exceptions import DecodeError, ImproperlyConfigured
from umbel.saferepr import safe_repr

BOMB_FACTOR: Final = 16
"""A body may have this many times `task_max_message_size` once it is decompressed.

Text that people send shrinks to a fifth or a tenth, a bomb to a thousandth.
"""

# What decompressing needs at the highest preset, doubled; a stranger can ask for 4 GiB.
_LZMA_MEMORY: Final = 128 * 2**20
_ZLIB_OR_GZIP: Final = 47


@dataclass(frozen=True, slots=True)
class Compression:
    """One way to compress. `inflate` gets the data and the most bytes that are wanted of it."""

    name: str
    content_type: str
    deflate: Callable[[bytes], bytes]
    inflate: Callable[[bytes, int], bytes]


def find_compression(name: object) -> Compression:
    """The one of this name, alias or content type. Raises `ImproperlyConfigured`."""
    found = _BY_NAME.get(name.lower()) if isinstance(name, str) else None
    if found is not None:
        return found
    near = get_close_matches(str(name), _BY_NAME, n=2)
    raise ImproperlyConfigured(
        f"compression is {name!r:.80}, which isn't known; "
        + (f"did you mean {' or '.join(map(repr, near))}?" if near else f"known: {_known()}")
    )


def inflate(data: bytes, content_type: object, limit: int) -> bytes:
    """The decompressed `data`. DecodeError if it is not compressed so, or longer than `limit`."""
    # Kombu's readers take names there, too.
    found = _BY_NAME.get(content_type.lower()) if isinstance(content_type, str) else None
    if found is None:
        raise DecodeError(
            f"the body is compressed by {safe_repr(content_type, 80)}, which isn't known; "
            f"known: {_known()}"
        )
    try:
        plain = found.inflate(data, limit + 1)
    except DecodeError:
        raise
    except ImproperlyConfigured as error:
        raise DecodeError(str(error)) from error
    # Each library has errors of its own, and some more than one.
    except Exception as error:
        raise DecodeError(
            f"the body isn't compressed by {found.name}, as its header says: {safe_repr(error)}"
        ) from error
    if len(plain) > limit:
        raise DecodeError(
            f"the body has {len(data)} bytes, compressed by {found.name}, that stand for more than "
            f"{limit}, which is {BOMB_FACTOR} times task_max_message_size; such content isn't read"
        )
    return plain


def _whole(plain: bytes, ended: bool, most: int) -> bytes:
    if not ended and len(plain) < most:
        raise DecodeError("the compressed body breaks off")
    return plain


def _deflate_zlib(data: bytes) -> bytes:
    import zlib

    return zlib.compress(data)


def _inflate_zlib(data: bytes, most: int) -> bytes:
    import zlib

    reader = zlib.decompressobj(_ZLIB_OR_GZIP)
    return _whole(reader.decompress(data, most), reader.eof, most)


def _deflate_bz2(data: bytes) -> bytes:
    import bz2

    return bz2.compress(data)


def _inflate_bz2(data: bytes, most: int) -> bytes:
    import bz2

    reader = bz2.BZ2Decompressor()
    return _whole(reader.decompress(data, most), reader.eof, most)


def _deflate_lzma(data: bytes) -> bytes:
    import lzma

    return lzma.compress(data)


def _inflate_lzma(data: bytes, most: int) -> bytes:
    import lzma

    reader = lzma.LZMADecompressor(memlimit=_LZMA_MEMORY)
    return _whole(reader.decompress(data, most), reader.eof, most)


def _needs(name: str, package: str) -> ImproperlyConfigured:
    return ImproperlyConfigured(
        f"the compression {name!r} needs the package {package}; install it: "
        "pip install 'umbel[compression]'"
    )


def _brotli() -> Any:
    try:
        import brotli  # type: ignore[import-untyped]  # it has no stubs
    except ImportError as error:
        raise _needs("brotli", "brotli") from error
    if not hasattr(brotli.Decompressor, "can_accept_more_data"):
        raise _needs("brotli", "brotli from version 1.2, where reading stops at a limit,")
    return brotli


def _deflate_brotli(data: bytes) -> bytes:
    packed: bytes = _brotli().compress(data)
    return packed


def _inflate_brotli(data: bytes, most: int) -> bytes:
    reader = _brotli().Decompressor()
    parts = [reader.process(data, output_buffer_limit=most)]
    # It hands out at most its own buffer at a time.
    while not reader.is_finished() and parts[-1] and sum(map(len, parts)) < most:
        parts.append(reader.process(b"", output_buffer_limit=most))
    return _whole(b"".join(parts), reader.is_finished(), most)


def _zstd() -> Any:
    try:
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd
    except ImportError as error:
        raise _needs("zstd", "backports.zstd") from error
    return zstd


def _deflate_zstd(data: bytes) -> bytes:
    packed: bytes = _zstd().compress(data)
    return packed


def _inflate_zstd(data: bytes, most: int) -> bytes:
    zstd = _zstd()
    # The memory that a frame may ask for, as a power of two: 128 MiB, as the library's own tool.
    reader = zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: 27})
    return _whole(reader.decompress(data, most), reader.eof, most)


_ALL: Final = (
    (("zlib", "gzip"), "application/x-gzip", _deflate_zlib, _inflate_zlib),
    (("bzip2", "bzip", "bz2"), "application/x-bz2", _deflate_bz2, _inflate_bz2),
    (("lzma", "xz"), "application/x-lzma", _deflate_lzma, _inflate_lzma),
    (("zstd", "zstandard"), "application/zstd", _deflate_zstd, _inflate_zstd),
    (("brotli",), "application/x-brotli", _deflate_brotli, _inflate_brotli),
)
_BY_TYPE: Final[Mapping[str, Compression]] = {
    kind: Compression(names[0], kind, deflate, read) for names, kind, deflate, read in _ALL
}
_BY_NAME: Final[Mapping[str, Compression]] = {
    name: _BY_TYPE[kind] for names, kind, _, _ in _ALL for name in (*names, kind)
}


def _known() -> str:
    return ", ".join(sorted(names[0] for names, *_ in _ALL))
