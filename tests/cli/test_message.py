"""``umbel message``: what is stored, decoded; whatever the body is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.helpers import Ended, bury

from umbel import Umbel
from umbel.message import Message, Posting

Run = Callable[..., Ended]

pytestmark = pytest.mark.filterwarnings("ignore::umbel.exceptions.NoWorkerYet")


@pytest.fixture
def accepting(folder: Path) -> None:
    """The app of the commands accepts every format."""
    with (folder / "proj.py").open("a") as file:
        file.write('app.conf.accept_content = ("json", "msgpack", "yaml", "pickle")\n')


def shown(umbel: Run, task_id: str) -> dict[str, object]:
    ended = umbel("-A", "proj", "message", task_id, "--json")
    assert ended.code == 0, ended.err
    [found] = json.loads(ended.out)
    return dict(found)


def test_a_person_reads_place_headers_and_arguments(umbel: Run, app: Umbel) -> None:
    sent = app.send_task("proj.add", [1, "two"], {"three": [3]}, headers={"tenant": "acme"})
    ended = umbel("-A", "proj", "message", sent.id)
    assert ended.code == 0
    lines = [line.strip() for line in ended.out.splitlines()]
    assert lines[0] == "place  waits in queue celery, 0 before it"
    assert lines[1].startswith("stored  {")
    assert '"tenant": "acme"' in ended.out
    assert '"two"' in lines
    assert '"three": [' in lines


@pytest.mark.usefixtures("accepting")
@pytest.mark.parametrize("serializer", ["json", "msgpack", "yaml"])
@pytest.mark.parametrize("compression", [None, "zlib"])
def test_bodies_are_read(umbel: Run, app: Umbel, serializer: str, compression: str | None) -> None:
    sent = app.send_task("t", ["é"], {"n": 1}, serializer=serializer, compression=compression)
    found = shown(umbel, sent.id)
    assert (found["args"], found["kwargs"]) == (["é"], {"n": 1})


@pytest.mark.usefixtures("accepting")
def test_a_pickled_body_is_never_run(umbel: Run, app: Umbel) -> None:
    sent = app.send_task("t", [1], serializer="pickle")
    found = shown(umbel, sent.id)
    assert found["unreadable"] == "the body: it is pickled"
    assert str(found["body"]).startswith("base64:")
    assert "args" not in found


def test_what_is_no_body_is_shown_with_the_reason(umbel: Run, app: Umbel) -> None:
    app.broker.declare(["celery"])
    message = Message(b"\xff\x00", "utf-8", "application/json", {"id": "x", "task": "t"}, {})
    app.broker.publish([Posting(message, "celery")])
    found = shown(umbel, "x")
    assert found["body"] == "base64:/wA="
    assert str(found["unreadable"]).startswith("the body: ")


def test_copies_of_one_id_are_all_shown(umbel: Run, app: Umbel) -> None:
    for _ in range(2):
        app.send_task("t", task_id="twice")
    bury(app, "twice")
    places = [
        each["place"] for each in json.loads(umbel("-A", "proj", "message", "twice", "--json").out)
    ]
    assert places == [
        "waits in queue celery, 0 before it",
        "is dead, from queue celery: ValueError: no good",
    ]


def test_where_there_is_none_it_says_where_the_task_is(umbel: Run, app: Umbel) -> None:
    app.send_task("t")
    ended = umbel("-A", "proj", "message", "nobody")
    assert ended.code == 1
    assert ended.sentence.startswith("umbel: there is no message of task 'nobody' at this broker: ")
    assert "never seen" in ended.sentence


def test_an_empty_id_is_wrong_use(umbel: Run, folder: Path) -> None:
    assert umbel("-A", "proj", "message", "").code == 64
