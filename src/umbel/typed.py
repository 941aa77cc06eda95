"""Arguments beyond JSON's types: sent as plain data, rebuilt from the parameters' annotations.

A parameter takes part if its annotation is one of these, or a container, Optional or Union of
them and of plain types: dataclass, msgspec Struct, NamedTuple, TypedDict, pydantic model, Enum,
UUID, datetime, date, time, timedelta, Decimal, set, frozenset, tuple, a path. All others are left
alone, and so is everything in the message: it holds no type names, a Celery worker sees dicts,
lists and text. What a serializer carries by itself (`Serializer.keeps`) is left to it.

A return value whose annotation is one of these is lowered too, by the worker; whoever gets it, gets
the plain data.

Both sides convert arguments. The sender also rebuilds what it is about to send, so that what would
not come back as it is, or not at all, fails in the caller.
"""

from __future__ import annotations

import enum
import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Final, NamedTuple

import msgspec

from umbel.exceptions import EncodeError
from umbel.saferepr import safe_repr

Args = tuple[Any, ...] | list[Any]
Keeps = tuple[type, ...]

_PLAIN: Final = frozenset(
    {
        str,
        int,
        float,
        bool,
        bytes,
        None,
        type(None),
        Any,
        object,
        list,
        dict,
        inspect.Parameter.empty,
    }
)


class Unfit(TypeError):
    """An argument that isn't of the type that its parameter is annotated with."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter that takes part; `form` is what msgspec makes its values of.

    `kind` is the class that it is annotated with, if it is one: what is of it already is left.
    """

    name: str
    annotation: Any
    form: Any
    kind: type | None

    def rebuild(self, value: Any) -> Any:
        """`value` as it was before it was sent. Raises `Unfit`."""
        if self.kind is not None and isinstance(value, self.kind):
            return value  # a datetime is a date, too
        try:
            return _convert(value, self.form)
        # The classes are the user's, with constructors of their own.
        except Exception as error:
            raise Unfit(
                f"the argument {self.name!r} is {safe_repr(value, 200)}, which isn't "
                f"{_shown(self.annotation)}: {str(error) or safe_repr(error)}"
            ) from error

    def lower(self, value: Any, keeps: Keeps) -> Any:
        """`value` as plain data. Raises `EncodeError` if it would not come back as it is."""
        try:
            lowered = _plain(value, keeps)
            rebuilt = self.rebuild(lowered)
            lost = _difference(value, rebuilt)
        except Unfit as error:
            raise EncodeError(str(error)) from error.__cause__
        # As above; and what the annotation doesn't say need not be something that can be sent.
        except Exception as error:
            raise EncodeError(
                f"the argument {self.name!r} can't be sent: {str(error) or safe_repr(error)}"
            ) from error
        if lost is not None:
            raise EncodeError(
                f"the argument {self.name!r} would not arrive as it is: {safe_repr(lost[0], 200)} "
                f"would be {safe_repr(lost[1], 200)}, since the parameter is annotated with "
                f"{_shown(self.annotation)}"
            )
        return lowered


@dataclass(frozen=True, slots=True)
class Typed:
    """The parameters of one task that take part, by how they can be given."""

    positional: tuple[Parameter | None, ...]
    rest: Parameter | None
    named: Mapping[str, Parameter]
    more: Parameter | None

    def lower(
        self, args: Args, kwargs: Mapping[str, Any], keeps: Keeps
    ) -> tuple[Args, Mapping[str, Any]]:
        """The arguments as they are sent. Raises `EncodeError`."""
        if object in keeps:
            return args, kwargs
        return self._each(lambda parameter, value: parameter.lower(value, keeps), args, kwargs)

    def rebuild(self, args: Args, kwargs: Mapping[str, Any]) -> tuple[Args, Mapping[str, Any]]:
        """The arguments as the function is called with them. Raises `Unfit`."""
        return self._each(lambda parameter, value: parameter.rebuild(value), args, kwargs)

    def _each(
        self, change: Callable[[Parameter, Any], Any], args: Args, kwargs: Mapping[str, Any]
    ) -> tuple[Args, dict[str, Any]]:
        def changed(parameter: Parameter | None, value: Any) -> Any:
            return value if parameter is None else change(parameter, value)

        known, named = self.positional, self.named
        return (
            [
                changed(known[place] if place < len(known) else self.rest, value)
                for place, value in enumerate(args)
            ],
            {name: changed(named.get(name, self.more), value) for name, value in kwargs.items()},
        )


