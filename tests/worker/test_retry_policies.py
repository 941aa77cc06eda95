"""Retry policies end to end: a real worker, and when it ran what."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
from tests.worker.harness import until
from tests.worker.living import Place

from umbel import AsyncResult

SLOW = 5.0
"""Seconds more than its delay that a run may take to begin here."""


@pytest.fixture(scope="module")
def retrying(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    place = Place(tmp_path_factory.mktemp("retrying"))
    try:
        place.worker("-c", "1", app="tests.worker.retrying_app")
        yield place
    finally:
        place.close()


def delays(place: Place, name: str, *args: object) -> tuple[list[float], AsyncResult[object]]:
    """Send a task that fails in the end; the seconds between its runs, and its result."""
    before = len(place.notes(tag=name))
    result = place.send(name, *args)
    until(result.ready, what=place.logs())
    assert result.state == "FAILURE"
    notes = place.notes(tag=name)[before:]
    assert [each.what for each in notes] == [f"run:{n}" for n in range(len(notes))]
    starts = [each.at for each in notes]
    return [after - before for before, after in pairwise(starts)], result


def test_attempts_and_a_policy_for_each_class(retrying: Place) -> None:
    waits, _ = delays(retrying, "mapped", "ConnectionResetError")
    assert len(waits) == 2
    assert 0.05 <= waits[0] < SLOW
    assert 0.1 <= waits[1] < SLOW
    waits, _ = delays(retrying, "mapped", "FileNotFoundError")
    assert [0.3 <= wait < SLOW for wait in waits] == [True, True]
    assert delays(retrying, "mapped", "KeyError")[0] == []


def test_a_server_is_left_alone_as_long_as_it_asks(retrying: Place) -> None:
    (wait,) = delays(retrying, "told_to_wait", "0.4")[0]
    assert 0.4 <= wait < SLOW
    (wait,) = delays(retrying, "told_to_wait", "3600")[0]
    assert 0.5 <= wait < SLOW


def test_no_run_begins_after_the_time(retrying: Place) -> None:
    waits, result = delays(retrying, "in_a_hurry")
    assert 1 <= len(waits) <= 3  # 0.1, 0.2, 0.4 s; 0.8 more would be too late
    assert sum(waits) < 1.2 + SLOW
    assert retrying.app.dead.get(result.id) is not None


@pytest.mark.parametrize("by_hand", [False, True])
def test_what_will_never_work_is_a_dead_letter_at_once(retrying: Place, by_hand: bool) -> None:
    waits, result = delays(retrying, "permanent", by_hand)
    assert waits == []
    dead = retrying.app.dead.get(result.id)
    assert dead is not None
    assert dead.error == "KeyError"


def test_a_requeued_dead_letter_has_all_its_time_again(retrying: Place) -> None:
    _, result = delays(retrying, "in_a_hurry")
    before = len(retrying.notes(tag="in_a_hurry"))
    until(lambda: retrying.app.dead.get(result.id) is not None)
    assert retrying.app.dead.requeue(result.id)
    until(lambda: retrying.app.dead.get(result.id) is not None, what=retrying.logs())
    again = retrying.notes(tag="in_a_hurry")[before:]
    assert [each.what for each in again[:2]] == ["run:0", "run:1"]
