"""A result store that is asked again while it is away, as `result_backend_always_retry` says."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from umbel.exceptions import StoreUnavailable
from umbel.message import Result
from umbel.ports import ResultStore
from umbel.settings import Settings

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Patience:
    """How often a store that is away is asked again, and after which pauses, in seconds."""

    retries: float
    base: float
    longest: float

    @classmethod
    def of(cls, conf: Settings, url: str) -> Patience:
        """As the settings say; a database is asked three times more where they say nothing."""
        always, retries = conf.result_backend_always_retry, conf.result_backend_max_retries
        if url.startswith("db+"):
            always = always or not conf.value_set_for("result_backend_always_retry")
            retries = retries if conf.value_set_for("result_backend_max_retries") else 3
        return cls(
            retries if always else 0,
            conf.result_backend_base_sleep_between_retries_ms / 1000,
            conf.result_backend_max_sleep_between_retries_ms / 1000,
        )

    def pause(self, number: int) -> float:
        """Before the attempt of this number, from 0: doubled each time, and cut at random."""
        import random  # few need it, and it loads much

        return random.uniform(0, min(self.longest, self.base * 2.0 ** min(number, 64)))


class PatientStore:
    """`store`, asked again by `patience` where it is away; only while `holds` says so."""

    def __init__(
        self, store: ResultStore, patience: Patience, holds: Callable[[], bool] = lambda: True
    ) -> None:
        self.store = store
        self._patience = patience
        self._holds = holds

    @property
    def location(self) -> str:
        return self.store.location

    def open(self) -> None:
        self._insist(self.store.open)

    def close(self) -> None:
        self.store.close()

    def put(self, results: Sequence[Result]) -> None:
        self._insist(lambda: self.store.put(results))

    def get(self, task_ids: Sequence[str]) -> list[Result | None]:
        return self._insist(lambda: self.store.get(task_ids))

    def wait(self, task_ids: Sequence[str], timeout: float) -> Sequence[Result | None] | None:
        return self._insist(lambda: self.store.wait(task_ids, timeout))

    def interrupt(self) -> None:
        self.store.interrupt()

    def forget(self, task_ids: Sequence[str]) -> None:
        self._insist(lambda: self.store.forget(task_ids))

    def prune(self, keep: int | None = None) -> int:
        return self._insist(lambda: self.store.prune(keep))

    def _insist(self, ask: Callable[[], T]) -> T:
        number = 0
        while True:
            try:
                return ask()
            except StoreUnavailable:
                if number >= self._patience.retries or not self._holds():
                    raise
                time.sleep(self._patience.pause(number))
                number += 1
