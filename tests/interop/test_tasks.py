"""What one of Celery and Umbel sends, the other runs, and the first reads the result."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from tests.interop.conftest import Fleet, Pair, busy
from tests.interop.sides import CELERIES, UMBEL
from tests.worker.harness import until


def test_arguments_and_headers_arrive(pair: Pair) -> None:
    sent = pair.client.send(
        "see", 1, [2, "é"], {"n": None}, kwargs={"k": 1.5}, queue=pair.queue, shadow="other",
        headers={"x-tenant": "t1", "x-list": [1, 2]}, time_limit=60, soft_time_limit=50,
    )  # fmt: skip
    seen = pair.client.get(sent)
    assert seen["who"] == pair.queue
    assert (seen["id"], seen["task"], seen["correlation_id"]) == (sent, "proj.see", sent)
    assert (seen["args"], seen["kwargs"]) == ([1, [2, "é"], {"n": None}], {"k": 1.5})
    assert seen["custom"] == {"x-tenant": "t1", "x-list": [1, 2]}
    assert (seen["timelimit"], seen["shadow"]) == ([60, 50], "other")
    assert (seen["root_id"], seen["parent_id"], seen["retries"]) == (sent, None, 0)
    assert (seen["eta"], seen["expires"], seen["group"], seen["chord"]) == (None, None, None, None)
    assert seen["argsrepr"] == "(1, [2, 'é'], {'n': None})"
    assert seen["kwargsrepr"] == "{'k': 1.5}"
    assert seen["info"]["routing_key"] == pair.queue


def test_a_task_sent_by_its_name(pair: Pair) -> None:
    sent = pair.client.ask("send_by_name", task="proj.add", args=[2, 3], queue=pair.queue)
    assert pair.client.get(sent) == 5


def test_what_is_due_later_runs_on_time(pair: Pair) -> None:
    began = time.time()
    eta = datetime.now(UTC) + timedelta(seconds=0.6)
    later = pair.client.send("see", queue=pair.queue, eta=eta.isoformat())
    soon = pair.client.send("see", queue=pair.queue, countdown=0.3)
    now = pair.client.send("see", queue=pair.queue)
    for sent in (later, soon, now):
        pair.client.get(sent)
    order = [note for note in pair.place.notes() if note.id in (later, soon, now)]
    assert [note.id for note in order] == [now, soon, later]
    assert order[1].at - began >= 0.3
    assert order[2].at >= eta.timestamp()


def test_what_has_expired_is_not_run(pair: Pair) -> None:
    sent = pair.client.send("add", 1, queue=pair.queue, expires=-1)
    told = pair.client.failure(sent)
    assert told["raised"][1:] == ["TaskRevokedError", "expired"]
    assert told["state"] == "REVOKED"
    assert not pair.place.notes(id=sent)


def test_what_expires_while_it_waits_is_not_run(pair: Pair) -> None:
    with busy(pair):
        expires = time.time() + 0.2
        sent = pair.client.send("add", 1, queue=pair.queue, expires=0.2)
        until(lambda: time.time() > expires + 0.1)
    told = pair.client.failure(sent)
    assert (told["raised"][2], told["state"]) == ("expired", "REVOKED")
    assert not pair.place.notes(id=sent)


def test_retries_keep_id_and_headers(pair: Pair) -> None:
    sent = pair.client.send(
        "flaky", 2, queue=pair.queue, headers={"x-tenant": "t2"}, shadow="other", priority=0
    )
    seen = pair.client.get(sent)
    assert [note.retries for note in pair.place.notes(id=sent)] == [0, 1, 2]
    assert (seen["id"], seen["root_id"], seen["retries"]) == (sent, sent, 2)
    assert (seen["custom"], seen["shadow"]) == ({"x-tenant": "t2"}, "other")


def test_retries_go_from_one_to_the_other(pair: Pair) -> None:
    """Each of them begins a try, waits, and leaves the next one to the other."""
    ours, theirs = pair.client.side, pair.queue
    sent = pair.client.send("flaky", 3, [ours, theirs], queue=theirs, headers={"x-tenant": "t3"})
    seen = pair.client.get(sent)
    notes = pair.place.notes(id=sent)
    assert [(n.who, n.retries) for n in notes] == [(theirs, 0), (ours, 1), (theirs, 2), (ours, 3)]
    assert (seen["custom"], seen["root_id"]) == ({"x-tenant": "t3"}, sent)
    # Each waits for its time, whoever keeps it until then.
    assert all(later.at - earlier.at >= 0.3 for earlier, later in pairwise(notes))


def test_no_retries_left(pair: Pair) -> None:
    sent = pair.client.send("hopeless", queue=pair.queue)
    told = pair.client.failure(sent)
    assert told["raised"] == ["proj", "Plain", "never"]
    assert [note.retries for note in pair.place.notes(id=sent)] == [0, 1]


def test_celerys_beat_goes_on_sending(fleet: Fleet) -> None:
    beat = ["-m", "celery", "-A", "proj", "beat", "--max-interval", "1"]
    schedule = ["--schedule", str(fleet.place.folder / "schedule"), "--pidfile", ""]
    process = fleet.place.process(CELERIES[-1], [*beat, *schedule])
    try:
        notes = fleet.place.noted(2, what="ran", tag="tick")
        assert {note.who for note in notes} == {UMBEL}
    finally:
        process.kill()
