"""Checks by hand that Celery and Umbel read each other's results on Redis.

    python -m tests.interop.redis_results PYTHON_WITH_CELERY [--record]

Not part of the test run, which needs no Celery: it reads what ``--record`` has written down, byte
for byte, into ``tests/stores/celery_5_7_redis``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import redis
from tests.servers import Redis

from umbel import Umbel
from umbel.exceptions import TimeoutError
from umbel.message import Result
from umbel.stored import encode_meta

KEY = "celery-task-meta-{}"
RECORDED = Path(__file__).parents[1] / "stores" / "celery_5_7_redis"
DONE = "2026-01-02T03:04:05+00:00"


class Celery:
    def __init__(self, python: str, url: str) -> None:
        side = Path(__file__).with_name("celery_side.py")
        self._process = subprocess.Popen(
            [python, side, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def start(self, do: str, **arguments: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def ask(self, do: str, **arguments: object) -> Any:
        self.start(do, **arguments)
        return self.answer()

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


def check(server: Redis, celery: Celery, record: bool) -> None:
    app = Umbel("proj", broker="memory://", backend=server.url, set_as_current=False)
    client = redis.Redis(port=server.port)
    ours_is_read(app, celery, client)
    theirs_is_read(app, celery, client)
    if record:
        write_down(celery, client)
    app.close()
    client.close()


def put(app: Umbel, task_id: str, state: str, value: object, expires: float | None = None) -> None:
    assert app.store is not None
    done = DONE if state in ("SUCCESS", "FAILURE") else None
    meta = encode_meta(task_id, state, value, children=[], date_done=done)
    app.store.put([Result(task_id, state, meta, expires)])


def ours_is_read(app: Umbel, celery: Celery, client: redis.Redis) -> None:
    put(app, "u1", "SUCCESS", {"n": [1, None, "é"]})
    said("Celery gets our value", celery.ask("get", task_id="u1"),
         {"state": "SUCCESS", "value": {"n": [1, None, "é"]}})  # fmt: skip
    put(app, "u2", "FAILURE", KeyError("x", 2))
    said("Celery raises our exception", celery.ask("get", task_id="u2"),
         {"state": "FAILURE", "raised": ["builtins", "KeyError", "x", "2"]})  # fmt: skip
    put(app, "u3", "PROGRESS", {"done": 3})
    said("Celery sees a state of one's own", celery.ask("state", task_id="u3"), "PROGRESS")
    said("and what belongs to it", celery.ask("meta", task_id="u3"), {"done": 3})
    celery.start("get", task_id="u4")
    heard(client, "u4")
    put(app, "u4", "STARTED", {"pid": 1, "hostname": "h"})
    put(app, "u4", "SUCCESS", 7)
    said("Celery, waiting, hears of ours", celery.answer(), {"state": "SUCCESS", "value": 7})
    celery.ask("store", task_id="u1", state="FAILURE", value=["late"])
    said("Celery spares our SUCCESS", celery.ask("state", task_id="u1"), "SUCCESS")
    celery.ask("forget", task_id="u1")
    said("what Celery forgets is gone", app.AsyncResult("u1").state, "PENDING")
    put(app, "u5", "SUCCESS", 1, time.time() + 0.2)
    time.sleep(0.3)
    said("what expires is gone to Celery", celery.ask("state", task_id="u5"), "PENDING")


def theirs_is_read(app: Umbel, celery: Celery, client: redis.Redis) -> None:
    celery.ask("store", task_id="c1", state="SUCCESS", value={"n": [1, None, "é"]})
    said("we get Celery's value", app.AsyncResult("c1").get(timeout=20), {"n": [1, None, "é"]})
    celery.ask("store", task_id="c2", state="FAILURE", value=["x", 2])
    try:
        app.AsyncResult("c2").get(timeout=20)
    except ValueError as error:
        said("we raise Celery's exception", error.args, ("x", 2))
    got: list[object] = []
    waiting = threading.Thread(target=lambda: got.append(app.AsyncResult("c3").get(timeout=20)))
    waiting.start()
    heard(client, "c3")
    celery.ask("store", task_id="c3", state="SUCCESS", value=8)
    waiting.join()
    said("we, waiting, hear of Celery's", got, [8])
    put(app, "c1", "FAILURE", ValueError("late"))
    said("we spare Celery's SUCCESS", app.AsyncResult("c1").state, "SUCCESS")
    app.AsyncResult("c1").forget()
    said("what we forget is gone to Celery", celery.ask("state", task_id="c1"), "PENDING")
    try:
        app.AsyncResult("nobody").get(timeout=0.1)
    except TimeoutError:
        said("nobody's result is overdue", True, True)


def write_down(celery: Celery, client: redis.Redis) -> None:
    RECORDED.mkdir(exist_ok=True)
    for name, state, value, extended in (
        ("success", "SUCCESS", {"n": [1, None, "é"]}, False),
        ("failure", "FAILURE", ["no", 7], False),
        ("started", "STARTED", {"pid": 7, "hostname": "celery@host"}, False),
        ("extended", "SUCCESS", "e", True),
    ):
        celery.ask("store", task_id=name, state=state, value=value, extended=extended)
        record = client.get(KEY.format(name))
        assert isinstance(record, bytes)
        (RECORDED / f"{name}.json").write_bytes(record)


def heard(client: redis.Redis, task_id: str) -> None:
    """Wait until somebody listens for it."""
    deadline = time.monotonic() + 20
    while client.pubsub_numsub(KEY.format(task_id))[0][1] == 0:
        assert time.monotonic() < deadline, f"nobody listens for {task_id}"
        time.sleep(0.01)


def said(what: str, got: object, expected: object) -> None:
    assert got == expected, f"{what}: {got!r}, expected {expected!r}"
    print(f"  {what}")


def main() -> None:
    python, *options = sys.argv[1:]
    server = Redis()
    try:
        server.start()
        celery = Celery(python, server.url)
        try:
            check(server, celery, "--record" in options)
        finally:
            celery.end()
    finally:
        server.remove()


if __name__ == "__main__":
    main()
