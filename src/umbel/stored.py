"""What Celery's result stores hold: the result of a task, and exceptions inside it.

A record is a JSON object with these keys in this order; those in brackets only if set::

    status  result  traceback  children  date_done  [group_id]  [parent_id]  […extended]  task_id

An exception in ``result`` is ``{"exc_type": qualified name, "exc_message": [its arguments],
"exc_module": module}``. Classes that Celery has too are stored under Celery's module, so that a
Celery client restores its own class, and come back as Umbel's.
"""

from __future__ import annotations

import builtins
import inspect
import os
import sys
import traceback as tracebacks
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from types import TracebackType
from typing import Any, Final

import msgspec

from umbel import exceptions
from umbel.exceptions import BackendGetMetaError, DecodeError, EncodeError, SecurityError
from umbel.formats import JSON_RESULTS, ResultFormat
from umbel.jsonplain import SCALARS
from umbel.saferepr import safe_repr
from umbel.serialization import dumps
from umbel.states import EXCEPTION_STATES, PENDING, PROPAGATE_STATES, SUCCESS

_WORKER_FOLDER: Final = os.path.join(os.path.dirname(os.path.abspath(__file__)), "worker", "")

_NAMES_IN_CELERY: Final = {
    "celery.exceptions": (
        "AlreadyRegistered",
        "AlwaysEagerIgnored",
        "BackendError",
        "BackendGetMetaError",
        "BackendStoreError",
        "CeleryError",
        "CeleryWarning",
        "ChordError",
        "DuplicateNodenameWarning",
        "DuplicateTaskNameWarning",
        "FixupWarning",
        "Ignore",
        "ImproperlyConfigured",
        "IncompleteStream",
        "InvalidTaskError",
        "MaxRetriesExceededError",
        "NotConfigured",
        "NotRegistered",
        "QueueNotFound",
        "Reject",
        "Retry",
        "SecurityError",
        "SecurityWarning",
        "TaskError",
        "TaskPredicate",
        "TaskRevokedError",
        "TimeoutError",
        "WorkerShutdown",
        "WorkerTerminate",
    ),
    "billiard.exceptions": (
        "SoftTimeLimitExceeded",
        "Terminated",
        "TimeLimitExceeded",
        "WorkerLostError",
    ),
    "kombu.exceptions": ("DecodeError", "EncodeError", "OperationalError"),
}
_CLASS_BY_NAME: Final[Mapping[tuple[str, str], type[BaseException]]] = {
    (module, name): getattr(exceptions, name)
    for module, names in _NAMES_IN_CELERY.items()
    for name in names
}
_encode = msgspec.json.Encoder().encode
_NAME_BY_CLASS: Final = {kind: name for name, kind in _CLASS_BY_NAME.items()}


@dataclass(frozen=True, slots=True)
class Meta:
    """One stored result. `result` of a failure is still the mapping that stands for it.

    `date_done` is ISO 8601 text, aware, and only there once the task has ended. `extra` holds
    every other key, as stored: what ``result_extended`` adds, and what we don't know.
    """

    task_id: str
    status: str
    result: Any = None
    traceback: str | None = None
    children: list[Any] | None = None
    date_done: str | None = None
    parent_id: str | None = None
    group_id: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


def encode_meta(
    task_id: str,
    state: str,
    result: Any,
    traceback: str | None = None,
    children: Sequence[Any] | None = None,
    date_done: str | None = None,
    group_id: str | None = None,
    parent_id: str | None = None,
    extended: Mapping[str, Any] | None = None,
    form: ResultFormat = JSON_RESULTS,
) -> bytes:
    """The record to store. In the states of exceptions, `result` may be the exception itself.

    An `AsyncResult` that the format can't carry becomes what its `as_tuple` gives. EncodeError,
    naming the place in the return value, for anything else of that kind.
    """
    if state in EXCEPTION_STATES and isinstance(result, BaseException):
        as_it_is = form.keeps_exceptions and _is_pickled_well(result)
        result = result if as_it_is else encode_exception(result)
    record = {
        "status": state,
        "result": result,
        "traceback": traceback,
        "children": children,
        "date_done": date_done,
    }
    if group_id is not None:
        record["group_id"] = group_id
    if parent_id is not None:
        record["parent_id"] = parent_id
    if extended:
        record.update(extended)
    record["task_id"] = task_id
    if type(result) in SCALARS and not children and not extended and form.is_plain:
        # Nearly every result: no part of it has to be looked at.
        try:
            return _encode(record)
        except (ValueError, OverflowError):
            pass  # half a surrogate pair, a huge integer: written the other way, or refused
    result_name = "return value" if state == SUCCESS else f"meta of state {state}"
    names = {"['result']": result_name, "['args']": "args", "['kwargs']": "kwargs"}
    try:
        return form.dumps(record, "stored result", names)
    except EncodeError:
        if not hasattr(type(result), "as_tuple") or state != SUCCESS:
            raise
        # A task that returns the result of another: what names it is stored, as in Celery.
        return form.dumps({**record, "result": result.as_tuple()}, "stored result", names)