@dataclass(frozen=True, slots=True)
class Returned:
    """What a task returns whose annotation takes part; nobody rebuilds it."""

    annotation: Any

    def lower(self, value: Any, keeps: Keeps) -> Any:
        """`value` as plain data. Raises `Unfit` for what has no plain form."""
        if object in keeps:
            return value
        try:
            return _plain(value, keeps)
        except Exception as error:  # as in `Parameter`
            raise Unfit(
                f"the return value is {safe_repr(value, 200)}, which can't be made plain, as its "
                f"annotation {_shown(self.annotation)} asks: {str(error) or safe_repr(error)}"
            ) from error


def typed_return(function: Callable[..., object]) -> Returned | None:
    """How the return value of `function` is made plain; None if its annotation doesn't say."""
    try:
        annotation = signature_of(function).return_annotation
    except (TypeError, ValueError, NameError):
        return None
    if _is_plain(annotation):
        return None
    annotation = _evaluated(annotation, function)
    return Returned(annotation) if _form(annotation) is not None else None


def typed_parameters(function: Callable[..., object]) -> Typed | None:
    """The parameters of `function` that take part; None if there are none."""
    try:
        signature = signature_of(function)
    except (TypeError, ValueError, NameError):
        return None
    kinds = inspect.Parameter
    found = {
        parameter.name: _parameter(parameter, function)
        for parameter in signature.parameters.values()
        if not _is_plain(parameter.annotation)
    }
    if not any(found.values()):
        return None
    by_kind: dict[Any, list[str]] = {}
    for each in signature.parameters.values():
        by_kind.setdefault(each.kind, []).append(each.name)
    either = by_kind.get(kinds.POSITIONAL_OR_KEYWORD, [])
    (rest, *_), (more, *_) = (
        [found.get(name) for name in by_kind.get(kind, [])] or [None]
        for kind in (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD)
    )
    by_name = [*either, *by_kind.get(kinds.KEYWORD_ONLY, [])]
    return Typed(
        positional=tuple(
            found.get(name) for name in [*by_kind.get(kinds.POSITIONAL_ONLY, []), *either]
        ),
        rest=rest,
        named={name: parameter for name in by_name if (parameter := found.get(name))},
        more=more,
    )


def signature_of(function: Callable[..., object]) -> inspect.Signature:
    """The parameters; annotations may be names that only a type checker knows.

    Raises `TypeError` or `ValueError` where there are none to know.
    """
    if sys.version_info >= (3, 14):  # where annotations are evaluated when they are asked for
        from annotationlib import Format

        return inspect.signature(function, annotation_format=Format.FORWARDREF)
    return inspect.signature(function)


def _is_plain(annotation: object) -> bool:
    try:
        return annotation in _PLAIN
    except TypeError:  # not hashable
        return False


def _parameter(parameter: inspect.Parameter, function: Callable[..., object]) -> Parameter | None:
    annotation = _evaluated(parameter.annotation, function)
    form = _form(annotation)
    if form is None:
        return None
    return Parameter(parameter.name, annotation, form, _class_of(annotation))


def _evaluated(annotation: object, function: Callable[..., object]) -> Any:
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, _globals_of(function))
    # A name that only a type checker imports, or anything else: then it says nothing here.
    except Exception:
        return None


