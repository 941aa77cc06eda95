"""msgpack, YAML and pickle: what each can carry, and bytes that can't be trusted made values.

As in Celery, the three are Kombu's formats of those names. What one can't carry without changing
it is refused in the caller by an EncodeError that names the place::

    msgpack   plain data and bytes; integers of 64 bits; text keys
    yaml      plain data, bytes, dates, datetimes whose offset is in whole minutes, or naive
    pickle    whatever pickle can; reading it runs what its sender likes

Plain data is text in Unicode, numbers, booleans, None, lists and dicts; tuples become lists.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from functools import lru_cache
from typing import Any, Final

import msgspec

from umbel.exceptions import DecodeError, EncodeError, ImproperlyConfigured, SecurityError
from umbel.jsonplain import MAX_DEPTH, Form, Refused, lower, refused_key
from umbel.saferepr import safe_repr

BINARY: Final = "binary"
PICKLE_TYPE: Final = "application/x-python-serialize"
PICKLE_PROTOCOL: Final = 4

# A YAML alias stands for what it names, again and again: 1 KB could stand for 10 GB. What a
# sender's own values need is far below these.
_LEAST_NODES: Final = 10_000
_NODES_PER_BYTE: Final = 20

_NO_NAMES: Final[Mapping[str, str]] = {}


def _nothing() -> None: ...


def _told(error: Exception) -> str:
    """The error in one line."""
    try:
        text = " ".join(str(error).split())[:300]
    except Exception:  # the class is of the library, or of the user
        text = ""
    return f"{type(error).__name__}: {text}" if text else safe_repr(error, 300)


@dataclass(frozen=True, slots=True)
class Serializer:
    """A way to make bytes of values, and its name on the wire.

    `encode` makes text or bytes and may raise anything; so may `decode`, which gets bytes.
    """

    name: str
    content_type: str
    content_encoding: str
    encode: Callable[[Any], bytes | str]
    decode: Callable[[bytes], Any]
    keeps: tuple[type, ...] = ()
    """What it carries, beside plain data, so that it comes back the same."""
    require: Callable[[], object] = _nothing
    """Raises `ImproperlyConfigured` where a package that it needs isn't installed."""

    def dumps(
        self, value: object, place: str = "value", names: Mapping[str, str] = _NO_NAMES
    ) -> bytes:
        """`value` as bytes. EncodeError names what can't be carried; see `serialization.dumps`."""
        try:
            data = self.encode(value)
            return data.encode("utf-8") if isinstance(data, str) else bytes(data)
        except Refused as error:
            raise EncodeError(f"{error.where(place, names)}: {error.reason}") from error
        except (EncodeError, ImproperlyConfigured):
            raise
        # The encoder is the user's code, or runs it.
        except Exception as error:
            raise EncodeError(f"{place}: can't be sent as {self.name}: {_told(error)}") from error

    def loads(self, data: bytes) -> Any:
        """The value of `data`. DecodeError for all bytes that aren't of this format."""
        try:
            return self.decode(data)
        except (DecodeError, SecurityError, ImproperlyConfigured):
            raise
        # Nobody knows what a decoder does with a stranger's bytes.
        except Exception as error:
            start = safe_repr(bytes(data[:40]))
            raise DecodeError(
                f"the content isn't {self.name} ({_told(error)}); it starts with {start}"
            ) from error


# msgpack


def _carry_bytes(value: object) -> object:
    return bytes(value) if isinstance(value, bytes) else None


def _msgpack_key(key: object) -> object:
    # The readers of Kombu's workers refuse every other key.
    if isinstance(key, str):
        return str.__str__(key)
    raise refused_key(key, "msgpack")


def _msgpack_int(value: int) -> int:
    if -(2**63) <= value < 2**64:
        return int.__int__(value)
    raise Refused("an integer of more than 64 bits can't be sent as msgpack; send it as text")


def _same(mapping: dict[Any, Any]) -> dict[Any, Any]:
    return mapping


_MSGPACK: Final = Form("msgpack", _carry_bytes, _msgpack_key, _same, _msgpack_int)


def _no_extension(code: int, data: memoryview) -> Any:
    raise DecodeError(f"a value of the msgpack extension type {code}, which nobody here knows")


_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(ext_hook=_no_extension).decode


def _encode_msgpack(value: object) -> bytes:
    return _pack(lower(value, form=_MSGPACK))


# YAML


def _carry_yaml(value: object) -> object:
    if isinstance(value, datetime):
        # The text form of an offset has no seconds, as zones had them before 1900.
        offset = value.utcoffset()
        return value if offset is None or not offset.total_seconds() % 60 else None
    return value if isinstance(value, date) else _carry_bytes(value)


def _yaml_key(key: object) -> object:
    if isinstance(key, str):
        return str.__str__(key)
    if key is None or type(key) in (bool, int, float):
        return key
    raise refused_key(key, "YAML")


_YAML: Final = Form("YAML", _carry_yaml, _yaml_key, _same, int.__int__)


@lru_cache(maxsize=1)
def _yaml() -> tuple[Any, Any, Any]:
    """(the module, a dumper, a loader): those in C where the package has them."""
    try:
        import yaml
    except ImportError as error:
        raise ImproperlyConfigured(
            "the serializer 'yaml' needs the package pyyaml; install it: pip install 'umbel[yaml]'"
        ) from error

    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class Loader(base):  # type: ignore[misc]  # one of two classes that have no common type
        def flatten_mapping(self, node: Any) -> None:
            # Merging copies, and merging merged mappings copies exponentially often.
            if any(key.tag == "tag:yaml.org,2002:merge" for key, _ in node.value):
                raise DecodeError("YAML with merge keys (<<) isn't read")

    return yaml, getattr(yaml, "CSafeDumper", yaml.SafeDumper), Loader


def _encode_yaml(value: object) -> str:
    yaml, dumper, _ = _yaml()
    text: str = yaml.dump(lower(value, form=_YAML), Dumper=dumper)
    return text


def _decode_yaml(data: bytes) -> Any:
    yaml, _, loader = _yaml()
    value = yaml.load(data, Loader=loader)
    _count(value, max(_LEAST_NODES, _NODES_PER_BYTE * len(data)), {}, 0)
    return value


def _count(value: Any, most: int, known: dict[int, int], depth: int) -> int:
    """How many values `value` holds, those behind aliases counted each time."""
    if not isinstance(value, (list, dict, tuple)):
        return 1
    found = known.get(id(value))
    if found is None:
        if depth > MAX_DEPTH:
            raise DecodeError("the YAML is nested too deeply")
        known[id(value)] = most  # until it is counted: met again inside itself, it is too many
        items = value.values() if isinstance(value, dict) else value
        found = known[id(value)] = 1 + sum(_count(item, most, known, depth + 1) for item in items)
    if found >= most:
        raise DecodeError(f"YAML whose aliases stand for more than {most} values, or for itself")
    return found


# pickle


def _encode_pickle(value: object) -> bytes:
    import pickle

    return pickle.dumps(value, protocol=PICKLE_PROTOCOL)


def _decode_pickle(data: bytes) -> Any:
    import pickle

    return pickle.loads(data)


BUILT_IN: Final = (
    Serializer("msgpack", "application/x-msgpack", BINARY, _encode_msgpack, _unpack, (bytes,)),
    Serializer(
        "yaml",
        "application/x-yaml",
        "utf-8",
        _encode_yaml,
        _decode_yaml,
        (bytes, date, datetime),
        _yaml,
    ),
    Serializer(
        "pickle",
        PICKLE_TYPE,
        BINARY,
        _encode_pickle,
        _decode_pickle,
        (object,),
    ),
)