def decode_meta(data: bytes, form: ResultFormat = JSON_RESULTS) -> Meta:
    """The record in `data`; BackendGetMetaError if it isn't one."""
    try:
        record = form.loads(data)
    except (DecodeError, SecurityError) as exc:
        raise BackendGetMetaError(f"a stored result can't be read: {exc}") from exc
    if not isinstance(record, dict):
        raise BackendGetMetaError(
            f"a stored result is an object with status and task_id; got {safe_repr(record, 80)}"
        )
    done, children = record.pop("date_done", None), record.pop("children", None)
    if children is not None and not isinstance(children, list):
        raise BackendGetMetaError(
            f"children of a stored result are {safe_repr(children, 80)}; they must be an array"
        )
    return Meta(
        task_id=_required_text(record, "task_id"),
        status=_required_text(record, "status"),
        result=record.pop("result", None),
        traceback=_text(record, "traceback"),
        children=children,
        date_done=_date_text(done),
        parent_id=_text(record, "parent_id"),
        group_id=_text(record, "group_id"),
        extra=record,
    )


def state_in(meta: Meta | None) -> str:
    """Its state; of what isn't stored it is PENDING."""
    return PENDING if meta is None else meta.status


def value_in(meta: Meta | None) -> Any:
    """The value, or the exception, or None."""
    if meta is None:
        return None
    if meta.status in EXCEPTION_STATES and isinstance(meta.result, dict):
        return decode_exception(meta.result, meta.traceback)
    return meta.result


def as_dict(meta: Meta) -> dict[str, Any]:
    """A record as Celery hands it to callbacks."""
    return {
        "status": meta.status,
        "result": value_in(meta),
        "traceback": meta.traceback,
        "children": meta.children,
        "date_done": meta.date_done,
        **meta.extra,
        "task_id": meta.task_id,
    }


def raise_failure(meta: Meta | None) -> None:
    """Raise the exception of a final state, where it is one."""
    if meta is not None and meta.status in PROPAGATE_STATES:
        value = value_in(meta)
        if isinstance(value, BaseException):
            raise value


def _required_text(record: dict[str, Any], key: str) -> str:
    value = _text(record, key)
    if value is None:
        raise BackendGetMetaError(f"a stored result without {key}: {safe_repr(record, 80)}")
    return value


def _text(record: dict[str, Any], key: str) -> str | None:
    value = record.pop(key, None)
    if value is not None and not isinstance(value, str):
        raise BackendGetMetaError(
            f"{key} of a stored result is {safe_repr(value, 80)}; it must be text"
        )
    return value


def _date_text(value: object) -> str | None:
    if isinstance(value, datetime):  # written as an extra JSON type, as some Celery stores do
        return value.isoformat()
    if value is None or isinstance(value, str):
        return value
    raise BackendGetMetaError(
        f"date_done of a stored result is {safe_repr(value, 80)}; it must be ISO 8601 text"
    )


_CELERYS_WRAPPER: Final = ("celery.utils.serialization", "UnpickleableExceptionWrapper")


def encode_exception(exc: BaseException) -> dict[str, Any]:
    """The mapping that stands for `exc`; arguments that JSON can't carry become their repr.

    One that has no arguments, and a text that its class alone doesn't give, is stored with the text
    as its argument: pydantic's errors are such.
    """
    kind = type(exc)
    module, name = _NAME_BY_CLASS.get(kind, (str(kind.__module__), kind.__qualname__))
    return {"exc_type": name, "exc_message": _carried_args(exc), "exc_module": module}


def _is_pickled_well(exc: BaseException) -> bool:
    """Whether the object itself can be stored: it comes back as it is, and Celery has its class."""
    import pickle

    if type(exc).__module__.partition(".")[0] == "umbel":
        return False
    try:
        return type(pickle.loads(pickle.dumps(exc))) is type(exc)
    # Reducing and rebuilding are the code of the class, or of what it holds.
    except Exception:
        return False


def _carried_args(exc: BaseException) -> list[Any]:
    try:
        args = list(exc.args)
    # A class may override `args` with code of its own.
    except Exception:
        return [safe_repr(exc)]
    if not args:
        return _text_without_args(exc)
    return [arg if _fits(arg) else safe_repr(arg) for arg in args]


def _text_without_args(exc: BaseException) -> list[Any]:
    """The text, unless the class alone gives it to whoever reads this."""
    if type(exc).__str__ is BaseException.__str__:
        return []
    # Texts and constructors are the code of the class.
    try:
        text = str(exc)
    except Exception:
        return []
    try:
        return [text] if text and str(type(exc)()) != text else []
    except Exception:
        return [text]


