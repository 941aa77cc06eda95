"""``celery.utils.nodenames``: names of workers, which are ``name@host``."""

from __future__ import annotations

import socket

from umbel.compat.missing import guard
from umbel.queues import worker_direct

__all__ = ["gethostname", "nodename", "nodesplit", "worker_direct"]

gethostname = socket.gethostname


def nodename(name: str, hostname: str) -> str:
    return f"{name}@{hostname}"


def nodesplit(name: str) -> tuple[str | None, str]:
    """(name, host); the name is None where there is no ``@``."""
    before, at, after = name.partition("@")
    return (before, after) if at else (None, name)


guard(__name__)
