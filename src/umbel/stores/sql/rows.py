"""Between a record and a row. The parts of the record are columns, each value serialized alone."""

from __future__ import annotations

import pickle
from collections.abc import Collection
from datetime import datetime, tzinfo
from typing import Any, Final

from sqlalchemy import RowMapping

from umbel.exceptions import BackendGetMetaError, DecodeError, EncodeError
from umbel.serialization import dumps, loads
from umbel.states import EXCEPTION_STATES
from umbel.stored import decode_meta, encode_exception, encode_meta

EXTENDED: Final = ("name", "args", "kwargs", "worker", "retries", "queue")
_SERIALIZED: Final = frozenset({"args", "kwargs"})
_PICKLE_MARK: Final = b"\x80"

Row = dict[str, Any]


def row_of(meta: bytes, zone: tzinfo) -> Row:
    """The columns of a record, except its id and expiry."""
    record = decode_meta(meta)
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


def meta_of(row: RowMapping, zone: tzinfo, accept: Collection[str]) -> bytes:
    """The record of a row, which may come from Celery and from a table with fewer columns.

    `BackendGetMetaError` for bytes that aren't what they should be.
    """
    task_id, status = row["task_id"], row["status"]
    done = row.get("date_done")
    children = _value(row, "children", accept)
    try:
        return encode_meta(
            task_id,
            status,
            _result(row, accept),
            row.get("traceback"),
            [] if children is None else children,
            None if done is None else done.replace(tzinfo=zone).isoformat(),
            extended=_extended(row, accept),
        )
    except EncodeError as error:
        raise BackendGetMetaError(
            f"the stored result of task {task_id} was pickled and holds what JSON can't carry: "
            f"{error}",
            task_id=task_id,
        ) from error


def _extended(row: RowMapping, accept: Collection[str]) -> Row:
    found: Row = {}
    if row.get("name") is not None:
        for key in EXTENDED:
            found[key] = _value(row, key, accept) if key in _SERIALIZED else row.get(key)
    stamps = _value(row, "stamps", accept)
    if isinstance(stamps, dict) and isinstance(stamps.get("stamps"), dict):
        found |= {"stamped_headers": stamps.get("stamped_headers"), **stamps["stamps"]}
    return found


def _result(row: RowMapping, accept: Collection[str]) -> Any:
    value = _value(row, "result", accept)
    if row["status"] in EXCEPTION_STATES and isinstance(value, BaseException):
        return encode_exception(value)
    return value


def _value(row: RowMapping, column: str, accept: Collection[str]) -> Any:
    """What the bytes of one column stand for. Celery before 5.7 pickled all results."""
    data = row.get(column)
    if data is None:
        return None
    data = data.encode() if isinstance(data, str) else bytes(data)
    try:
        return loads(data)
    except DecodeError as error:
        where = f"{column} of the stored result of task {row['task_id']}"
        if not data.startswith(_PICKLE_MARK):
            raise BackendGetMetaError(
                f"{where} can't be read: {error}", task_id=row["task_id"]
            ) from error
    if "pickle" not in accept:
        raise BackendGetMetaError(
            f"{where} is pickled, as Celery before 5.7 wrote it, and pickle isn't accepted: "
            "reading it may run any code. If you trust all that write to this database, add "
            "'pickle' to result_accept_content",
            task_id=row["task_id"],
        )
    try:
        return pickle.loads(data)
    # Unpickling runs whatever the bytes say.
    except Exception as error:
        raise BackendGetMetaError(
            f"{where} can't be unpickled: {error!r}", task_id=row["task_id"]
        ) from error


def _naive(text: str | None, zone: tzinfo) -> datetime | None:
    if text is None:
        return None
    try:
        done = datetime.fromisoformat(text)
    except ValueError:
        return None
    return done.astimezone(zone).replace(tzinfo=None) if done.tzinfo else done
