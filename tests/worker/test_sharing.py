"""Real workers whose queues are Celery's too: what its dead held, and what is handed back."""

from __future__ import annotations

import base64
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest
from redis import Redis as Client
from tests.brokers.test_redis import celery_message
from tests.cli.helpers import shell
from tests.servers import Redis, redis
from tests.worker.harness import until
from tests.worker.living import Place

from umbel.drivers import BrokerDriver
from umbel.exceptions import BrokerUnavailable
from umbel.worker.undertaker import Undertaker

__all__ = ["redis"]

SHARING = "tests.worker.sharing_app"


@pytest.fixture
def place(redis: Redis, tmp_path: Path) -> Iterator[Place]:
    redis.flush()
    made = Place(tmp_path, lease=3.0, url=redis.url)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def client(redis: Redis) -> Iterator[Client]:
    with Client(port=redis.port, decode_responses=True) as made:
        yield made


def stop(place: Place, worker: Any) -> None:
    worker.process.send_signal(signal.SIGTERM)
    assert worker.process.wait(30) == 0, worker.text


def test_a_worker_that_starts_runs_what_celerys_dead_held(place: Place, client: Client) -> None:
    envelope = json.loads(celery_message("a"))
    envelope["headers"]["task"] = "quick"
    envelope["body"] = base64.b64encode(b'[["theirs"], {}, {}]').decode()
    client.hset("unacked", "tag", json.dumps([envelope, "", "celery"]))
    client.zadd("unacked_index", {"tag": time.time() - 3601})
    place.worker("-c", "1")
    place.noted("start", "theirs")
    until(lambda: not client.exists("unacked", "unacked_index", "unacked_mutex"))


def test_the_last_worker_of_an_app_from_celery_hands_back(place: Place, client: Client) -> None:
    first, last = (place.worker("-c", "1", app=SHARING) for _ in range(2))
    place.app.send_task("quick", ["later"], countdown=1000)
    until(lambda: client.exists("umbel:{celery}:due"))
    stop(place, first)
    assert client.llen("celery") == 0
    stop(place, last)
    stored = json.loads(str(client.lindex("celery", 0)))
    assert stored["headers"]["eta"]
    assert not client.exists("umbel:{celery}:due")
    assert "Handed back to Celery's workers: 1 due later" in last.text


def test_other_apps_keep_theirs_until_the_command(place: Place, client: Client) -> None:
    worker = place.worker("-c", "1")
    place.app.send_task("quick", ["later"], countdown=1000)
    refused = shell("-b", place.url, "handback", cwd=place.folder)
    assert (refused.code, "still run: umbel@" in refused.sentence) == (1, True)
    stop(place, worker)
    assert client.exists("umbel:{celery}:due")
    ended = shell("-b", place.url, "handback", "--json", cwd=place.folder)
    assert (ended.code, json.loads(ended.out)) == (0, {"delayed": 1, "buried": 0})
    assert client.llen("celery") == 1
    assert place.broker.runs() == ()


def test_the_command_reclaims_what_a_killed_worker_held(place: Place, client: Client) -> None:
    worker = place.worker("-c", "1")
    place.send("gated", "a", str(place.gate()))
    place.noted("start", "a")
    for pid in place.pids(worker.pid):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    ended = shell("-b", place.url, "handback", cwd=place.folder)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines() == [
        "0 tasks due later handed back to Celery's workers.",
        "1 task that had begun when their worker died: see umbel dead list.",
    ]
    assert [letter.error for letter in place.broker.dead()] == ["WorkerLostError"]


def test_where_nobody_else_can_come_the_command_says_so(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/broker.db"
    place = Place(tmp_path)
    ended = shell("-b", url, "handback", cwd=tmp_path)
    assert (ended.code, "nobody to hand back to" in ended.sentence) == (78, True)
    place.close()


class Tended:
    """A broker that says when it is to be tended again, or is away."""

    def __init__(self) -> None:
        self.times = 0
        self.location = "tended"

    def tend(self) -> float:
        self.times += 1
        if self.times == 2:
            raise BrokerUnavailable("away")
        return 0.0


def test_a_broker_is_tended_when_it_is_due_and_again_after_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("umbel.worker.undertaker.TEND_AGAIN", 0.0)
    broker = Tended()
    undertaker = Undertaker(cast("BrokerDriver", broker), None, 3.0)
    undertaker.start()
    for expected in (1, 2, 3):
        undertaker.tend_when_due()
        undertaker.settle_down(10)
        assert broker.times == expected
    undertaker.finish(10)
    assert not undertaker.failed