def _fits(arg: object) -> bool:
    if type(arg) is str:
        return True
    try:
        # In as many containers as in the record, where it must not be too deep either.
        dumps({"result": {"exc_message": [arg]}})
    except EncodeError:
        return False
    return True


def decode_exception(stored: object, traceback: str | None = None) -> BaseException:
    """The exception that `stored` stands for. Never imports a module.

    A class that isn't loaded here is replaced by a new one of its name. An exception whose
    constructor refuses the stored arguments is restored without calling it, with a note that
    holds them and `traceback`. SecurityError if the name is of something else than an
    exception class; DecodeError if `stored` isn't of that shape.
    """
    name, module, args = _parts(stored)
    kind = _find_class(module, name)
    try:
        exc = kind(*args)
        # A constructor that composes its message from its arguments would do so twice.
        _set_args(exc, args)
        return exc
    # Constructors are the user's code and may raise anything.
    except Exception as error:
        reason = safe_repr(error, 200)
    return _without_constructor(kind, args, reason, traceback)


def _parts(stored: object) -> tuple[str, str | None, tuple[Any, ...]]:
    if not isinstance(stored, dict) or not isinstance(stored.get("exc_type"), str):
        raise DecodeError(
            "a stored exception is an object with exc_type, exc_message and exc_module; "
            f"got {safe_repr(stored, 200)}"
        )
    module, message = stored.get("exc_module"), stored.get("exc_message", ())
    if module is not None and not isinstance(module, str):
        raise DecodeError(f"exc_module of a stored exception is {safe_repr(module, 80)}, not text")
    args = tuple(message) if isinstance(message, (list, tuple)) else (message,)
    if (module, stored["exc_type"]) == _CELERYS_WRAPPER and len(args) == 4:
        # What Celery's worker can't pickle it stores in this: module, name, arguments, text.
        return _parts({"exc_module": args[0], "exc_type": args[1], "exc_message": args[2]})
    return stored["exc_type"], module, args


def _find_class(module: str | None, name: str) -> type[BaseException]:
    # celery.exceptions also offers what it imports from the other two.
    homes = _NAMES_IN_CELERY if module == "celery.exceptions" else (module or "",)
    for home in homes:
        known = _CLASS_BY_NAME.get((home, name))
        if known is not None:
            return known
    found: object = sys.modules.get(module or "")
    for part in name.split("."):
        # Static: a module's or a metaclass's __getattr__ could import, and is not asked.
        found = None if found is None else inspect.getattr_static(found, part, None)
    if found is None:
        return _new_class(name[:256])
    if isinstance(found, type) and issubclass(found, BaseException):
        return found
    raise SecurityError(f"the stored exception {module}.{name} is not an exception class here")


@lru_cache(maxsize=256)
def _new_class(name: str) -> type[BaseException]:
    try:
        return type(name, (Exception,), {"__module__": exceptions.__name__})
    except ValueError as exc:  # NUL or a lone surrogate
        raise DecodeError(f"a stored exception of type {name!r}, which is no name") from exc


def _without_constructor(
    kind: type[BaseException], args: tuple[Any, ...], reason: str, traceback: str | None
) -> BaseException:
    exc = _bare(kind)
    _set_args(exc, args)
    note = f"Restored without calling {kind.__qualname__}{safe_repr(args)}: {reason}"
    exc.add_note(note if traceback is None else f"{note}\nIt was raised here:\n{traceback}")
    return exc


def _bare(kind: type[BaseException]) -> BaseException:
    """An instance whose user-written ``__new__`` and ``__init__`` haven't run."""
    base: Any = next(base for base in kind.__mro__ if base.__module__ == builtins.__name__)
    try:
        exc: BaseException = base.__new__(kind)
    except TypeError:  # exception groups refuse to be made without their parts
        exc = _new_class(kind.__qualname__)()
    return exc


def _set_args(exc: BaseException, args: tuple[Any, ...]) -> None:
    # Past a class's own `args`, which may compute or refuse; also fails for what isn't one.
    BaseException.__dict__["args"].__set__(exc, args)


def format_traceback(exc: BaseException) -> str:
    """The traceback as Python prints it, beginning at the task's own code."""
    try:
        return "".join(tracebacks.format_exception(type(exc), exc, _skip_worker(exc)))
    # The classes in the chain are the user's, with attributes of their own making.
    except Exception as error:
        return f"{type(exc).__qualname__}: its traceback can't be formatted: {safe_repr(error)}\n"


def _skip_worker(exc: BaseException) -> TracebackType | None:
    trace = exc.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_WORKER_FOLDER):
        trace = trace.tb_next
    return trace
