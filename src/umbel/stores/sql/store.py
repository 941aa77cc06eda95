"""The store: an engine, and each operation as one transaction."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Connection,
    Engine,
    MetaData,
    RowMapping,
    Table,
    and_,
    bindparam,
    delete,
    exc,
    insert,
    inspect,
    or_,
    select,
    text,
    update,
)

from umbel.arguments import is_unicode
from umbel.clock import SYSTEM, Clock
from umbel.exceptions import BackendStoreError, ImproperlyConfigured, StoreUnavailable
from umbel.formats import JSON_RESULTS, ResultFormat
from umbel.message import Result
from umbel.polling import Pauses, poll
from umbel.states import SUCCESS
from umbel.stores.sql import tables
from umbel.stores.sql.engine import SqlOptions, first_line, make_engine
from umbel.stores.sql.rows import Row, meta_of, row_of

logger = logging.getLogger("umbel")

_ATTEMPTS: Final = 5
"""Each failed one means that another writer stored one of our ids meanwhile."""
_STEP: Final = 1000
"""Rows that one statement deletes or asks for, so that nobody waits long for locks."""


class SqlStore:
    """States and values by task id. `url` is SQLAlchemy's."""

    def __init__(
        self,
        url: str,
        options: SqlOptions | None = None,
        *,
        form: ResultFormat = JSON_RESULTS,
        clock: Clock = SYSTEM,
    ) -> None:
        self._form = form
        self._options = options or SqlOptions()
        self._clock = clock
        self._engine = make_engine(url, self._options)
        self._pauses = Pauses()
        self._is_set_up = False
        self._largest: int | None = None
        metadata = MetaData()
        names, schemas = self._options.names, self._options.schemas
        self._table = tables.task_table(
            metadata,
            tables.name_of(names, "task", tables.TASK_TABLE),
            tables.schema_of(schemas, "task"),
        )
        self._group_table = tables.group_table(
            metadata,
            tables.name_of(names, "group", tables.GROUP_TABLE),
            tables.schema_of(schemas, "group"),
        )
        self._columns = frozenset(self._table.c.keys())

    @property
    def location(self) -> str:
        return f"db:{self._engine.url.render_as_string(hide_password=True)}"

    @property
    def engine(self) -> Engine:
        """For tests and tools that look at its statements."""
        return self._engine

    def open(self) -> None:
        self._pauses.open()
        try:
            self._need_tables()
        except StoreUnavailable as error:
            # Whoever stores or reads asks again; a worker starts, and keeps what it has to store.
            logger.warning("%s It is used as soon as it can be.", error)
        except BackendStoreError as error:
            self.close()
            raise ImproperlyConfigured(f"result_backend: {error}") from error
        except ImproperlyConfigured:
            self.close()
            raise

    def close(self) -> None:
        self._pauses.close()
        self._engine.dispose()

    def put(self, results: Sequence[Result]) -> None:
        self._need_tables()
        fresh = _last_words(results)
        rows = {result.task_id: self._row(result) for result in fresh}
        for _ in range(_ATTEMPTS):
            with self._translated(), contextlib.suppress(exc.IntegrityError):
                with self._writing() as connection:
                    self._put(connection, rows)
                return
        raise StoreUnavailable(
            f"The result store {self.location} refused the same rows {_ATTEMPTS} times as "
            "duplicates."
        )

    def get(self, task_ids: Sequence[str]) -> list[Result | None]:
        self._need_tables()
        with self._translated(), self._engine.connect() as connection:
            found = {row["task_id"]: row for row in self._rows(connection, task_ids)}
        return [self._record(found.get(task_id)) for task_id in task_ids]

    def wait(self, task_ids: Sequence[str], timeout: float) -> None:
        poll(self.get, task_ids, timeout, self._pauses)

    def interrupt(self) -> None:
        self._pauses.interrupt()

    def forget(self, task_ids: Sequence[str]) -> None:
        self._need_tables()
        with self._translated(), self._writing() as connection:
            for some in _in_steps(task_ids):
                connection.execute(delete(self._table).where(self._table.c.task_id.in_(some)))

    def prune(self, keep: int | None = None) -> int:
        self._need_tables()
        c = self._table.c
        old = select(c.id).where(self._is_expired()).limit(_STEP)
        pruned = self._delete(old)
        if keep is None:
            return pruned
        newest_first = (
            select(c.id).where(c.status == SUCCESS).order_by(c.date_done.desc(), c.id.desc())
        )
        return pruned + self._delete(newest_first.offset(keep).limit(_STEP))

    # Statements

    def _put(self, connection: Connection, rows: Mapping[str, Row]) -> None:
        """A SUCCESS stays: the condition is part of the UPDATE, so it holds whoever else writes."""
        c = self._table.c
        known: set[str] = set()
        for some in _in_steps(rows):
            known.update(connection.scalars(select(c.task_id).where(c.task_id.in_(some))))
        if fresh := [row for task_id, row in rows.items() if task_id not in known]:
            connection.execute(insert(self._table), fresh)
        if known:
            changes: dict[str, BindParameter[Any]] = {
                name: bindparam(f"new_{name}") for name in self._columns - {"id", "task_id"}
            }
            statement = (
                update(self._table)
                .where(c.task_id == bindparam("which"))
                .where(or_(c.status.is_(None), c.status != SUCCESS, self._is_expired()))
                .values(changes)
            )
            connection.execute(
                statement,
                [
                    {"which": task_id, **{f"new_{k}": v for k, v in rows[task_id].items()}}
                    for task_id in sorted(known)
                ],
            )

    def _rows(self, connection: Connection, task_ids: Sequence[str]) -> Iterator[RowMapping]:
        columns = [self._table.c[name] for name in self._columns]
        for some in _in_steps(task_ids):
            statement = select(*columns).where(self._table.c.task_id.in_(some))
            yield from connection.execute(statement).mappings()

    def _delete(self, which: Any) -> int:
        """What `which` selects, step by step; how many."""
        deleted = 0
        while True:
            with self._translated(), self._writing() as connection:
                ids = connection.scalars(which).all()
                if ids:
                    connection.execute(delete(self._table).where(self._table.c.id.in_(ids)))
            deleted += len(ids)
            if len(ids) < _STEP:
                return deleted

    def _is_expired(self) -> ColumnElement[bool]:
        """By its own expiry; a row without one, which Celery wrote, by when the task ended."""
        c, now = self._table.c, self._clock.wall()
        own = "expires_at" in self._columns
        conditions = [c.expires_at <= now] if own else []
        if self._options.expires is not None:
            before = self._naive(now - self._options.expires)
            ended = c.date_done < before
            conditions.append(and_(c.expires_at.is_(None), ended) if own else ended)
        return or_(*conditions) if conditions else c.id.is_(None)

    # Rows

    def _row(self, result: Result) -> Row:
        columns = row_of(result.meta, self._form, self._options.zone)
        row = {"task_id": result.task_id, **columns}
        row["expires_at"] = result.expires_at
        if self._largest is not None and (size := _size(row)) > self._largest:
            raise BackendStoreError(
                f"the result of task {result.task_id} has {size} bytes, and the database server's "
                f"max_allowed_packet is {self._largest}. Return less, or raise it",
                state=result.state,
                task_id=result.task_id,
            )
        return {name: value for name, value in row.items() if name in self._columns}

    def _record(self, row: RowMapping | None) -> Result | None:
        if row is None:
            return None
        expires_at = self._expiry(row)
        if expires_at is not None and expires_at <= self._clock.wall():
            return None
        meta = meta_of(row, self._form, self._options.zone)
        return Result(row["task_id"], row["status"], meta, expires_at)

    def _expiry(self, row: RowMapping) -> float | None:
        own: float | None = row.get("expires_at")
        done, expires = row["date_done"], self._options.expires
        if own is not None or done is None or expires is None:
            return own
        ended: float = done.replace(tzinfo=self._options.zone).timestamp()
        return ended + expires

    def _naive(self, at: float) -> datetime:
        return datetime.fromtimestamp(at, self._options.zone).replace(tzinfo=None)

    # Setting up

    def _need_tables(self) -> None:
        if not self._is_set_up:
            self._set_up()

    def _set_up(self) -> None:
        with self._translated():
            if self._options.create_tables:
                self._create_tables()
            with self._engine.connect() as connection:
                self._columns = _columns_in(connection, self._table)
                if self._engine.dialect.name in ("mysql", "mariadb"):
                    largest = connection.execute(text("SELECT @@max_allowed_packet")).scalar()
                    # Packed into one statement with others; what a row needs beside its bytes.
                    self._largest = int(largest or 0) - 65_536
        self._is_set_up = True

    def _create_tables(self) -> None:
        for table in (self._table, self._group_table):
            try:
                table.metadata.create_all(self._engine, tables=[table])
            except exc.DBAPIError:
                # Another process may have been quicker; if not, the error comes again.
                table.metadata.create_all(self._engine, tables=[table])

    # Transactions

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Connection]:
        with self._engine.begin() as connection:
            if self._engine.dialect.name == "sqlite":
                # A reader that becomes a writer would fail at once where another writes.
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            yield connection

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except exc.IntegrityError:
            raise
        except (exc.DataError, exc.ProgrammingError, exc.NotSupportedError) as error:
            raise BackendStoreError(
                f"the database {self.location} refuses it: {first_line(error)}"
            ) from error
        except (exc.DBAPIError, exc.TimeoutError) as error:
            raise StoreUnavailable(
                f"The result store {self.location} can't be used now: {first_line(error)}."
            ) from error


