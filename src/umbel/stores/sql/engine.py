"""From the settings ``database_…`` to an engine."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from typing import Any, Final

from sqlalchemy import Engine, NullPool, create_engine, exc

from umbel.exceptions import ImproperlyConfigured

_POOL_ONLY: Final = frozenset({"pool_size", "max_overflow", "pool_timeout", "pool_use_lifo"})


@dataclass(frozen=True, slots=True)
class SqlOptions:
    """What the settings ``database_…`` say, and those that give rows a meaning.

    `zone` is that of `date_done`. `expires` is `result_expires`, for rows without an expiry of
    their own.
    """

    engine: Mapping[str, object] = field(default_factory=dict)
    engine_callback: object = None
    short_lived: bool = False
    schemas: Mapping[str, object] | None = None
    names: Mapping[str, object] | None = None
    create_tables: bool = True
    zone: tzinfo = UTC
    expires: float | None = None


def make_engine(url: str, options: SqlOptions) -> Engine:
    keywords: dict[str, Any] = dict(options.engine)
    if options.short_lived:
        keywords = {key: value for key, value in keywords.items() if key not in _POOL_ONLY}
        keywords["poolclass"] = NullPool
    try:
        engine = create_engine(url, **keywords)
    except (ModuleNotFoundError, exc.NoSuchModuleError) as error:
        raise ImproperlyConfigured(
            f"result_backend: the driver that the URL behind db+ names isn't installed ({error}); "
            "install it, for example psycopg for db+postgresql+psycopg://, PyMySQL for "
            "db+mysql+pymysql://"
        ) from error
    except exc.ArgumentError as error:
        raise ImproperlyConfigured(
            f"result_backend: SQLAlchemy can't read the URL behind db+ ({first_line(error)}); "
            "expected dialect://user:password@host/database, such as db+postgresql+psycopg://…"
        ) from error
    except TypeError as error:
        raise ImproperlyConfigured(
            f"database_engine_options {dict(options.engine)!r}: {error}"
        ) from error
    if engine.dialect.name == "sqlite" and engine.url.database in (None, "", ":memory:"):
        raise ImproperlyConfigured(
            "result_backend: SQLite in memory has a database for each connection; name a file, "
            "db+sqlite:///results.db, or use memory://"
        )
    callback = _callable(options.engine_callback)
    if callback is not None:
        callback(engine)
    return engine


def _callable(callback: object) -> Callable[[Engine], object] | None:
    """A function, or its dotted name."""
    if isinstance(callback, str):
        module, _, name = callback.replace(":", ".").rpartition(".")
        try:
            callback = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            raise ImproperlyConfigured(
                f"database_engine_callback {callback!r} can't be imported: {error}"
            ) from error
    if callback is None or callable(callback):
        return callback
    raise ImproperlyConfigured(
        f"database_engine_callback is {callback!r}; expected a function that takes the engine, or "
        "its dotted name"
    )


def first_line(error: BaseException) -> str:
    """What a driver says, without the statement and its values."""
    cause = getattr(error, "orig", None) or error
    return next(iter(str(cause).splitlines()), type(cause).__name__)