def _globals_of(function: Any) -> dict[str, Any]:
    while isinstance(function, functools.partial):
        function = function.func
    plain = inspect.unwrap(getattr(function, "__func__", function))
    return getattr(plain, "__globals__", None) or getattr(type(plain).__call__, "__globals__", {})


# What an annotation says.


class _Built(type):
    """A stand-in for a type that msgspec has no way to build: `builder` does.

    msgspec looks whether what its hook has built is an instance of the stand-in; all values are.
    """

    builder: Any  # a function of one value; as a Callable it would be taken for a method

    def __instancecheck__(cls, instance: object) -> bool:
        return True


def _built_by(build: Callable[[Any], Any]) -> _Built:
    made = _Built("Built", (), {})
    made.builder = staticmethod(build)
    return made


def _form(annotation: Any) -> Any | None:
    """What msgspec is to make values of; None if nothing is to be made of them."""
    if _is_plain(annotation):
        return None
    try:
        form = _rewritten(annotation)
        info = msgspec.inspect.type_info(form)
        msgspec.msgpack.Decoder(form, dec_hook=_build_other)
    # msgspec refuses types by TypeError; evaluating the annotations of fields may raise anything.
    except Exception:
        return None
    seen: set[str] = set()
    return form if _look(info, seen) and "made" in seen else None


def _rewritten(annotation: Any) -> Any:
    """`annotation` with stand-ins for the unions and enumerations that msgspec refuses."""
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _rewritten(parts[0])
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return annotation if _accepted(annotation) else _built_by(_enum_builder(annotation))
    if origin is None or origin is typing.Literal or _accepted(annotation):
        return annotation
    new: tuple[Any, ...] = tuple(part if part is ... else _rewritten(part) for part in parts)
    if origin in (typing.Union, types.UnionType):
        union = functools.reduce(lambda one, other: one | other, new)
        return union if _accepted(union) else _built_by(_union_builder(annotation))
    return origin[new]


def _accepted(annotation: Any) -> bool:
    try:
        msgspec.msgpack.Decoder(annotation, dec_hook=_build_other)
    except TypeError:
        return False
    return True


def _enum_builder(kind: type[enum.Enum]) -> Callable[[Any], Any]:
    values = [member.value for member in kind]
    if not all(type(value) in (str, int, float, bool, type(None)) for value in values):
        raise TypeError(f"{kind} has values that aren't plain")
    return kind


def _class_of(annotation: Any) -> type | None:
    """The class that values can be asked for; of a TypedDict they can't."""
    is_class = isinstance(annotation, type) and not typing.is_typeddict(annotation)
    return annotation if is_class else None


class _Member(NamedTuple):
    """A part of a union: its class if it is one, and what msgspec makes of it, if anything."""

    kind: type | None
    form: Any | None


def _union_builder(annotation: Any) -> Callable[[Any], Any]:
    members = []
    for part in typing.get_args(annotation):
        form = None if _is_plain(part) else _form(part)
        if form is None and not _is_plain(part):
            raise TypeError(f"{part} says nothing that a value could be made by")
        members.append(_Member(_class_of(typing.get_origin(part) or part), form))

    def build(value: Any) -> Any:
        # What is of one of the types already is that; the first that can be made of it otherwise.
        if any(kind is not None and isinstance(value, kind) for kind, _ in members):
            return value
        reasons = []
        for kind, form in members:
            if form is None:
                continue
            try:
                return _convert(value, form)
            except Exception as error:
                reasons.append(f"no {getattr(kind, '__name__', kind)}: {error}")
        raise ValueError("; ".join(reasons))

    return build


