"""A result store that is away: how often it is asked again by whoever reads or stores."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.worker.harness import until

from umbel import Umbel
from umbel.exceptions import StoreUnavailable
from umbel.message import Result
from umbel.patientstore import Patience, PatientStore
from umbel.request import Context, running
from umbel.settings import Settings
from umbel.states import SUCCESS
from umbel.stored import encode_meta
from umbel.stores.memory import MemoryStore

RESULT = Result("an-id", SUCCESS, encode_meta("an-id", SUCCESS, 3), None)


class Away(MemoryStore):
    """Can't be reached for the first `times` calls."""

    def __init__(self, times: int) -> None:
        super().__init__("away")
        self.left = times
        self.calls = 0

    def put(self, results: Sequence[Result]) -> None:
        self._fail()
        super().put(results)

    def get(self, task_ids: Sequence[str]) -> list[Result | None]:
        self._fail()
        return super().get(task_ids)

    def forget(self, task_ids: Sequence[str]) -> None:
        self._fail()
        super().forget(task_ids)

    def _fail(self) -> None:
        self.calls += 1
        self.left -= 1
        if self.left >= 0:
            raise StoreUnavailable("away")


def settings(**values: object) -> Settings:
    conf = Settings()
    conf.update(values)
    return conf


def patient(store: Away, url: str = "memory://", **values: object) -> PatientStore:
    conf = settings(result_backend_base_sleep_between_retries_ms=0, **values)
    return PatientStore(store, Patience.of(conf, url))


@pytest.mark.setting("result_backend_always_retry")
def test_each_operation_is_tried_until_the_store_is_back() -> None:
    store = Away(5)
    keeper = patient(store, result_backend_always_retry=True)
    keeper.put([RESULT])
    store.left = 5
    assert keeper.get(["an-id"]) == [RESULT]
    store.left = 5
    keeper.forget(["an-id"])
    assert store.calls == 18
    with pytest.raises(StoreUnavailable):
        patient(Away(1)).get(["an-id"])


@pytest.mark.setting("result_backend_always_retry")
def test_a_reader_waits_for_a_store_that_is_away(tmp_path: Path) -> None:
    folder = tmp_path / "later"
    app = Umbel(
        "proj",
        broker="memory://retries",
        backend=f"sqlite:///{folder}/results.db",
        set_as_current=False,
        result_backend_max_sleep_between_retries_ms=20,
    )
    with app:
        with pytest.raises(StoreUnavailable, match="directory"):
            app.store  # noqa: B018
        app.conf.result_backend_always_retry = True
        found: list[Any] = []
        reader = threading.Thread(target=lambda: found.append(app.store), daemon=True)
        reader.start()
        folder.mkdir()
        until(lambda: found, 10, "the store is there")
        reader.join()


@pytest.mark.setting("result_backend_max_retries")
@pytest.mark.parametrize("retries", [0, 1, 4])
def test_it_is_given_up_after_so_many_retries(retries: int) -> None:
    store = Away(100)
    keeper = patient(store, result_backend_always_retry=True, result_backend_max_retries=retries)
    with pytest.raises(StoreUnavailable):
        keeper.get(["an-id"])
    assert store.calls == 1 + retries


@pytest.mark.setting("result_backend_always_retry", "result_backend_max_retries")
@pytest.mark.parametrize(
    ("values", "retries"),
    [
        ({}, 3),
        ({"result_backend_always_retry": False}, 0),
        ({"result_backend_always_retry": True}, 3),
        ({"result_backend_max_retries": 9}, 9),
        ({"result_backend_max_retries": float("inf")}, float("inf")),
    ],
)
def test_a_database_is_asked_three_times_more(values: dict[str, Any], retries: float) -> None:
    assert Patience.of(settings(**values), "db+sqlite:///a.db").retries == retries


@pytest.mark.setting(
    "result_backend_base_sleep_between_retries_ms", "result_backend_max_sleep_between_retries_ms"
)
@pytest.mark.parametrize(
    ("base", "longest", "bounds"),
    [(10, 10000, [0.01, 0.02, 0.04, 0.08, 10.0]), (500, 900, [0.5, 0.9, 0.9, 0.9, 0.9])],
)
def test_the_pauses_double_up_to_the_longest(base: int, longest: int, bounds: list[float]) -> None:
    conf = settings(
        result_backend_base_sleep_between_retries_ms=base,
        result_backend_max_sleep_between_retries_ms=longest,
    )
    patience = Patience.of(conf, "memory://")
    for number, bound in zip((0, 1, 2, 3, 10**6), bounds, strict=True):
        drawn = [patience.pause(number) for _ in range(300)]
        assert 0 <= min(drawn) < bound / 2 < max(drawn) <= bound


def test_a_worker_itself_is_not_held_up_but_its_tasks_wait(tmp_path: Path) -> None:
    """A worker repeats in its own way, which ends when it has to stop."""
    app = Umbel(
        "proj",
        broker="memory://in-worker",
        backend=f"sqlite:///{tmp_path}/none/results.db",
        set_as_current=False,
        result_backend_always_retry=True,
        result_backend_max_retries=2,
        result_backend_base_sleep_between_retries_ms=0,
    )
    tries: list[object] = []
    app.connections.in_worker = True
    request = Context()
    request.called_directly = False

    class Nowhere(Away):
        def open(self) -> None:
            tries.append(self)
            raise StoreUnavailable("away")

    store = PatientStore(
        Nowhere(0), Patience.of(app.conf, "memory://"), app.connections._waits_for_stores
    )
    with pytest.raises(StoreUnavailable):
        store.open()
    assert len(tries) == 1
    with running(None, request), pytest.raises(StoreUnavailable):
        store.open()
    assert len(tries) == 4
