"""The app of ``umbel demo``. Its workers are started as anybody's are::

umbel -A umbel.cli.demo_app -b sqlite:////tmp/demo.db worker
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import TypedDict
from urllib.request import ProxyHandler, build_opener

from umbel import Task, Umbel

PATIENCE = 0.5
"""Seconds that a download waits for the service to answer."""
KILLS = 3
"""How often the poison file may kill a process before it is a dead letter."""

app = Umbel("demo")


class Count(TypedDict):
    """What each task returns."""

    words: int
    retries: int


@app.task
def count_file(path: str) -> Count:
    """Count the words of a file."""
    return {"words": count_words_of(path), "retries": 0}


@app.task(bind=True, autoretry_for=(OSError,), retry_backoff=True, retry_backoff_max=2)
def count_download(self: Task[[str], Count], url: str) -> Count:
    """Count the words of a file that a service hands out, which isn't always there.

    A refusal (HTTP 503) and a timeout are both an OSError: tried again after up to 1 s, then 2 s.
    """
    direct = build_opener(ProxyHandler({}))  # the service is on this machine
    with direct.open(url, timeout=PATIENCE) as answer:
        return {"words": count_words(answer), "retries": self.request.retries}


@app.task(acks_late=True, reject_on_worker_lost=True, max_redeliveries=KILLS - 1)
def count_poison(path: str, poison: str) -> Count:
    """Count the words of a file, but kill this process as long as the file `poison` exists.

    Acknowledged late, it is delivered again after each death, until its redeliveries are used up.
    """
    if Path(poison).exists():
        os.kill(os.getpid(), signal.SIGKILL)
    return {"words": count_words_of(path), "retries": 0}


def count_words_of(path: str) -> int:
    """The words of a file."""
    with open(path, "rb") as file:
        return count_words(file)


def count_words(lines: Iterable[bytes]) -> int:
    """The words in some lines: what white space separates, whatever the encoding."""
    return sum(len(line.split()) for line in lines)
