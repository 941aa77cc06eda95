"""Chains whose steps run alternately in Celery and in Umbel, callbacks, and headers of groups."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
from tests.interop.conftest import Fleet, Pair
from tests.interop.sides import CELERIES, UMBEL
from tests.worker.harness import until

from umbel.message import Message

Form = tuple[str, list[object], dict[str, Any]]


def form(task: str, *args: object, **options: object) -> Form:
    """What `fleet/caller.py` makes a signature of."""
    return task, list(args), {"immutable": options.pop("immutable", False), "options": options}


def test_a_chain_runs_alternately_in_both(pair: Pair) -> None:
    ours, theirs = pair.client.side, pair.queue
    steps = [form("add", 1, 2, queue=theirs), form("add", 10, queue=ours)]
    steps += [form("add", 100, queue=theirs), form("see", queue=ours)]
    ids = pair.client.ask("send_chain", steps=steps, headers={"x-tenant": "t"})
    seen = pair.client.get(ids[3])
    assert (seen["args"], seen["who"]) == ([113], ours)
    assert (seen["root_id"], seen["parent_id"], seen["id"]) == (ids[0], ids[2], ids[3])
    assert [pair.client.get(each) for each in ids[:3]] == [3, 13, 113]
    assert [pair.place.notes(id=each)[0].who for each in ids] == [theirs, ours, theirs, ours]
    assert all(len(pair.place.notes(id=each)) == 1 for each in ids)
    assert pair.client.ask("about", id=ids[0])["children"] == [ids[1]]


def test_a_step_that_fails_fails_those_behind_it(pair: Pair) -> None:
    ours, theirs = pair.client.side, pair.queue
    steps = [
        form("add", 1, 2, queue=ours),
        form("fail", "Plain", queue=theirs, immutable=True),
        form("add", queue=ours),
        form("add", queue=theirs),
    ]
    ids = pair.client.ask("send_chain", steps=steps)
    for each in ids[1:]:
        told = pair.client.failure(each)
        assert (told["raised"], told["state"]) == (["proj", "Plain", "p", "[1]"], "FAILURE")
    assert pair.place.notes(id=ids[2]) == pair.place.notes(id=ids[3]) == []


def test_a_retry_inside_a_chain_takes_the_rest_along(pair: Pair) -> None:
    ours, theirs = pair.client.side, pair.queue
    steps = [form("flaky", 2, [ours, theirs], queue=theirs), form("ran", queue=ours)]
    ids = pair.client.ask("send_chain", steps=steps)
    pair.client.get(ids[1])
    assert [note.who for note in pair.place.notes(id=ids[0])] == [theirs, ours, theirs]
    assert len(pair.place.notes(id=ids[1])) == 1


def test_callbacks_and_errbacks_of_the_other(pair: Pair) -> None:
    ours, theirs = pair.client.side, pair.queue
    tag = uuid.uuid4().hex
    link = form("ran", tag, queue=ours, immutable=True)
    sent = pair.client.send("add", 2, 3, queue=theirs, link=link)
    (note,) = pair.place.noted(what="ran", tag=tag, who=ours)
    assert pair.client.get(sent) == 5
    assert pair.client.ask("about", id=sent)["children"] == [note.id]

    sent = pair.client.send("fail", "KeyError", queue=theirs, link_error=form("heard", queue=ours))
    (note,) = pair.place.noted(what="heard", tag=sent)
    assert note.who == ours


@pytest.mark.parametrize("runner", CELERIES)
def test_parts_of_celerys_group_that_umbel_runs(fleet: Fleet, runner: str) -> None:
    """Headers come through, also those of a part that is tried again or goes on as a chain."""
    client = fleet.clients[runner]
    parts = [
        form("see", "plain", queue=UMBEL),
        form("flaky", 2, [runner, UMBEL], queue=UMBEL),
        form("see", "other", queue=runner),
    ]
    sent = client.ask("send_group", parts=parts)
    for index, (task_id, who) in enumerate(zip(sent["parts"], (UMBEL, UMBEL, runner), strict=True)):
        seen = client.get(task_id)
        assert (seen["who"], seen["group"], seen["group_index"]) == (who, sent["id"], index)
        assert seen["root_id"] == task_id


@pytest.mark.parametrize("sender", CELERIES)
def test_a_part_of_celerys_chord_is_a_dead_letter_that_still_has_it(
    fleet: Fleet, sender: str
) -> None:
    """Umbel doesn't run it halfway, and what it was sent with is kept."""
    parts, body = (
        [form("add", 1, queue=UMBEL), form("add", 2, queue=UMBEL)],
        form("see", queue=sender),
    )
    sent = fleet.clients[sender].ask("send_chord", parts=parts, body=body)
    app = fleet.place.app

    def letters() -> list[Message]:
        found = [each.message for each in app.dead.list(UMBEL) if "'chord'" in each.reason]
        messages = [each for each in found if isinstance(each, Message)]
        return [each for each in messages if sent.encode() in each.body]

    until(lambda: len(letters()) == 2, what="two dead letters")
    for index, message in enumerate(letters()):
        assert message.headers["group_index"] == index
        args, _, embed = json.loads(message.body)
        assert args == [index + 1]
        assert embed["chord"]["options"]["task_id"] == sent
