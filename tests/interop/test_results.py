"""One reads the results and errors that the other has stored."""

from __future__ import annotations

import pytest
from tests.interop.conftest import Fleet, Pair
from tests.interop.sides import CELERIES, UMBEL
from tests.worker.harness import until


def test_what_is_told_of_a_result(pair: Pair) -> None:
    sent = pair.client.send("add", "é", kwargs={"b": "ü"}, queue=pair.queue)
    assert pair.client.get(sent) == "éü"
    assert pair.client.ask("about", id=sent) == {
        "state": "SUCCESS",
        "info": "'éü'",
        "children": [],
        "name": "proj.add",
        "args": ["é"],
        "kwargs": {"b": "ü"},
        "worker": pair.worker.node,
        "retries": 0,
        "queue": pair.queue,
        "is_done": True,
    }


@pytest.mark.parametrize(
    ("kind", "raised"),
    [
        ("ValueError", ["builtins", "ValueError", "é", "2"]),
        ("KeyError", ["builtins", "KeyError", "k"]),
        ("Plain", ["proj", "Plain", "p", "[1]"]),
    ],
)
def test_an_exception_is_restored_as_its_class(pair: Pair, kind: str, raised: list[str]) -> None:
    sent = pair.client.send("fail", kind, queue=pair.queue)
    told = pair.client.failure(sent)
    assert (told["raised"], told["state"]) == (raised, "FAILURE")
    assert told["is_ours"] is (raised[0] == "proj")
    assert told["traceback"].startswith("Traceback (most recent call last):\n")
    assert "raise ERRORS[kind]" in told["traceback"]
    assert told["traceback"].rstrip().splitlines()[-1].split(":")[0].endswith(kind)


def test_an_exception_whose_constructor_refuses_its_arguments(pair: Pair) -> None:
    """To Celery it is an `Exception` that names it; to Umbel it is of its class."""
    told = pair.client.failure(pair.client.send("fail", "Refused", queue=pair.queue))
    if pair.client.side == UMBEL:
        assert (told["raised"], told["is_ours"]) == (["proj", "Refused", "no", "7"], True)
    else:
        module, name, text = told["raised"]
        assert (module, name) == ("builtins", "Exception")
        assert "Refused" in text
        assert "no" in text


def test_an_unknown_task_of_umbels_worker(fleet: Fleet) -> None:
    """Waits for a worker that knows it, and a client sees it waiting."""
    client = fleet.clients[CELERIES[-1]]
    sent = client.ask("send_by_name", task="proj.nowhere", queue=UMBEL)
    until(lambda: "proj.nowhere" in fleet.workers[UMBEL].text, what="the worker says so")
    assert client.ask("about", id=sent)["state"] == "PENDING"
    fleet.clients[UMBEL].ask("revoke", id=sent)
    assert client.failure(sent)["raised"][1:] == ["TaskRevokedError", "revoked"]


def test_children_of_a_task(pair: Pair) -> None:
    """A task of one sends to the other, and whoever asked finds its children."""
    sent = pair.client.send("parent", pair.client.side, queue=pair.queue)
    children = pair.client.get(sent)
    assert pair.client.ask("about", id=sent)["children"] == children
    assert [pair.client.get(child) for child in children] == [1, 2]
    (note,) = pair.place.notes(id=children[0])
    assert note.who == pair.client.side


def test_a_state_of_the_tasks_own(pair: Pair) -> None:
    gate = pair.place.gate()
    sent = pair.client.send("progress", str(gate), queue=pair.queue)
    until(lambda: pair.client.ask("about", id=sent)["state"] == "PROGRESS", what="it says so")
    assert pair.client.ask("about", id=sent)["info"] == "{'done': 1, 'of': 2}"
    gate.touch()
    assert pair.client.get(sent) == 2


def test_a_success_is_spared_by_who_comes_late(pair: Pair) -> None:
    sent = pair.client.send("add", 1, queue=pair.queue)
    assert pair.client.get(sent) == 1
    pair.client.ask("fail_late", id=sent)
    assert pair.fleet.clients[pair.queue].get(sent) == 1


def test_one_waits_while_the_other_stores(pair: Pair) -> None:
    gate = pair.place.gate()
    sent = pair.client.send("gated", str(gate), queue=pair.queue)
    pair.place.noted(what="gated", id=sent)
    pair.client.begin("get", id=sent)
    gate.touch()
    assert pair.client.answer() == {"value": None, "state": "SUCCESS"}


def test_what_one_forgets_is_gone_to_the_other(pair: Pair) -> None:
    sent = pair.client.send("add", 1, queue=pair.queue)
    assert pair.client.get(sent) == 1
    other = pair.fleet.clients[pair.queue]
    assert other.ask("about", id=sent)["state"] == "SUCCESS"
    other.ask("forget", id=sent)
    assert pair.fleet.clients[pair.client.side].ask("about", id=sent)["state"] == "PENDING"
