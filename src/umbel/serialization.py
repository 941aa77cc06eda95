"""JSON as Celery writes and reads it: bodies, results, and values of users in both.

Two ways in each direction. Plain data (exact built-in types, finite floats, text keys) goes
through msgspec. Everything else is first lowered to plain data, value by value, which is where
what can't be carried is found and its place named; it then goes through the standard library,
which writes what Celery's producers write and msgspec doesn't read: ``NaN``, ``Infinity`` and
lone surrogates.

What changes on the way, as with Celery: tuples become lists; subclasses of ``str``, ``int``,
``float``, ``list`` and ``dict`` become those; keys that are numbers, booleans or None become
text. An object with ``__json__()`` is sent as what that returns. Extra types: `jsontypes`.

Below that, the serializers by name: JSON, those of `serializers`, and the user's own, which
`register` makes known to this process.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from difflib import get_close_matches
from typing import Any, Final

import msgspec

from umbel import jsontypes
from umbel.exceptions import DecodeError, EncodeError, ImproperlyConfigured
from umbel.jsonplain import SCALARS, Refused, is_plain, lower
from umbel.protocol import NO_EMBED
from umbel.saferepr import safe_repr
from umbel.serializers import BUILT_IN, Serializer

CONTENT_TYPE: Final = "application/json"
CONTENT_ENCODING: Final = "utf-8"

Call = tuple[list[Any], dict[str, Any], dict[str, Any]]

CALL_NAMES: Final = {"[0]": "args", "[1]": "kwargs", "[2]": "embed"}
_NO_NAMES: Final[Mapping[str, str]] = {}
_TEXT: Final = frozenset({str})
_TYPE_KEY: Final = f'"{jsontypes.TYPE}"'.encode()

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_NO_MORE: Final = b",{}," + _encode(NO_EMBED) + b"]"
"""What stands behind the positional arguments of nearly every call."""
_encode_leniently = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


def dumps(value: object, *, place: str = "value", names: Mapping[str, str] = _NO_NAMES) -> bytes:
    """`value` as JSON, in UTF-8.

    EncodeError names the part that can't be carried, as in ``kwargs['rows'][3]``: it starts
    with `place`, or, where `names` has one for the first step (``[0]``, ``['result']``), with
    that name in place of both.
    """
    try:
        if is_plain(value):
            return _encode(value)
    except (ValueError, OverflowError, RecursionError, RuntimeError):
        pass  # lone surrogates, huge integers, no stack left: the other way carries it or says why
    try:
        return _encode_leniently(lower(value)).encode("ascii")
    except Refused as exc:
        raise EncodeError(f"{exc.where(place, names)}: {exc.reason}") from exc.__cause__
    except RecursionError as exc:
        raise EncodeError(f"{place}: nested too deeply for the stack that is left here") from exc
    # Reading a value may run any code: __json__, iteration and attributes of the user's classes.
    except Exception as exc:
        raise EncodeError(f"{place}: can't be sent as JSON: {safe_repr(exc)}") from exc


def dumps_call(
    args: list[Any] | tuple[Any, ...], kwargs: Mapping[str, Any], embed: Mapping[str, Any]
) -> bytes:
    """The body of a task message: a JSON array of positional, named and workflow arguments."""
    if (
        not kwargs
        and embed is NO_EMBED
        and type(args) is tuple
        and SCALARS.issuperset(map(type, args))
    ):
        try:
            return b"[" + _encode(args) + _NO_MORE
        except (ValueError, OverflowError):
            pass  # as in `dumps`
    return dumps((args, dict(kwargs), dict(embed)), names=CALL_NAMES)


def loads(data: bytes) -> Any:
    """The value that the JSON in `data` stands for; DecodeError for all other bytes."""
    try:
        value = _decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        value = _loads_leniently(data)
    if _TYPE_KEY not in data:
        return value
    try:
        return _restore(value)
    except RecursionError as exc:
        raise DecodeError("the JSON is nested too deeply") from exc


def loads_call(data: bytes) -> Call:
    """Arguments of a task message's body; DecodeError for everything else."""
    return as_call(loads(data))


def as_call(body: object) -> Call:
    """`body` as ``(args, kwargs, embed)``; DecodeError if it hasn't that shape."""
    if type(body) is list and len(body) == 3:
        args, kwargs, embed = body
        # As nearly everybody sends it; a JSON object's keys are text, so an empty one's are, too.
        if type(args) is list and type(kwargs) is dict and not kwargs and type(embed) is dict:
            return args, kwargs, embed
    match body:
        case [list() | tuple() as args, dict() as kwargs, dict() | None as embed]:
            # Only JSON's keys are always text.
            if _TEXT.issuperset(map(type, kwargs)):
                return args if type(args) is list else list(args), kwargs, embed or {}
    raise DecodeError(
        f"the body is {safe_repr(body, 80)}; a task's is [positional arguments (an array), "
        "named arguments (an object), callbacks and chain (an object)]"
    )