_MADE: Final = (
    msgspec.inspect.DataclassType,
    msgspec.inspect.DateTimeType,
    msgspec.inspect.DateType,
    msgspec.inspect.DecimalType,
    msgspec.inspect.EnumType,
    msgspec.inspect.FrozenSetType,
    msgspec.inspect.NamedTupleType,
    msgspec.inspect.SetType,
    msgspec.inspect.StructType,
    msgspec.inspect.TimeDeltaType,
    msgspec.inspect.TimeType,
    msgspec.inspect.TupleType,
    msgspec.inspect.UUIDType,
    msgspec.inspect.VarTupleType,
)


def _look(info: Any, seen: set[Any]) -> bool:
    """Whether all types in `info` are known; ``"made"`` is put into `seen` if values are built."""
    if isinstance(info, msgspec.inspect.CustomType):
        seen.add("made")
        return isinstance(info.cls, _Built) or issubclass(info.cls, PurePath) or _is_model(info.cls)
    if isinstance(info, _MADE):
        seen.add("made")
    if id(info) in seen:
        return True
    seen.add(id(info))
    parts: Iterable[Any] = (getattr(info, name) for name in getattr(info, "__struct_fields__", ()))
    return all(_look(each, seen) for part in parts for each in _infos(part))


def _infos(part: Any) -> Iterable[Any]:
    match part:
        case msgspec.inspect.Type():
            return (part,)
        case tuple():
            fields = (
                each.type if isinstance(each, msgspec.inspect.Field) else each for each in part
            )
            return (each for each in fields if isinstance(each, msgspec.inspect.Type))
        case _:
            return ()


# Values.


def _convert(value: Any, form: Any) -> Any:
    return msgspec.convert(value, form, dec_hook=_build_other, str_keys=True)


def _build_other(form: type, value: Any) -> Any:
    if isinstance(form, _Built):
        return form.builder(value)
    if isinstance(value, form):
        return value
    if issubclass(form, PurePath):
        if isinstance(value, str):
            return form(value)
        raise ValueError(f"expected text, got {type(value).__name__}")
    return form.model_validate(value)  # type: ignore[attr-defined]  # a pydantic model


def _plain(value: Any, keeps: Keeps) -> Any:
    return msgspec.to_builtins(value, builtin_types=keeps, str_keys=True, enc_hook=_lower_other)


def _lower_other(value: Any) -> Any:
    if isinstance(value, PurePath):
        return str(value)
    if _is_model(type(value)):
        return value.model_dump(mode="json")
    for kind in (
        str,
        int,
        float,
    ):  # msgspec knows these themselves alone, JSON their subclasses too
        if isinstance(value, kind):
            return kind(value)
    raise TypeError(f"{safe_repr(value, 80)} is of the type {type(value).__qualname__}")


def _is_model(kind: type) -> bool:
    """Whether it is a pydantic model: where nobody has imported pydantic, nothing is one."""
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and issubclass(kind, pydantic.BaseModel)


_ATOMS: Final = (str, int, float, bool, type(None), dict, list, tuple, set, frozenset)


def _difference(sent: Any, rebuilt: Any) -> tuple[Any, Any] | None:
    """A part that is another one once it is rebuilt, with what it is then.

    Plain data that was given for something richer is none: that is how it is sent, too.
    """
    if sent is rebuilt or sent == rebuilt:
        return None
    if isinstance(sent, (list, tuple)) and isinstance(rebuilt, (list, tuple)):
        pairs: Iterable[tuple[Any, Any]] = zip(sent, rebuilt, strict=False)
    elif isinstance(sent, dict) and isinstance(rebuilt, dict):
        pairs = ((sent[key], rebuilt[key]) for key in sent.keys() & rebuilt.keys())
    else:
        same_kind = type(sent) is type(rebuilt)
        if type(sent) in _ATOMS or (same_kind and not _compares(type(sent))):
            return None
        return sent, rebuilt
    return next((found for pair in pairs if (found := _difference(*pair))), None)


def _compares(kind: type) -> bool:
    """Whether two of them can be equal without being one and the same."""
    return any("__eq__" in base.__dict__ for base in kind.__mro__[:-1])


def _shown(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)
