"""``celery.utils.iso8601``."""

from datetime import datetime

from umbel.compat.missing import guard

__all__ = ["parse_iso8601"]

parse_iso8601 = datetime.fromisoformat

guard(__name__)
