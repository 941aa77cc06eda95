"""Celery's two tables, column by column, so that either side may create them.

``celery_taskmeta``, one row a task::

    id         integer, from the sequence task_id_sequence where the database has sequences
    task_id    up to 155 characters, unique
    status     up to 50 characters
    result     bytes: the value, or what stands for the exception
    date_done  when the task ended, naive, in the app's zone; NULL while it hasn't; indexed
    traceback  text
    children   bytes; NULL for none          (Celery 5.7)
    name, args, kwargs, worker, retries, queue    NULL without result_extended
    stamps     bytes                         (Celery 5.7)
    expires_at unix seconds; NULL is never; indexed (Umbel; Celery takes no notice)

``celery_tasksetmeta`` holds the groups that Celery saves.

Differences from what Celery creates, none of which it notices: a result or traceback may be larger
than 64 KiB, and times have microseconds, on MySQL and MariaDB too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sqlalchemy import (
    Column,
    DateTime,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Sequence,
    String,
    Table,
    Text,
)
from sqlalchemy.dialects import mysql

TASK_TABLE: Final = "celery_taskmeta"
GROUP_TABLE: Final = "celery_tasksetmeta"

_BYTES: Final = LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")
_TEXT: Final = Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
_TIME: Final = DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")


def task_table(metadata: MetaData, name: str, schema: str | None) -> Table:
    """The table of the tasks' results."""
    table = Table(
        name,
        metadata,
        Column("id", Integer, Sequence("task_id_sequence", schema=schema), primary_key=True),
        Column("task_id", String(155), unique=True),
        Column("status", String(50)),
        Column("result", _BYTES),
        Column("date_done", _TIME),
        Column("traceback", _TEXT),
        Column("children", _BYTES),
        Column("name", String(155)),
        Column("args", _BYTES),
        Column("kwargs", _BYTES),
        Column("worker", String(155)),
        Column("retries", Integer),
        Column("queue", String(155)),
        Column("stamps", _BYTES),
        Column("expires_at", Double),
        schema=schema,
        sqlite_autoincrement=True,
    )
    Index(f"ix_{name}_date_done", table.c.date_done)
    Index(f"ix_{name}_expires_at", table.c.expires_at)
    return table


def group_table(metadata: MetaData, name: str, schema: str | None) -> Table:
    """The table of Celery's saved groups."""
    table = Table(
        name,
        metadata,
        Column("id", Integer, Sequence("taskset_id_sequence", schema=schema), primary_key=True),
        Column("taskset_id", String(155), unique=True),
        Column("result", _BYTES),
        Column("date_done", _TIME),
        schema=schema,
        sqlite_autoincrement=True,
    )
    Index(f"ix_{name}_date_done", table.c.date_done)
    return table


def name_of(names: Mapping[str, object] | None, kind: str, default: str) -> str:
    """What `database_table_names` says of a table (``task``, ``group``)."""
    named = (names or {}).get(kind)
    return named if isinstance(named, str) else default


def schema_of(schemas: Mapping[str, object] | None, kind: str) -> str | None:
    """What `database_table_schemas` says of it."""
    named = (schemas or {}).get(kind)
    return named if isinstance(named, str) else None
