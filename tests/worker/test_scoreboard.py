"""The scoreboard as a later run reads it, with one and with many lanes."""

from __future__ import annotations

from pathlib import Path

import pytest

from umbel.worker.scoreboard import OUTCOME_BYTES, Scoreboard, Word, dead_boards

TEXTS = ("id", "shop.pay", "(1,)", "{}")


def reopened(board: Scoreboard, folder: Path) -> Scoreboard:
    """As a new run finds it, once no process of the old one holds its lock."""
    board.close()
    (found,) = dead_boards("sqlite:/broker.db", folder)
    return found


@pytest.mark.parametrize("lanes", [1, 2, 7, 500])
def test_each_lane_and_place_is_read_again(tmp_path: Path, lanes: int) -> None:
    board = Scoreboard.create("run", 2, "sqlite:/broker.db", tmp_path, lanes=lanes)
    slot = board.slots[1]
    slot.words[Word.OWNER] = 7
    for lane in slot.lanes:
        slot.start(lane, 10 + lane, (f"id{lane}", *TEXTS[1:]), 5.0, 1.0, None)
    last = 10 + lanes - 1
    for place in slot.places:
        assert slot.decide(place, 1000 + place, bytes([place % 256]) * OUTCOME_BYTES)
    slot.end(lanes - 1, last)
    board = reopened(board, tmp_path)
    assert board.run == "run"
    empty, slot = board.slots
    assert (empty.number, empty.newest(), list(empty.decided()), empty.running_leases()) == (
        0, 0, [], [],
    )  # fmt: skip
    assert slot.number == 7
    assert slot.newest() == last
    assert slot.running_leases() == [*range(10, last)]
    assert [each.task_id for each in slot.running()] == [f"id{lane}" for lane in range(lanes - 1)]
    assert {(each.started_at, each.soft_at, each.hard_at) for each in slot.running()} <= {
        (5.0, 6.0, None)
    }
    assert slot.has_free_lane()
    assert slot.lane_of(last) is None
    assert slot.lane_of(10) == (0 if lanes > 1 else None)
    kept = dict(slot.decided())
    assert kept == {
        1000 + place: bytes([place % 256]) * OUTCOME_BYTES for place in range(lanes + 63)
    }
    slot.clear()
    assert (slot.number, slot.newest(), dict(slot.decided())) == (0, 0, {})
    board.close()


def test_texts_longer_than_their_room(tmp_path: Path) -> None:
    board = Scoreboard.create("run", 1, "sqlite:/broker.db", tmp_path, lanes=2)
    slot = board.slots[0]
    slot.start(0, 1, ("a", "b", "ü" * 10_000, "{}"), 1.0, None, None)
    slot.start(1, 2, TEXTS, 1.0, None, None)
    long, short = slot.running()
    assert long.task_id == "a"
    assert long.args.startswith("üü")
    assert (short.task_id, short.task, short.args, short.kwargs) == TEXTS
    board.close()


def test_an_outcome_too_large_for_its_place(tmp_path: Path) -> None:
    board = Scoreboard.create("run", 1, "sqlite:/broker.db", tmp_path)
    assert not board.slots[0].decide(0, 1, b"x" * (OUTCOME_BYTES + 1))
    assert dict(board.slots[0].decided()) == {}
    board.close()


def test_a_board_of_another_broker_or_a_living_run_is_left_alone(tmp_path: Path) -> None:
    board = Scoreboard.create("run", 1, "sqlite:/broker.db", tmp_path)
    assert list(dead_boards("sqlite:/broker.db", tmp_path)) == []
    board.close()
    assert list(dead_boards("sqlite:/other.db", tmp_path)) == []
    (tmp_path / "umbel-odd.board").write_bytes(b"what is this")
    assert [each.run for each in dead_boards("sqlite:/broker.db", tmp_path)] == ["run"]
