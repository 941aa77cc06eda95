"""Asking a broker or a result store that may be away for a while."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final, TypeVar

from umbel.exceptions import OperationalError

logger = logging.getLogger("umbel.worker")

ASK_AGAIN: Final = 0.2

T = TypeVar("T")


def patiently(ask: Callable[[], T], *, until: Callable[[], bool] = lambda: False) -> T:
    """The answer of a broker or a store, which may be away for a while; no longer than `until`."""
    while True:
        try:
            return ask()
        except OperationalError as error:
            if until():
                raise
            logger.warning("%s Trying again in %.1f s.", error, ASK_AGAIN)
            time.sleep(ASK_AGAIN)
