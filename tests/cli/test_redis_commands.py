"""The commands that look at a broker, on Redis: each state, exchanges, a prefix, a dead server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.cli.helpers import Ended
from tests.servers import Redis, redis_client

from umbel import Umbel
from umbel.exchanges import Binding
from umbel.message import Dead, How, Lost, Settlement
from umbel.message import Loss as Cause

Run = Callable[..., Ended]

STATES = ("held", "running", "dead", "unknown", "set aside", "ready", "delayed")
"""As they are made: what is ready, or awaits burial, would be handed out before the next."""


@dataclass
class Site:
    """An app in a file whose broker is a Redis server, and a client of that broker."""

    app: Umbel
    prefix: str
    ids: dict[str, str] = field(default_factory=dict)

    def fill(self) -> None:
        """One message in each of `STATES`, taken by a run that is called ``umbel@here``."""
        broker = self.app.broker
        broker.enlist("run", None, b'{"hostname": "umbel@here"}')
        for number, state in enumerate(STATES):
            wait = 3600 if state == "delayed" else None
            sent = self.app.send_task("some.task", [state], countdown=wait)
            self.ids[state] = sent.id
            if state in ("ready", "delayed"):
                continue
            owner = f"run#{number}"
            broker.enlist("run", owner, b'{"hostname": "umbel@here"}')
            [taken] = broker.turn(owner, 1, queues=["celery"], limit=1).deliveries
            self._carry(state, owner, taken.lease)

    def _carry(self, state: str, owner: str, lease: int) -> None:
        broker = self.app.broker
        match state:
            case "running":
                broker.turn(owner, 2, begin=lease)
            case "set aside":
                broker.turn(owner, 2, begin=lease)
                broker.abandon(owner, running={lease: Lost(Cause.PROCESS, "signal 9")})
            case "dead":
                dead = Dead("ValueError: no good", "ValueError")
                broker.turn(owner, 2, settlements=[Settlement(lease, How.ACK, dead=dead)])
            case "unknown":
                unknown = Settlement(lease, How.RELEASE, delay=60.0, unknown=True)
                broker.turn(owner, 2, settlements=[unknown])
            case _:
                assert state == "held"


@pytest.fixture(params=["", "tenant:"], ids=["bare", "prefix"])
def site(request: pytest.FixtureRequest, folder: Path, redis: Redis) -> Iterator[Site]:
    redis.flush()
    options = {"global_keyprefix": request.param} if request.param else {}
    (folder / "proj.py").write_text(
        f'from umbel import Umbel\n\napp = Umbel("proj", broker={redis.url!r})\n'
        f"app.conf.broker_transport_options = {options!r}\n"
    )
    with Umbel("client", broker=redis.url, set_as_current=False) as client:
        client.conf.broker_transport_options = options
        client.broker.declare(["celery"])
        yield Site(client, request.param)


def data(ended: Ended) -> Any:
    assert ended.code == 0, ended.err
    return json.loads(ended.out)


def test_queues_counts_each_state(umbel: Run, site: Site, redis: Redis) -> None:
    site.fill()
    [queue] = data(umbel("-A", "proj", "queues", "--json"))
    assert queue == {
        "name": "celery", "ready": 1, "delayed": 2, "leased": 2, "set_aside": 1, "dead": 1,
        "bindings": [],
    }  # fmt: skip
    row = umbel("-A", "proj", "queues").out.splitlines()[1]
    assert row.split() == ["celery", "1", "2", "2", "1", "1"]
    keys = redis_client(redis.port).keys("*")
    assert keys
    assert all(key.startswith(site.prefix) for key in keys), keys


def test_queues_shows_exchanges(umbel: Run, site: Site) -> None:
    site.app.broker.declare(
        ["celery"],
        [Binding("sport", "news", "topic", "sport.#"), Binding("everyone", "all", "fanout", "")],
    )
    lines = umbel("-A", "proj", "queues").out.splitlines()
    shown = [line.split() for line in lines]
    assert ["news", "topic", "sport.#", "sport"] in shown
    assert ["all", "fanout", "everyone"] in shown
    queues = {each["name"]: each for each in data(umbel("-A", "proj", "queues", "--json"))}
    assert queues["sport"]["bindings"] == [
        {"exchange": "news", "type": "topic", "routing_key": "sport.#", "arguments": {}}
    ]
    assert queues["everyone"]["bindings"][0]["type"] == "fanout"


def test_why_says_each_state(umbel: Run, site: Site) -> None:
    site.fill()
    said = {
        "ready": "waiting at place 1 of queue 'celery'",
        "delayed": "delayed until ",
        "held": "held by worker umbel@here",
        "running": "running in worker umbel@here",
        "set aside": "was running when it was lost (process: signal 9)",
        "dead": "from queue 'celery': ValueError: no good",
        "unknown": "waits in queue 'celery' for a worker that knows its task's name",
    }
    for state in STATES:
        assert said[state] in umbel("-A", "proj", "why", site.ids[state]).out, state
    assert data(umbel("-A", "proj", "why", site.ids["dead"], "--json"))["case"] == "dead"
    assert "never seen" in umbel("-A", "proj", "why", "nobody").out


def test_why_names_each_copy_of_a_topic(umbel: Run, site: Site) -> None:
    bindings = [Binding(queue, "news", "topic", "sport.#") for queue in ("a", "b")]
    site.app.broker.declare([], bindings)
    sent = site.app.send_task(
        "some.task", exchange="news", exchange_type="topic", routing_key="sport.x"
    )
    out = umbel("-A", "proj", "why", sent.id).out
    assert "copies in several queues" in out
    assert "queue 'a'" in out
    assert "queue 'b'" in out


def test_purge_leaves_what_does_not_wait(umbel: Run, site: Site) -> None:
    site.fill()
    site.app.send_task("some.task", queue="other")
    ended = umbel("-A", "proj", "purge", "-f", "-Q", "celery")
    assert ended.out == "3 messages deleted from celery\n"
    queues = {each["name"]: each for each in data(umbel("-A", "proj", "queues", "--json"))}
    celery = queues["celery"]
    assert [celery[each] for each in ("ready", "delayed")] == [0, 0]
    assert [celery[each] for each in ("leased", "set_aside", "dead")] == [2, 1, 1]
    assert queues["other"]["ready"] == 1
    assert umbel("-A", "proj", "purge", "-f", "-Q", "celry").code == 1


def test_dead_letters_are_shown_sent_again_and_deleted(umbel: Run, site: Site) -> None:
    site.fill()
    dead = site.ids["dead"]
    [listed] = data(umbel("-A", "proj", "dead", "list", "--json"))
    assert listed == data(umbel("-A", "proj", "dead", "show", dead, "--json"))
    assert (listed["id"], listed["body"][0]) == (dead, ["dead"])
    assert umbel("-A", "proj", "dead", "requeue", dead).out == "1 dead letter requeued\n"
    assert "waiting at place 2" in umbel("-A", "proj", "why", dead).out
    assert umbel("-A", "proj", "dead", "show", dead).code == 1
    assert umbel("-A", "proj", "dead", "delete", "--all", "-f").out == "0 dead letters deleted\n"


def test_status_names_those_alive(umbel: Run, site: Site) -> None:
    ended = umbel("-A", "proj", "status", "-t", "0.05")
    assert ended.code == 69
    assert "no worker is online at this broker" in ended.sentence
    site.app.broker.enlist("run", None, b'{"hostname": "umbel@here"}')
    assert data(umbel("-A", "proj", "status", "--json", "-t", "0.05")) == {"umbel@here": "OK"}


@pytest.mark.parametrize(
    "command",
    [["queues"], ["purge", "-f"], ["why", "x"], ["status"], ["dead", "list"]],
    ids=" ".join,
)
def test_a_server_that_is_away_is_one_sentence(umbel: Run, command: list[str]) -> None:
    ended = umbel("-b", "redis://127.0.0.1:1", *command)
    assert (ended.code, ended.out) == (69, "")
    assert "redis:127.0.0.1:1 can't be reached" in ended.sentence


def test_message_prints_each_state(umbel: Run, site: Site) -> None:
    site.fill()
    said = {
        "ready": "waits in queue celery, 0 before it",
        "delayed": "is due at ",
        "held": "is held by run#0 under lease 1, from queue celery",
        "running": "is run by run#1 under lease 1, from queue celery",
        "set aside": "awaits its burial in queue celery: process, signal 9",
        "dead": "is dead, from queue celery: ValueError: no good",
        "unknown": "waits for a worker that knows its task, since ",
    }
    for state in STATES:
        [found] = data(umbel("-A", "proj", "message", site.ids[state], "--json"))
        assert found["place"].startswith(said[state]), state
        assert (found["args"], found["kwargs"]) == ([state], {})
        assert found["headers"]["id"] == site.ids[state]
        assert found["properties"]["delivery_info"]["routing_key"] == "celery"
        assert f'"id":"{site.ids[state]}"' in found["stored"]
    [waits] = data(umbel("-A", "proj", "message", site.ids["ready"], "--json"))
    assert waits["stored"].startswith('{"umbel":"')
