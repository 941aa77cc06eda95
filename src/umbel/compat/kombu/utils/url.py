"""``kombu.utils.url``: broker URLs taken to pieces."""

from __future__ import annotations

from functools import partial
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from umbel.compat.missing import guard

__all__ = [
    "as_url",
    "maybe_sanitize_url",
    "parse_url",
    "safequote",
    "sanitize_url",
    "url_to_parts",
    "urlparts",
]

safequote: Final = partial(quote, safe="")
"""Makes a password, or a path with slashes, fit into a URL."""


class urlparts(NamedTuple):
    """The pieces of a URL, with %-escapes undone; `path` without its first slash."""

    scheme: str
    hostname: str | None
    port: int | None
    username: str | None
    password: str | None
    path: str | None
    query: dict[str, str]


def url_to_parts(url: str) -> urlparts:
    """Take a URL to pieces."""
    parts = urlsplit(url)
    return urlparts(
        parts.scheme,
        _unquoted(parts.hostname),
        parts.port,
        _unquoted(parts.username),
        _unquoted(parts.password),
        unquote(parts.path.removeprefix("/")) or None,
        dict(parse_qsl(parts.query)),
    )


def parse_url(url: str) -> dict[str, Any]:
    """The pieces under the names that Kombu's connections have for them."""
    parts = url_to_parts(url)
    return {
        "transport": parts.scheme,
        "hostname": parts.hostname,
        "port": parts.port,
        "userid": parts.username,
        "password": parts.password,
        "virtual_host": parts.path,
        **parts.query,
    }


def as_url(
    scheme: str,
    host: str | None = None,
    port: int | None = None,
    user: str | None = None,
    password: str | None = None,
    path: str | None = None,
    query: str | None = None,
    sanitize: bool = False,
    mask: str | None = "**",
) -> str:
    """A URL of its pieces, of which all but `path` are escaped.

    With `sanitize` it has `mask` in place of the password.
    """
    secret = (mask or "") if sanitize else safequote(password or "")
    who = safequote(user or "") + (f":{secret}" if password and secret else "")
    where = safequote(host or "") + (f":{port}" if port else "")
    tail = f"?{query}" if query else ""
    return f"{scheme}://{who + '@' if who else ''}{where}/{path or ''}{tail}"


def sanitize_url(url: str, mask: str = "**") -> str:
    """The URL with `mask` in place of its password, to be shown."""
    password = urlsplit(url).password
    return url if not password else url.replace(f":{password}@", f":{mask}@", 1)


def maybe_sanitize_url(url: Any, mask: str = "**") -> Any:
    """`sanitize_url` of a URL; anything else as it is."""
    return sanitize_url(url, mask) if isinstance(url, str) and "://" in url else url


def _unquoted(text: str | None) -> str | None:
    return unquote(text) if text else None


guard(__name__)
