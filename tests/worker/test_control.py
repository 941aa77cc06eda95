"""Remote control of real workers: who answers, how soon, and what is obeyed."""

from __future__ import annotations

import json
import os
import signal
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.servers import Redis, redis
from tests.worker.harness import until
from tests.worker.living import Place

from umbel import mailbox, states
from umbel.asking import ask, tell
from umbel.mailbox import Audience, Command
from umbel.ports import Revocation
from umbel.serialization import JSON

__all__ = ["redis"]

PONG = {"ok": "pong"}
PROMISED = 0.2


@pytest.fixture(params=["sqlite", "redis"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    url = None
    if request.param == "redis":
        server: Redis = request.getfixturevalue("redis")
        server.flush()
        url = server.url
    made = Place(tmp_path, url=url)
    try:
        yield made
    finally:
        made.close()


def answered_in(place: Place, node: str) -> float:
    """Seconds until a ping is answered; the middle of several."""
    took = []
    for _ in range(9):
        began = time.monotonic()
        assert place.app.control.ping([node], timeout=20.0) == [{node: PONG}]
        took.append(time.monotonic() - began)
    return statistics.median(took)


def test_ping_is_answered_at_once_whatever_the_pool_does(place: Place) -> None:
    worker = place.worker("-c", "2", "-n", "w@here")
    place.send("hold", "held", 60.0)
    holder = place.noted("start", "held")[0].pid
    frozen = next(pid for pid in worker.pool(place.broker) if pid != holder)
    os.kill(frozen, signal.SIGSTOP)
    assert answered_in(place, "w@here") < PROMISED
    assert place.notes("end", "held") == []
    os.kill(frozen, signal.SIGCONT)
    os.kill(holder, signal.SIGKILL)


def test_a_solo_worker_answers_while_it_works(place: Place) -> None:
    place.worker("-P", "solo", "-n", "solo@here")
    place.send("gated", "busy", str(place.gate()))
    place.noted("start", "busy")
    assert answered_in(place, "solo@here") < PROMISED
    assert place.notes("end", "busy") == []
    place.gate().touch()


def test_those_that_are_meant_answer(place: Place) -> None:
    for name in ("one@here", "two@here"):
        place.worker("-c", "1", "-n", name)
    control = place.app.control
    both = {"one@here": PONG, "two@here": PONG}
    assert control.inspect(["one@here", "two@here"], timeout=20.0).ping() == both
    assert control.inspect(timeout=1.0).ping() == both
    assert control.ping(["two@here", "nobody@here"], timeout=0.5) == [{"two@here": PONG}]
    assert control.inspect("one@here", 20.0).ping() == {"one@here": PONG}
    assert control.inspect(pattern="t*", timeout=0.5).ping() == {"two@here": PONG}
    assert control.inspect(pattern="[no]+e@", matcher="pcre", timeout=0.5).ping() == {
        "one@here": PONG
    }
    assert control.inspect(["nobody@here"], timeout=0.1).ping() is None
    heard: list[Any] = []
    assert len(control.ping(timeout=20.0, limit=1, callback=heard.append)) == 1
    assert len(heard) == 1


def test_what_cant_be_obeyed_harms_nobody(place: Place) -> None:
    place.worker("-c", "1", "-n", "w@here")
    app = place.app
    channel = mailbox.channel("celery")
    for payload in (b"", b"no JSON", b"[]", b'{"body": "e30=", "headers": 1}'):
        app.broker.broadcast(channel, payload)
    for matcher in (Audience(pattern="*", matcher="no such"), Audience(None, "(", "pcre")):
        tell(app, Command("ping", audience=matcher))
    tell(app, Command("revoke", {"task_id": [1]}))
    assert ask(app, Command("dance"), timeout=5.0, limit=1) == [
        {"w@here": {"error": "KeyError('dance')"}}
    ]
    [answer] = ask(app, Command("revoke", {"task_id": {}}), timeout=5.0, limit=1)
    assert "expected a task id" in answer["w@here"]["error"]
    [answer] = ask(
        app, Command("revoke", {"task_id": "x", "signal": "SIGNO"}), timeout=5.0, limit=1
    )
    assert "there is no signal" in answer["w@here"]["error"]
    assert app.broker.revoked(0)[1] == ()
    assert app.control.ping(timeout=5.0, limit=1) == [{"w@here": PONG}]


def test_a_question_that_nobody_waits_for_is_left_aside(place: Place) -> None:
    place.worker("-c", "1", "-n", "w@here")
    listener = place.broker.listen("answers", "me")
    to = mailbox.ReplyTo("answers", "me")
    late = Command("ping", ticket="late", reply_to=to, expires_at=time.time() - 100.0)
    # Clocks differ by some seconds without anybody noticing.
    early = replace(late, ticket="skewed", expires_at=time.time() - 10.0)
    for command in (late, early):
        tell(place.app, command)
    heard = listener.get(20.0)
    assert heard is not None
    assert mailbox.read_answer(heard[1], "skewed", {JSON.content_type: JSON}) == {"w@here": PONG}
    assert listener.get(0.0) is None
    listener.close()


def test_what_a_stranger_revokes_is_written_to_the_log_once(place: Place) -> None:
    for name in ("one@here", "two@here"):
        place.worker("-c", "1", "-n", name)
    running = place.send("gated", "running", str(place.gate("never")))
    place.noted("start", "running")
    command = Command("revoke", {"task_id": running.id, "terminate": True, "signal": "SIGKILL"})
    answers = ask(place.app, replace(command, tag="t1"), timeout=20.0, limit=2)
    ended = {"ok": f"terminate: {running.id}"}
    assert {node for each in answers for node in each if each[node] == ended} == {
        "one@here",
        "two@here",
    }
    until(running.ready)
    assert running.state == states.REVOKED
    ask(place.app, Command("revoke", {"task_id": ["a", "b"]}), timeout=20.0, limit=2)
    assert place.broker.revoked(0)[1] == (
        Revocation(running.id, terminate=True, signal="SIGKILL"),
        Revocation("a"),
        Revocation("b"),
    )
    result = place.send("quick", "a", task_id="a")
    until(result.ready)
    assert result.state == states.REVOKED
    answers = ask(place.app, Command("hello", {"from_node": "c@here"}), timeout=20.0, limit=2)
    for each in answers:
        [answer] = each.values()
        assert answer["revoked"] == [running.id, "a", "b"]


def test_what_a_stranger_revokes_needs_no_free_process_to_end(place: Place) -> None:
    place.worker("-c", "1", "-n", "w@here")
    place.send("gated", "busy", str(place.gate()))
    place.noted("start", "busy")
    waiting = place.send("quick", "waiting")
    assert ask(place.app, Command("revoke", {"task_id": waiting.id}), timeout=20.0, limit=1)
    assert waiting.state == states.REVOKED
    place.gate().touch()
    until(lambda: place.broker.find(waiting.id) == (), what="its message is gone")
    assert place.notes("start", "waiting") == []


def test_what_is_revoked_when_a_worker_stops_is_in_the_log(place: Place) -> None:
    worker = place.worker("-c", "1", "-n", "w@here")
    for number in range(20):
        tell(place.app, Command("revoke", {"task_id": f"t{number}"}, tag=f"tag{number}"))
    assert place.app.control.ping(timeout=20.0, limit=1)
    assert worker.stop() == 0, worker.text
    assert len(place.broker.revoked(0)[1]) == 20


def test_our_own_revocations_are_logged_once(place: Place) -> None:
    place.worker("-c", "1", "-n", "w@here")
    place.app.revoke(["a", "b"], terminate=True)
    place.app.revoke(["c"])
    assert place.app.control.ping(timeout=20.0, limit=1)
    assert [entry.task_id for entry in place.broker.revoked(0)[1]] == ["a", "b", "c"]


@pytest.mark.setting("worker_enable_remote_control")
def test_remote_control_can_be_off(place: Place) -> None:
    settings = json.dumps({"worker_enable_remote_control": False})
    off = "tests.settings.settings_app"
    place.worker("-c", "1", "-n", "deaf@here", app=off, env={"SETTINGS": settings})
    place.worker("-c", "1", "-n", "w@here")
    assert place.app.control.inspect().ping() == {"w@here": PONG}
    ask(place.app, Command("revoke", {"task_id": "a"}), timeout=20.0, limit=1)
    # What Umbel revokes is in the log, and holds for all.
    tasks = [place.send("gated", f"t{n}", str(place.gate("never"))) for n in range(2)]
    place.noted("start", times=2)
    place.app.revoke([task.id for task in tasks], terminate=True)
    for task in tasks:
        until(task.ready)
        assert task.state == states.REVOKED


@pytest.mark.setting("control_exchange")
def test_fleets_of_different_exchanges_dont_hear_each_other(place: Place) -> None:
    app = "tests.settings.settings_app"
    settings = json.dumps({"control_exchange": "shop"})
    place.worker("-c", "1", "-n", "shop@here", app=app, env={"SETTINGS": settings})
    place.worker("-c", "1", "-n", "w@here")
    assert place.app.control.inspect(timeout=0.3).ping() == {"w@here": PONG}
    place.app.conf.control_exchange = "shop"
    assert place.app.control.inspect(timeout=0.3).ping() == {"shop@here": PONG}
