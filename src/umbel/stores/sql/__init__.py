"""``db+…://`` as result store: Celery's tables, in whatever database SQLAlchemy reaches."""

from umbel.exceptions import ImproperlyConfigured

try:
    import sqlalchemy as _sqlalchemy
except ImportError as error:
    raise ImproperlyConfigured(
        "a result store db+… needs SQLAlchemy; install it: pip install 'umbel[sql]'"
    ) from error

from umbel.stores.sql.engine import SqlOptions
from umbel.stores.sql.store import SqlStore

__all__ = ["SqlOptions", "SqlStore"]

del _sqlalchemy
