"""Chains and callbacks whose steps are encoded and compressed in ways of their own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from tests.worker.harness import until
from tests.worker.living import Place

from umbel import AsyncResult, chain
from umbel.canvas import Signature, signature

SETTINGS: dict[str, Any] = {
    "accept_content": ["json", "msgpack", "yaml", "pickle"],
    "result_serializer": "pickle",
    "result_accept_content": ["pickle"],
}
KINDS = {
    "json": "json:-",
    "msgpack": "msgpack:-",
    "yaml": "yaml:-",
    "pickle": "python-serialize:-",
}
VALUE = {"n": 1, "list": [1.5, None, "ü\u2028"], "empty": {}}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("mixed"))
    made.app.conf.update(SETTINGS)
    env = {"SETTINGS": json.dumps(SETTINGS), "C_FORCE_ROOT": "1"}
    try:
        made.worker("-c", "2", app="tests.worker.mixed_app", env=env)
        yield made
    finally:
        made.close()


def sig(place: Place, name: str, *args: object, **options: Any) -> Signature:
    return signature(name, args, options=options, app=place.app)


def get(place: Place, result: AsyncResult[Any]) -> Any:
    until(result.ready, what=place.logs())
    return result.get(timeout=5)


@pytest.mark.parametrize("order", list(permutations(KINDS)), ids="-".join)
def test_each_step_is_encoded_as_it_says(place: Place, order: tuple[str, ...]) -> None:
    """Every serializer carries the signatures of what comes after it, whatever that is."""
    steps = [sig(place, "passes", serializer=each) for each in order]
    result = chain(*steps).apply_async((VALUE,))
    assert get(place, result) == VALUE
    root = result.parent.parent.parent.id
    assert [note.what for note in place.notes(tag=root)] == [KINDS[each] for each in order]


def test_each_step_is_compressed_as_it_says(place: Place) -> None:
    kinds = [("json", "zlib"), ("msgpack", "zstd"), ("yaml", None), ("pickle", "bz2")]
    steps = [
        sig(place, "passes", serializer=serializer, compression=compression)
        for serializer, compression in kinds
    ]
    result = chain(*steps).apply_async((VALUE,))
    assert get(place, result) == VALUE
    assert [note.what for note in place.notes(tag=result.parent.parent.parent.id)] == [
        "json:application/x-gzip",
        "msgpack:application/zstd",
        "yaml:-",
        "python-serialize:application/x-bz2",
    ]


def test_what_json_has_no_word_for_goes_where_the_serializer_has_one(place: Place) -> None:
    """Bytes through msgpack, a set through pickle, from the return value to the next argument."""
    steps = [sig(place, "passes", serializer=each) for each in ("pickle", "pickle")]
    assert get(place, chain(*steps).apply_async(({1, 2},))) == {1, 2}
    steps = [sig(place, "passes", serializer=each) for each in ("msgpack", "msgpack", "yaml")]
    assert get(place, chain(*steps).apply_async((b"\xff\x00",))) == b"\xff\x00"


def test_what_the_next_step_cannot_carry_makes_its_task_a_failure(place: Place) -> None:
    steps = [sig(place, "passes", serializer="pickle"), sig(place, "passes", serializer="json")]
    result = chain(*steps).apply_async(({1, 2},))
    first = result.parent
    until(first.ready, what=place.logs())
    assert (first.state, type(first.result).__name__) == ("FAILURE", "EncodeError")
    until(result.ready, what=place.logs())
    assert (result.state, type(result.result).__name__) == ("FAILURE", "EncodeError")


def test_a_task_s_own_format_holds_for_what_follows_without_one(place: Place) -> None:
    """The step names nothing: its task does, in the worker; what comes then is the setting's."""
    steps = [sig(place, "passes"), sig(place, "as_bytes"), sig(place, "passes", serializer="yaml")]
    result = chain(*steps).apply_async(([1, 2, 255],))
    assert get(place, result) == b"\x01\x02\xff"
    kinds = [note.what for note in place.notes(tag=result.parent.parent.id)]
    assert kinds == ["json:-", "msgpack:application/zstd", "yaml:-"]


def test_callbacks_and_error_callbacks_have_formats_of_their_own(place: Place) -> None:
    link = sig(place, "passes", serializer="msgpack", compression="zlib", task_id="linked")
    link_error = sig(place, "passes", serializer="yaml", compression="zstd", task_id="told")
    first = sig(place, "passes", serializer="pickle").apply_async((1,), link=link)
    assert get(place, first) == 1
    assert get(place, AsyncResult("linked", app=place.app)) == 1
    failed = sig(place, "fails", serializer="yaml").apply_async((1,), link_error=link_error)
    assert get(place, AsyncResult("told", app=place.app)) == failed.id
    kinds = [note.what for note in place.notes() if note.tag in (first.id, failed.id)]
    assert kinds == [
        "python-serialize:-",
        "msgpack:application/x-gzip",
        "yaml:application/zstd",
    ]


def test_a_retry_keeps_its_format_and_what_follows(place: Place) -> None:
    steps = [
        sig(place, "fails_once", serializer="pickle", compression="zstd"),
        sig(place, "passes", serializer="msgpack"),
    ]
    result = chain(*steps).apply_async(([b"x"],))
    assert get(place, result) == [b"x"]
    assert [note.what for note in place.notes(tag=result.parent.id)] == ["msgpack:-"]


def test_receivers_may_change_a_retry_of_any_format(tmp_path: Path) -> None:
    """What they do to its arguments is encoded as the message was."""
    place = Place(tmp_path)
    place.app.conf.update(SETTINGS)
    env = {"SETTINGS": json.dumps(SETTINGS), "C_FORCE_ROOT": "1", "CHANGE_RETRIES": "1"}
    try:
        place.worker("-c", "1", app="tests.worker.mixed_app", env=env)
        for serializer, kind in KINDS.items():
            options = {"serializer": serializer, "compression": "zstd"}
            result = sig(place, "passes_changed", **options).apply_async(([1],))
            assert get(place, result) == [1, "changed"]
            assert [each.what for each in place.notes(tag=result.id)] == [
                f"{kind[:-1]}application/zstd"
            ]
    finally:
        place.close()


def test_a_step_that_is_not_accepted_is_a_dead_letter(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.app.conf.accept_content = ("json", "yaml")
    settings = json.dumps({"accept_content": ["json"]})
    try:
        place.worker("-c", "1", app="tests.worker.mixed_app", env={"SETTINGS": settings})
        result = chain(sig(place, "passes"), sig(place, "passes", serializer="yaml")).delay(1)
        letter: Any = until(lambda: place.app.dead.get(result.id), what=place.logs())
        assert "yaml" in letter.reason
        assert result.parent.state == "SUCCESS"
    finally:
        place.close()
