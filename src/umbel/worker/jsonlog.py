"""Log lines as JSON objects, one per line: ``umbel worker --log-json``.

::

    {"time": "2026-01-31T12:00:00.123456Z", "level": "INFO", "logger": "shop",
     "message": "paid", "process": "ForkPoolWorker-1", "pid": 4711,
     "task_name": "shop.pay", "task_id": "7d1f…", "order": 7}

`time` is UTC as in RFC 3339. `task_name` and `task_id` are there where a task runs, `exception`
and `stack` where there is one: text with ``\\n`` between its lines. Everything else was given with
``extra=``; one that has a name from above gets ``_`` behind it. A line is ASCII only.
"""

from __future__ import annotations

import json
import logging
import math
from datetime import UTC, datetime
from typing import Any, Final

from umbel.current import get_current_task
from umbel.saferepr import encodable, safe_repr

_DEEPEST: Final = 6
_LONGEST_REPR: Final = 4096
_MOST_BITS: Final = 14_000
"""Python refuses to write integers of more than 4,300 digits."""
_OWN: Final = frozenset(
    {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", "processName"}
)
"""What every record has, `logging`'s own formatters included."""


class JsonFormatter(logging.Formatter):
    """Formats any record, whatever its message, arguments and extras are."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _instant(record.created),
            "level": record.levelname,
            "logger": record.name,
            "message": _message(record),
            "process": record.processName,
            "pid": record.process,
        }
        task = get_current_task()
        if task is not None and task.request.id is not None:
            line["task_name"] = task.name
            line["task_id"] = task.request.id
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = record.stack_info
        for name, value in vars(record).items():
            if name not in _OWN:
                line[_free(name, line)] = value
        return json.dumps({encodable(name): _plain(value) for name, value in line.items()})


def _instant(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="microseconds")[:-6] + "Z"


def _message(record: logging.LogRecord) -> str:
    try:
        message = record.getMessage()
    except Exception as error:  # arguments that don't fit the text: both are better than neither
        return f"{record.msg!r} with {safe_repr(record.args)}: {type(error).__name__}: {error}"
    exception = vars(record).get("exception")
    # A line in text shows below its message what is a field of its own here.
    return message.removesuffix(f"\n{exception}") if isinstance(exception, str) else message


def _free(name: str, taken: dict[str, Any]) -> str:
    while name in taken:
        name += "_"
    return name


def _plain(value: object, depth: int = 0) -> object:
    """`value` as JSON has it; its `repr` where JSON has nothing for it."""
    kind = type(value)
    if kind is str:
        return encodable(str(value))
    if value is None or kind is bool:
        return value
    if isinstance(value, int) and kind is int and value.bit_length() <= _MOST_BITS:
        return value
    if isinstance(value, float) and kind is float and math.isfinite(value):
        return value
    if depth < _DEEPEST:
        if isinstance(value, (list, tuple)) and kind in (list, tuple):
            return [_plain(each, depth + 1) for each in value]
        if isinstance(value, dict) and kind is dict and all(type(key) is str for key in value):
            return {encodable(key): _plain(each, depth + 1) for key, each in value.items()}
    return encodable(safe_repr(value, _LONGEST_REPR))
