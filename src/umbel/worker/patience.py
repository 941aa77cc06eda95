"""Asking a broker or a result store that may be away for a while."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterator
from math import inf
from typing import Final, TypeVar

from umbel.exceptions import OperationalError
from umbel.settings import Settings

logger = logging.getLogger("umbel.worker")

ASK_AGAIN: Final = 0.2
_FIRST_PAUSE: Final = 0.2
_LONGEST_PAUSE: Final = 30.0
_NOTICED_WITHIN: Final = 2.0

T = TypeVar("T")


def pauses(conf: Settings) -> Iterator[float]:
    """The pauses after which a worker tries to reach its broker once more; see
    `broker_connection_max_retries`."""
    numbers = itertools.count()
    endless = (min(_FIRST_PAUSE * 2 ** min(number, 9), _LONGEST_PAUSE) for number in numbers)
    return itertools.islice(endless, conf.broker_connection_max_retries or None)


def longest_pause(lease_time: float) -> float:
    """Seconds between two tries of a process whose broker is away: well below half a lease, and so
    few that it consumes again within 5 s of the return, whatever the last try takes."""
    return min(lease_time / 4, _NOTICED_WITHIN)


def longest_outage(conf: Settings) -> float:
    """How many seconds without its broker a worker lives through."""
    if not conf.broker_connection_retry:
        return 0.0
    return sum(pauses(conf)) if conf.broker_connection_max_retries else inf


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
