"""Between a record and a row. The parts of the record are columns, each value serialized alone.

Nothing is compressed: SQL has no place for the mark. What is read is accepted or not by
`result_accept_content`, as everywhere.
"""

from __future__ import annotations

from datetime import datetime, tzinfo
from typing import Any, Final

from sqlalchemy import RowMapping

from umbel.exceptions import BackendGetMetaError, DecodeError, EncodeError, SecurityError
from umbel.formats import ResultFormat
from umbel.serialization import find_serializer
from umbel.serializers import Serializer
from umbel.stored import decode_meta, encode_meta

EXTENDED: Final = ("name", "args", "kwargs", "worker", "retries", "queue")
_SERIALIZED: Final = frozenset({"args", "kwargs"})
_PICKLE_MARK: Final = b"\x80"

Row = dict[str, Any]


def row_of(meta: bytes, form: ResultFormat, zone: tzinfo) -> Row:
    """The columns of a record, except its id and expiry."""
    record = decode_meta(meta, form)
    dumps = form.serializer.dumps
    extra = record.extra
    stamped = extra.get("stamped_headers")
    stamps = {name: extra.get(name) for name in stamped} if isinstance(stamped, list) else {}
    row: Row = {
        "status": record.status,
        "result": dumps(record.result),
        "date_done": _naive(record.date_done, zone),
        "traceback": record.traceback,
        "children": dumps(record.children) if record.children else None,
        "stamps": dumps({"stamped_headers": stamped, "stamps": stamps}) if stamps else None,
    }
    for key in EXTENDED:
        value = extra.get(key)
        row[key] = dumps(value) if key in _SERIALIZED and value is not None else value
    return row


def meta_of(row: RowMapping, form: ResultFormat, zone: tzinfo) -> bytes:
    """The record of a row, which may come from Celery and from a table with fewer columns.

    `BackendGetMetaError` for bytes that aren't what they should be.
    """
    task_id = row["task_id"]
    done = row.get("date_done")
    try:
        return encode_meta(
            task_id,
            row["status"],
            _value(row, "result", form),
            row.get("traceback"),
            _value(row, "children", form) or [],
            None if done is None else done.replace(tzinfo=zone).isoformat(),
            extended=_extended(row, form),
            form=form,
        )
    except EncodeError as error:
        raise BackendGetMetaError(
            f"the stored result of task {task_id} was pickled and holds what "
            f"{form.serializer.name} can't carry: {error}. Read it with "
            "result_serializer='pickle'",
            task_id=task_id,
        ) from error


def _extended(row: RowMapping, form: ResultFormat) -> Row:
    found: Row = {}
    if row.get("name") is not None:
        for key in EXTENDED:
            found[key] = _value(row, key, form) if key in _SERIALIZED else row.get(key)
    stamps = _value(row, "stamps", form)
    if isinstance(stamps, dict) and isinstance(stamps.get("stamps"), dict):
        found |= {"stamped_headers": stamps.get("stamped_headers"), **stamps["stamps"]}
    return found


def _value(row: RowMapping, column: str, form: ResultFormat) -> Any:
    """What the bytes of one column stand for. Celery before 5.7 pickled all results."""
    data = row.get(column)
    if data is None:
        return None
    data = data.encode() if isinstance(data, str) else bytes(data)
    where, task_id = f"{column} of the stored result of task {row['task_id']}", row["task_id"]
    try:
        return _read(data, form.serializer, form)
    except (DecodeError, SecurityError) as error:
        if not data.startswith(_PICKLE_MARK) or form.serializer.name == "pickle":
            raise BackendGetMetaError(f"{where} can't be read: {error}", task_id=task_id) from error
    try:
        return _read(data, find_serializer("pickle"), form)
    except (DecodeError, SecurityError) as error:
        raise BackendGetMetaError(
            f"{where} is pickled, as Celery before 5.7 wrote it: {error} (if you trust all that "
            "write to this database: a pickle may run any code)",
            task_id=task_id,
        ) from error


def _read(data: bytes, serializer: Serializer, form: ResultFormat) -> Any:
    if serializer.content_type not in form.accepted:
        raise DecodeError(
            f"{serializer.name} isn't accepted here; add {serializer.name!r} to "
            "result_accept_content"
        )
    return serializer.loads(data)


def _naive(text: str | None, zone: tzinfo) -> datetime | None:
    if text is None:
        return None
    try:
        done = datetime.fromisoformat(text)
    except ValueError:
        return None
    return done.astimezone(zone).replace(tzinfo=None) if done.tzinfo else done