def _columns_in(connection: Connection, table: Table) -> frozenset[str]:
    """The columns that are really there: an older Celery's table has fewer."""
    try:
        columns = inspect(connection).get_columns(table.name, table.schema)
    except exc.NoSuchTableError as error:
        raise ImproperlyConfigured(
            f"the table {table.fullname!r} isn't there, and database_create_tables_at_setup is "
            "off; create it, or turn that on"
        ) from error
    return frozenset({column["name"] for column in columns} & set(table.c.keys()))


def _last_words(results: Iterable[Result]) -> Iterable[Result]:
    """One record per id: the last of a batch, unless an earlier one is a SUCCESS. By id, so that
    two writers lock rows in the same order."""
    last: dict[str, Result] = {}
    for result in results:
        if result.task_id not in last or last[result.task_id].state != SUCCESS:
            last[result.task_id] = result
    return [last[task_id] for task_id in sorted(last)]


def _in_steps(task_ids: Iterable[str]) -> Iterator[list[str]]:
    # No row has an id that isn't Unicode, and the databases' clients refuse to ask for one.
    ids = [each for each in dict.fromkeys(task_ids) if is_unicode(each)]
    return (ids[start : start + _STEP] for start in range(0, len(ids), _STEP))


def _size(row: Row) -> int:
    return sum(len(value) for value in row.values() if isinstance(value, (bytes, str)))
