"""``pydantic=True``: a task's arguments are validated as models, its return value is dumped."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from umbel.exceptions import EncodeError, ImproperlyConfigured
from umbel.typed import Parameter, Typed, signature_of

if TYPE_CHECKING:
    from umbel.app import Umbel

try:
    import pydantic
except ImportError as error:
    raise ImproperlyConfigured(
        "pydantic=True needs the package pydantic: pip install 'umbel[pydantic]'"
    ) from error


def with_models(
    fun: Callable[..., Any], app: Umbel, name: str, declared: Mapping[str, Any]
) -> Callable[..., Any]:
    """`fun`, which gets what its model annotations say, and gives plain data for a model.

    Options are `pydantic_strict`, `pydantic_context` and `pydantic_dump_kwargs`; the context also
    has ``celery_app`` and ``celery_task_name``. Calling it raises `pydantic.ValidationError`.
    """
    signature = signature_of(fun)
    strict = bool(declared.get("pydantic_strict"))
    context = {
        **(declared.get("pydantic_context") or {}),
        "celery_app": app,
        "celery_task_name": name,
    }
    dump_kwargs: dict[str, Any] = {"mode": "json", **(declared.get("pydantic_dump_kwargs") or {})}

    @functools.cache
    def models() -> dict[str, type[pydantic.BaseModel]]:
        # At the first call, when the names in the annotations are there.
        hints = typing.get_type_hints(fun)
        found = {each: _model_of(hint) for each, hint in hints.items()}
        return {each: model for each, model in found.items() if model is not None}

    def validated(args: Any, kwargs: Any) -> inspect.BoundArguments:
        bound = signature.bind(*args, **kwargs)
        for each, value in bound.arguments.items():
            model = models().get(each)
            if model is not None and value is not None:
                bound.arguments[each] = model.model_validate(value, strict=strict, context=context)
        return bound

    def dumped(value: Any) -> Any:
        model = models().get("return")
        if model is None or not isinstance(value, model):
            return value
        return value.model_dump(**dump_kwargs)

    if inspect.iscoroutinefunction(fun):

        @functools.wraps(fun)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            bound = validated(args, kwargs)
            return dumped(await fun(*bound.args, **bound.kwargs))

        return wrapper

    @functools.wraps(fun)
    def plain_wrapper(*args: Any, **kwargs: Any) -> Any:
        bound = validated(args, kwargs)
        return dumped(fun(*bound.args, **bound.kwargs))

    return plain_wrapper


def lowered_only(typed: Typed | None) -> Typed | None:
    """`typed`, which makes plain data of models and leaves building them to `with_models`."""

    def changed(each: Parameter | None) -> Parameter | None:
        model = None if each is None else _model_of(each.annotation)
        if each is None or model is None:
            return each
        return _Model(each.name, each.annotation, each.form, model)

    if typed is None:
        return None
    return replace(
        typed,
        positional=tuple(changed(each) for each in typed.positional),
        named={name: changed(each) or each for name, each in typed.named.items()},
    )


@dataclass(frozen=True, slots=True)
class _Model(Parameter):
    """A parameter whose values are models; plain data is sent as it is."""

    def rebuild(self, value: Any) -> Any:
        return value

    def lower(self, value: Any, keeps: tuple[type, ...]) -> Any:
        """Raises `EncodeError` for a model that its dump doesn't give back."""
        if not isinstance(value, pydantic.BaseModel):
            return value
        dumped = value.model_dump(mode="json")
        try:
            same = type(value).model_validate(dumped) == value
        except pydantic.ValidationError as error:
            raise EncodeError(f"the argument {self.name!r} can't be read again: {error}") from error
        if not same:
            raise EncodeError(
                f"the argument {self.name!r} is {value!r:.200}, which isn't the same after "
                "model_dump(mode='json') and model_validate(); send its data"
            )
        return dumped


def _model_of(hint: Any) -> type[pydantic.BaseModel] | None:
    """The model in ``Model`` and ``Model | None``."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        parts = [part for part in typing.get_args(hint) if part is not type(None)]
        hint = parts[0] if len(parts) == 1 else None
    if isinstance(hint, type) and issubclass(hint, pydantic.BaseModel):
        return hint
    return None