def register(
    name: str,
    encoder: Callable[[Any], bytes | str],
    decoder: Callable[[bytes], Any],
    content_type: str,
    content_encoding: str = "utf-8",
) -> None:
    """Make a serializer known to this process, or replace one of that name.

    `encoder` makes text or bytes of a value; `decoder` gets bytes. Senders use it where
    `task_serializer` or ``serializer=`` names it, workers where `accept_content` does.
    """
    for text in (name, content_type, content_encoding):
        if not isinstance(text, str) or not text:
            raise TypeError(f"register got {text!r:.80}; expected a text that isn't empty")
    if not callable(encoder) or not callable(decoder):
        raise TypeError(f"register of {name!r} expects two functions: encoder and decoder")
    if name == JSON.name or content_type == CONTENT_TYPE:
        raise ValueError(
            f"the serializer {name!r} with the content type {content_type!r} would take JSON's "
            "place, in which results and control commands travel; give it names of its own"
        )
    _registered[name] = Serializer(name, content_type, content_encoding, encoder, decoder)


def unregister(name: str) -> None:
    """Forget a serializer. Raises `ImproperlyConfigured` where there is none of this name."""
    if name == JSON.name:
        raise ValueError("JSON can't be unregistered; leave it out of accept_content")
    if name not in _registered:
        raise _unknown(name)
    del _registered[name]


def find_serializer(name: object) -> Serializer:
    """The serializer of this name or content type. Raises `ImproperlyConfigured`."""
    for each in _registered.values():
        if name in (each.name, each.content_type):
            each.require()
            return each
    raise _unknown(name)


def _unknown(name: object) -> ImproperlyConfigured:
    near = get_close_matches(str(name), _registered, n=2)
    advice = (
        f"did you mean {' or '.join(map(repr, near))}?"
        if near
        else "umbel.serialization.register makes one known"
    )
    return ImproperlyConfigured(
        f"no serializer {name!r:.80} is known here; known: {', '.join(sorted(_registered))}; "
        + advice
    )


def readers(
    accept: Iterable[str], more: Mapping[str, Serializer] | None = None
) -> dict[str, Serializer]:
    """By content type, the serializers that `accept` names. Raises `ImproperlyConfigured`.

    `more` are known to the caller alone, by name.
    """
    chosen = [(more or {}).get(name) or find_serializer(name) for name in accept]
    return {each.content_type.lower(): each for each in chosen}


def decode(
    data: bytes,
    content_type: str,
    content_encoding: str | None,
    accept: Collection[str] = ("json",),
) -> Any:
    """The value of a body that says what it is; DecodeError if it isn't accepted or readable.

    `accept` holds names (``json``) or content types. No `content_encoding` means UTF-8.
    """
    return read(data, content_type, content_encoding, readers(accept))


def read(
    data: bytes,
    content_type: str,
    content_encoding: str | None,
    accepted: Mapping[str, Serializer],
) -> Any:
    """As `decode`, with what is accepted as `readers` gives it.

    A signed body that isn't to be trusted is a SecurityError.
    """
    if content_type == CONTENT_TYPE and content_encoding == CONTENT_ENCODING:
        if CONTENT_TYPE in accepted:
            return loads(data)
        raise _not_accepted(content_type, accepted)
    serializer = accepted_serializer(content_type, accepted)
    if serializer is JSON:
        return loads(_as_utf8(data, content_encoding))
    return serializer.loads(data)


def accepted_serializer(content_type: str, accepted: Mapping[str, Serializer]) -> Serializer:
    """The one of `accepted` for this content type; DecodeError if there is none."""
    serializer = accepted.get(content_type.partition(";")[0].strip().lower())
    if serializer is None:
        raise _not_accepted(content_type, accepted)
    return serializer


def _not_accepted(content_type: str, accepted: Mapping[str, Serializer]) -> DecodeError:
    return DecodeError(
        f"content of type {content_type!r} isn't accepted here; accepted: "
        f"{', '.join(sorted(accepted)) or 'nothing'}. Send it as JSON "
        "(task_serializer='json'), or add its type to accept_content."
    )


JSON: Final = Serializer(
    "json", CONTENT_TYPE, CONTENT_ENCODING, dumps, loads, jsontypes.EXTRA_TYPES
)
_registered: Final = {each.name: each for each in (JSON, *BUILT_IN)}


def _as_utf8(data: bytes, charset: str | None) -> bytes:
    if not charset or charset.lower() in ("utf-8", "utf8", "binary", "us-ascii"):
        return data
    try:
        return data.decode(charset).encode("utf-8")
    except LookupError as exc:
        raise DecodeError(f"content in the unknown encoding {charset!r}; send it as utf-8") from exc
    # A stranger chooses the codec, and codecs also warn, which may be made an error.
    except Exception as exc:
        raise DecodeError(f"content that isn't in its encoding {charset!r}: {exc}") from exc


def _loads_leniently(data: bytes) -> Any:
    try:
        return json.loads(data.decode("utf-8"))
    except RecursionError as exc:
        raise DecodeError("the JSON is nested too deeply") from exc
    except ValueError as exc:
        start = safe_repr(bytes(data[:40]))
        raise DecodeError(f"the content isn't JSON ({exc}); it starts with {start}") from exc


def _restore(value: Any) -> Any:
    """`value` with tags turned into what they stand for; changes lists and dicts in place."""
    if type(value) is list:
        for index, item in enumerate(value):
            if type(item) is dict or type(item) is list:
                value[index] = _restore(item)
        return value
    if type(value) is not dict:
        return value
    for key, item in value.items():
        if type(item) is dict or type(item) is list:
            value[key] = _restore(item)
    return jsontypes.restore(value) if jsontypes.TYPE in value else value
