"""Dead letters: listed, shown, sent again as they were first sent, deleted."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.api.looking import only, store, waiting

from umbel import Umbel
from umbel.exceptions import InvalidTaskError
from umbel.message import Dead, How, Message, Posting, Settlement


def bury(app: Umbel, queue: str = "celery", reason: str = "it broke") -> str:
    """Take the next message and end it as a dead letter; its id."""
    owner = f"{queue}{len(app.dead.list())}"
    app.broker.enlist(owner, f"{owner}#1", b"")
    (delivery,) = app.broker.turn(f"{owner}#1", 1, queues=[queue], begin=1, limit=1).deliveries
    settlement = Settlement(delivery.lease, How.ACK, dead=Dead(reason, "Boom"))
    app.broker.turn(f"{owner}#1", 2, settlements=[settlement])
    assert isinstance(delivery.message, Message)
    return delivery.message.id


def test_they_are_listed_by_queue_and_found_by_id(app: Umbel) -> None:
    app.send_task("a")
    app.send_task("b", queue="slow")
    first, second = bury(app), bury(app, "slow", "it hung")
    assert [entry.id for entry in app.dead.list()] == [first, second]
    assert [entry.id for entry in app.dead.list("slow")] == [second]
    entry = app.dead.get(second)
    assert entry is not None
    assert (entry.id, entry.queue, entry.reason, entry.error) == (second, "slow", "it hung", "Boom")
    assert app.dead.get("x") is None


def test_it_is_sent_again_as_it_was_first_sent(app: Umbel, clock: Any) -> None:
    result = app.send_task(
        "a", (1,), countdown=5, expires=60, priority=7, headers={"t": 1}, queue="q"
    )
    clock.advance(6)
    original = only(app, "q")
    original.headers["retries"] = 3
    bury(app, "q")
    store(app, result.id, "FAILURE", KeyError("x"))
    assert result.state == "FAILURE"
    app.broker.revoke([])
    assert app.dead.requeue(result.id)
    message = only(app, "q")
    assert message.headers == {**original.headers, "retries": 0, "eta": None, "expires": None}
    assert (message.body, message.properties["priority"]) == (original.body, 7)
    assert "expiration" not in message.properties
    assert app.AsyncResult(result.id).state == "PENDING"
    assert app.dead.list() == []
    assert not app.dead.requeue(result.id)


def test_a_revoked_one_runs_again(app: Umbel) -> None:
    result = app.send_task("a")
    bury(app)
    result.revoke()
    assert app.dead.requeue(result.id)
    assert app.broker.revoked(0)[1] == ()


def test_deleting(app: Umbel) -> None:
    app.send_task("a")
    task_id = bury(app)
    assert app.dead.delete(task_id)
    assert not app.dead.delete(task_id)
    assert app.dead.list() == []
    assert waiting(app) == []


def test_nothing_is_forgotten_where_there_is_no_dead_letter(app: Umbel) -> None:
    store(app, "id", "FAILURE", KeyError("x"))
    assert not app.dead.requeue("id")
    assert app.AsyncResult("id").state == "FAILURE"


def test_one_without_an_id_cannot_be_sent_again(app: Umbel) -> None:
    app.send_task("a")
    message = only(app)
    app.broker.purge(["celery"])
    stranger = replace(message, headers={**message.headers, "id": None})
    app.broker.publish([Posting(stranger, routing_key="celery")] * 2)
    assert [bury(app), bury(app)] == ["", ""]
    with pytest.raises(InvalidTaskError, match="has no id"):
        app.dead.requeue("")
    assert len(app.dead.list()) == 2
    assert app.dead.delete("")
    assert app.dead.list() == []


def test_all_are_deleted_and_counted(app: Umbel) -> None:
    for queue in ("a", "b", "b"):
        app.send_task("x", queue=queue, task_id="same")
        bury(app, queue)
    assert app.dead.delete_all("b") == 2
    assert app.dead.delete_all() == 1


@pytest.mark.filterwarnings("ignore::umbel.exceptions.NoWorkerYet")
def test_an_unreadable_one_cannot_be_sent_again(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with Umbel("a", broker=f"sqlite:///{path}", set_as_current=False) as app:
        result = app.send_task("a")
        bury(app)
        # What a broken disk or a foreign hand leaves behind.
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("UPDATE dead SET blob = ?", (b"not json",))
        with pytest.raises(InvalidTaskError, match="umbel dead delete"):
            app.dead.requeue(result.id)
        assert len(app.dead.list()) == 1
