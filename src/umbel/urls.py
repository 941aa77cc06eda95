"""The URLs of broker and result store that the settings name, by these or by older names.

A broker's is `broker_url`, or what the older settings for its parts make of one; a store's is
`result_backend`, or what `database_url` or `cache_backend` make of one. `umbel.drivers` has a table
of what can be written there.
"""

from __future__ import annotations

from typing import Final

from umbel.exceptions import ImproperlyConfigured
from umbel.settings import Settings

DEFAULT_URL: Final = "sqlite:///umbel.db"
DISABLED: Final = ("disabled://", "disabled")
EMBEDDED: Final = ("memory", "sqlite")
"""Schemes of brokers that need no server."""
CACHE_IN_MEMORY: Final = "cache+memory"


def broker_url(conf: Settings) -> str | None:
    """The broker's URL; None where no setting names one."""
    return conf.broker_url or url_of_parts(conf)


def url_of_parts(conf: Settings) -> str | None:
    """The broker's URL from `broker_transport`, `broker_host` and the like; None without them.

    As in Celery a `broker_host` may be a whole URL, and a kind that isn't named is AMQP.
    """
    scheme, host, path = conf.broker_transport, conf.broker_host, conf.broker_vhost
    user, password, port = conf.broker_user, conf.broker_password, conf.broker_port
    if host and "://" in host:
        return host
    if all(part in (None, "") for part in (scheme, host, path, user, password, port)):
        return None
    from urllib.parse import quote

    scheme = scheme or "amqp"
    login = quote(user or "", safe="") + (f":{quote(password, safe='')}" if password else "")
    place = host or ("" if scheme in EMBEDDED else "localhost")
    return "".join(
        (
            f"{scheme}://",
            f"{login}@" if login else "",
            place,
            f":{port}" if port not in (None, "") else "",
            f"/{path}" if path else "",
        )
    )


def store_url(conf: Settings) -> str | None:
    """The result store's URL; None where no setting names one. Raises `ImproperlyConfigured`."""
    named, database, cache = conf.result_backend, conf.database_url, conf.cache_backend
    if named == "database" and not database:
        raise ImproperlyConfigured(
            "result_backend is 'database' and database_url isn't set; write the database's URL as "
            "result_backend, with db+ before it, such as db+postgresql+psycopg://host/name"
        )
    if named == "cache" and not cache:
        raise ImproperlyConfigured(
            "result_backend is 'cache' and cache_backend isn't set; write the cache's URL as "
            "result_backend, such as cache+memcached://host:11211/"
        )
    if database and named in (None, "database"):
        return database if database.startswith("db+") else f"db+{database}"
    if cache and named in (None, "cache"):
        url = cache if "://" in cache else f"{cache}://"
        return url if url.startswith("cache+") else f"cache+{url}"
    return named


def needs_a_server(url: str) -> bool:
    """Whether a broker's URL is one of a server, which may not be there yet."""
    return url.partition("://")[0] not in EMBEDDED


def lives_in_one_process(url: str) -> bool:
    """Whether what lies behind a broker's or a result store's URL ends with this process."""
    return url.partition("://")[0] in ("memory", CACHE_IN_MEMORY)
