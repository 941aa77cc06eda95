"""``celery.security``."""

from __future__ import annotations

from typing import Any

from umbel.app import Umbel
from umbel.compat.missing import guard
from umbel.current import get_current_app

__all__ = ["setup_security"]


def setup_security(
    allowed_serializers: Any = None,
    key: str | None = None,
    key_password: str | bytes | None = None,
    cert: str | None = None,
    store: str | None = None,
    digest: str | None = None,
    serializer: str = "json",
    app: Umbel | None = None,
) -> None:
    """Sign what an app sends, the current one unless given; see `Umbel.setup_security`."""
    (app or get_current_app()).setup_security(
        allowed_serializers=allowed_serializers,
        key=key,
        key_password=key_password,
        cert=cert,
        store=store,
        digest=digest,
        serializer=serializer,
    )


guard(__name__)
