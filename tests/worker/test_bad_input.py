"""Bad input: a clear sentence, nothing lost, and the worker goes on where it can."""

from __future__ import annotations

import ctypes
import os
import random
import resource
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.worker.harness import until
from tests.worker.living import PYTHONPATH, Place

from umbel import AsyncResult, Umbel, states
from umbel.exceptions import BrokerUnavailable, EncodeError, MessageTooLarge, UnknownSetting
from umbel.message import Message, Posting
from umbel.silence import silent_for

UNAVAILABLE = 69
CONFIG = 78


def _run(
    *arguments: str, prepare: Callable[[], None] = lambda: None, **environment: Any
) -> tuple[int, str]:
    """The exit code of ``umbel …`` and its only line on standard error."""
    done = subprocess.run(
        [sys.executable, "-m", "umbel", *arguments],
        env={**os.environ, "PYTHONPATH": PYTHONPATH, "JOURNAL": "/dev/null"} | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=prepare,
    )
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    return done.returncode, line


def _worker(url: str, app: str = "live_app", **environment: Any) -> tuple[int, str]:
    return _run("-A", f"tests.worker.{app}", "worker", UMBEL_BROKER_URL=url, **environment)


def _failed(result: AsyncResult[Any]) -> str:
    until(result.ready, what="the task fails")
    assert result.state == states.FAILURE
    return type(result.result).__name__


# Apps and settings.


def test_apps_that_cannot_be_used(place: Place) -> None:
    code, line = _run("-A", "no_such_app", "worker", UMBEL_BROKER_URL=place.url)
    assert code == 1
    assert "there is no module 'no_such_app'" in line
    code, line = _worker(place.url, "harness")
    assert code == 1
    assert "no app at all" in line
    code, line = _worker(place.url, "broken_app")
    assert code == 1
    assert "RuntimeError: the shop is closed" in line
    assert "broken_app.py, line 8" in line
    code, line = _run("worker", UMBEL_BROKER_URL=place.url)
    assert code == 64
    assert "no app is named" in line


def test_settings_that_are_wrong(place: Place) -> None:
    code, line = _worker(place.url, "wrong_setting_app")
    assert code != 0
    assert "worker_prefetch_multiplyer" in line
    assert "worker_prefetch_multiplier" in line  # the nearest
    code, line = _worker(place.url, UMBEL_WORKER_LEASE_TIME="soon")
    assert code != 0
    assert "UMBEL_WORKER_LEASE_TIME" in line
    assert "soon" in line
    with pytest.raises(UnknownSetting, match="broker_url"):
        place.app.conf.update({"broker_ulr": "sqlite:///x.db"})


# What can't be sent fails in the caller.


def test_arguments_that_cannot_be_sent(place: Place) -> None:
    with pytest.raises(EncodeError, match=r"kwargs\['rows'\]\[3\]"):
        place.app.send_task("quick", kwargs={"rows": [1, 2, 3, object()]})
    with pytest.raises(TypeError, match="task_id"):
        place.send("quick", "tag", task_id="\ud83d")
    with pytest.raises(EncodeError, match=r"args\[0\]"):
        place.app.send_task("quick", [{1, object()}])
    assert place.broker.queues() == () or place.broker.queues()[0].ready == 0


def test_a_message_that_is_too_large(place: Place) -> None:
    with pytest.raises(MessageTooLarge, match="task_max_message_size"):
        place.send("quick", "x" * (16 * 2**20))
    place.worker("-c", "1")
    assert place.send("quick", "small").get(timeout=30)
    assert place.counts("start") == {"small": 1}


def test_results_that_cannot_be_kept_as_they_are(place: Place) -> None:
    """They end their task, not their process."""
    worker = place.worker("-c", "1")
    pid = place.send("quick", "before").get(timeout=30)
    bad = place.send("strange", "object", "object")
    assert _failed(bad) == "EncodeError"
    assert "[2]" in str(bad.result)
    for how in ("raise", "raise text"):
        raising = place.send("strange", how.replace(" ", "-"), how)
        until(raising.ready)
        assert raising.state == states.FAILURE
        assert "Strange" in str(raising.traceback) or "no file" in str(raising.traceback)
    assert len(place.send("strange", "large", "large").get(timeout=30)) == 5_000_000
    assert place.send("quick", "after").get(timeout=30) == pid
    assert len(place.app.dead.list()) == 3
    assert worker.stop() == 0, worker.text


# What arrives and can't be run.


def test_an_unknown_task_waits_and_then_is_a_dead_letter(place: Place) -> None:
    env = {"UMBEL_TASK_UNKNOWN_WAIT": "6"}
    place.worker("-c", "1", env=env)
    stranger = place.send("nobody.knows", "it")
    included = place.send("included", "tag")
    # It holds up nobody.
    assert place.send("quick", "other").get(timeout=30)
    assert stranger.state == states.PENDING
    # And goes to a worker that knows it.
    place.worker("-c", "1", "-I", "tests.worker.extra_tasks", env=env)
    assert included.get(timeout=30) == "from extra_tasks"
    assert _failed(stranger) == "NotRegistered"
    until(lambda: place.app.dead.get(stranger.id), what="a dead letter")
    dead = place.app.dead.get(stranger.id)
    assert dead is not None
    assert dead.error == "NotRegistered"
    assert "nobody.knows" in dead.reason
    assert place.counts("task_unknown") == {"nobody.knows": 1}


def _template(place: Place) -> Message:
    """A good message, out of the queue again."""
    place.send("quick", "template")
    (message,) = place.broker.peek("celery", 1)
    assert isinstance(message, Message)
    place.broker.purge(["celery"])
    return message


def _copy(message: Message, task_id: str, **changes: Any) -> Message:
    headers = {**message.headers, "id": task_id, **changes.pop("headers", {})}
    return msgspec.structs.replace(message, headers=headers, **changes)


def test_messages_that_cannot_be_read(place: Place) -> None:
    good = _template(place)
    worker = place.worker("-c", "1")
    pid = place.send("quick", "before").get(timeout=30)
    bad = {
        "no-json": _copy(good, "no-json", body=b"{not json"),
        "no-call": _copy(good, "no-call", body=b'{"a": 1}'),
        "short": _copy(good, "short", body=b"[[1]]"),
        "pickle": _copy(good, "pickle", content_type="application/x-python-serialize"),
        "image": _copy(good, "image", content_type="image/png", content_encoding="binary"),
        "latin": _copy(good, "latin", content_encoding="no-such-encoding", body=b"\xff\xfe"),
        "zipped": _copy(good, "zipped", headers={"compression": "application/x-gzip"}),
        "retries": _copy(good, "retries", headers={"retries": "many"}),
        "expires": _copy(good, "expires", headers={"expires": "yesterday-ish"}),
        "eta": _copy(good, "eta", headers={"eta": [1, 2]}),
        "limits": _copy(good, "limits", headers={"timelimit": "long"}),
        "number": _copy(good, "number", headers={"task": 7}),
    }
    place.broker.publish([Posting(message, "celery") for message in bad.values()])
    nameless = msgspec.structs.replace(good, headers={}, properties={})
    place.broker.publish([Posting(nameless, "celery"), Posting(_copy(good, ""), "celery")])
    after = place.send("quick", "after")
    assert after.get(timeout=30) == pid
    until(lambda: len(place.app.dead.list()) == len(bad) + 2, what="all are dead letters")
    dead = {each.id: each for each in place.app.dead.list()}
    assert dead.keys() >= bad.keys()
    assert all(each.reason for each in dead.values())
    assert "application/x-python-serialize" in dead["pickle"].reason
    assert "compress" in dead["zipped"].reason
    assert place.counts("start") == {"before": 1, "after": 1}
    assert len(place.notes("task_rejected")) >= len(bad)
    assert [queue.ready + queue.leased for queue in place.broker.queues()] == [0]
    assert worker.stop() == 0, worker.text
    assert "Traceback" not in worker.text


def test_a_message_whose_bytes_are_damaged(place: Place) -> None:
    results = [place.send("quick", f"task-{n}") for n in range(3)]
    connection = sqlite3.connect(place.file)
    with connection:
        connection.execute("UPDATE message SET blob = x'00ff00ff' WHERE id = ?", [results[1].id])
    connection.close()
    worker = place.worker("-c", "1")
    results[0].get(timeout=30)
    results[2].get(timeout=30)
    until(lambda: place.app.dead.list(), what="a dead letter")
    (dead,) = place.app.dead.list()
    assert "not a message envelope" in dead.reason
    assert place.counts("start") == {"task-0": 1, "task-2": 1}
    assert worker.stop() == 0, worker.text
    assert "Traceback" not in worker.text


def test_headers_of_strangers_survive_a_retry(place: Place) -> None:
    """Whatever they hold, the message of the retry carries them on."""
    place.send("retry_once", "tag")
    (message,) = place.broker.peek("celery", 1)
    assert isinstance(message, Message)
    place.broker.purge(["celery"])
    theirs = {"theirs": ["\ud83d", 2**70, {"a": None}]}
    worker = place.worker("-c", "1")
    place.broker.publish([Posting(_copy(message, "stranger", headers=theirs), "celery")])
    result = place.app.AsyncResult("stranger")
    assert result.get(timeout=30) == 1
    assert place.counts("start") == {"tag": 2}
    assert worker.stop() == 0, worker.text


JUNK: list[Any] = [
    None, True, -1, 2**70, 1e308, "", "x" * 3000, "\x00", "\ud83d", [], [[[]]], {}, {"a": None},
    ["id", 1], {"__type__": "datetime", "__value__": "?"},
]  # fmt: skip


def test_300_messages_of_a_stranger_do_no_harm(place: Place) -> None:
    good, dice = _template(place), random.Random(20)
    worker = place.worker("-c", "1")
    pid = place.send("quick", "before").get(timeout=30)
    names = [name for name in good.headers if name != "id"]
    postings = []
    for number in range(300):
        headers: dict[str, Any] = {**good.headers, "id": f"junk-{number}"}
        for _ in range(dice.randrange(4)):
            headers[dice.choice(names)] = dice.choice(JUNK)
        properties = dict(good.properties)
        if dice.random() < 0.3:
            properties[dice.choice(list(properties))] = dice.choice(JUNK)
        body = good.body
        if dice.random() < 0.3:
            body = dice.choice([b"", b"null", b"[]", b"[[],{},{}]", b"\xff", dice.randbytes(30)])
        message = msgspec.structs.replace(good, headers=headers, properties=properties, body=body)
        postings.append(Posting(message, "celery"))
    place.broker.publish(postings)

    def all_are_settled() -> bool:
        (queue,) = place.broker.queues()
        return not (queue.ready or queue.leased or queue.lost)

    until(all_are_settled, 60, what="all messages are settled")
    (queue,) = place.broker.queues()
    ran = len(place.notes("start")) - 1
    print(f"of 300 messages {ran} ran, {queue.dead} are dead letters, {queue.delayed} wait")
    assert ran > 30
    assert queue.dead > 30
    assert place.send("quick", "after").get(timeout=30) == pid
    assert worker.stop() == 0, worker.text
    assert "Traceback" not in worker.text


# The broker's file.


@pytest.mark.parametrize("where", ["a directory", "no directory", "/proc", "garbage", "foreign"])
def test_a_file_that_cannot_be_a_broker(tmp_path: Path, where: str) -> None:
    path, said = _bad_file(tmp_path, where)
    code, line = _worker(f"sqlite:///{path}")
    assert code == UNAVAILABLE
    assert str(path) in line
    assert said in line
    code, line = _run(
        "-b", f"sqlite:///{path}", "call", "quick", "-a", '["tag"]', UMBEL_TASK_PUBLISH_RETRY="0"
    )
    assert code == UNAVAILABLE
    assert str(path) in line
    app = Umbel(broker=f"sqlite:///{path}", set_as_current=False)
    with pytest.raises(BrokerUnavailable, match=said):
        app.send_task("quick", ["tag"], retry=False)
    if path.is_file():
        assert path.read_bytes() == _bytes(where, path)


def _bad_file(folder: Path, where: str) -> tuple[Path, str]:
    if where == "/proc":
        return Path("/proc/umbel-test.db"), "can't be opened"
    if where == "a directory":
        return folder, "is a directory"
    if where == "no directory":
        return folder / "missing" / "broker.db", "doesn't exist"
    path = folder / "broker.db"
    if where == "garbage":
        path.write_bytes(b"This is no database at all. " * 1000)
        return path, "not a database or is damaged"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE customers (name TEXT)")
    connection.commit()
    connection.close()
    (folder / "copy.db").write_bytes(path.read_bytes())
    return path, "database of another program"


def _bytes(where: str, path: Path) -> bytes:
    if where == "garbage":
        return b"This is no database at all. " * 1000
    return path.with_name("copy.db").read_bytes()


def _without_roots_rights() -> None:
    """Give up root's right to write where the file's mode forbids it; others never had it."""
    PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 24, 1, 2
    libc = ctypes.CDLL(None)
    for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
        libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)


def test_a_file_that_may_not_be_written(place: Place) -> None:
    result = place.send("quick", "tag")
    place.app.close()
    files = [path for path in place.folder.iterdir() if path.is_file()]
    for path in files:
        path.chmod(0o444)
    place.folder.chmod(0o555)
    try:
        code, line = _run(
            "-A",
            "tests.worker.live_app",
            "worker",
            prepare=_without_roots_rights,
            UMBEL_BROKER_URL=place.url,
        )
    finally:
        place.folder.chmod(0o755)
        for path in files:
            if path.exists():
                path.chmod(0o644)
    assert code == UNAVAILABLE
    assert str(place.file) in line
    assert "can't be written" in line or "can't be opened" in line
    place.worker("-c", "1")
    assert result.get(timeout=30)


def _files_up_to(size: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def test_a_full_disk_for_who_sends(place: Place) -> None:
    before = place.send("quick", "before")
    code, line = _run(
        *("-b", place.url, "call", "quick", "-a", '["tag"]'),
        prepare=_files_up_to(8192),
        UMBEL_TASK_PUBLISH_RETRY="0",
    )
    assert code == UNAVAILABLE
    assert str(place.file) in line
    place.worker("-c", "1")
    assert before.get(timeout=30)
    assert place.counts("start") == {"before": 1}


def test_no_room_for_the_scoreboard(place: Place) -> None:
    before = place.send("quick", "before")
    code, line = _run(
        *("-A", "tests.worker.live_app", "worker", "-c", "1"),
        prepare=_files_up_to(8192),
        UMBEL_BROKER_URL=place.url,
    )
    assert code == CONFIG
    assert "the scoreboard" in line
    place.worker("-c", "1")
    assert before.get(timeout=30)


def test_a_full_disk_for_a_worker_that_runs(place: Place) -> None:
    """It goes on when there is space again, and settles what it had decided meanwhile."""
    worker = place.worker("-c", "2")
    running = [place.send("gated", f"run-{n}", str(place.gate())) for n in range(2)]
    place.noted("start", times=2)
    waiting = [place.send("quick", f"wait-{n}") for n in range(20)]
    tree = place.pids(worker.pid)
    limit = resource.prlimit(tree[0], resource.RLIMIT_FSIZE)
    size = os.path.getsize(f"{place.file}-wal")
    for pid in tree:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size // 2, limit[1]))
    place.gate().touch()
    until(lambda: "Trying again" in worker.text, what="a log line about the full disk")
    assert worker.process.poll() is None
    assert not any(result.ready() for result in (*running, *waiting))
    for pid in tree:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, limit)
    for result in (*running, *waiting):
        result.get(timeout=60)
    assert set(place.counts("start").values()) == {1}
    assert place.app.dead.list() == []
    assert set(tree) == set(place.pids(worker.pid))
    assert worker.stop() == 0, worker.text
    assert "Traceback" not in worker.text


def test_a_file_that_is_deleted_while_a_worker_runs(place: Place) -> None:
    """What it held is lost, and the log says so; the worker goes on with the new file."""
    worker = place.worker("-c", "1")
    assert place.send("quick", "before").get(timeout=30)
    for end in ("", "-wal", "-shm"):
        Path(f"{place.file}{end}").unlink()
    with pytest.raises(BrokerUnavailable, match="was deleted or replaced"):
        place.send("quick", "nowhere", retry=False)
    until(lambda: "was deleted or replaced" in worker.text, what="the log says so")
    place.app.close()
    until(place.broker.runs, what="the worker is in the new file")
    after = place.send("quick", "after")
    assert after.get(timeout=60)
    assert place.counts("start") == {"before": 1, "after": 1}


def test_a_file_that_is_damaged_while_a_worker_runs(place: Place) -> None:
    worker = place.worker("-c", "1")
    assert place.send("quick", "before").get(timeout=30)
    waiting = place.send("quick", "delayed", countdown=1.0)
    connection = sqlite3.connect(place.file)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    connection.close()
    good = place.file.read_bytes()
    with place.file.open("r+b") as file:
        file.write(b"\0" * len(good))
        file.flush()
    until(lambda: "damaged" in worker.text, what=f"the log says so: {worker.text}")
    assert worker.process.poll() is None
    with place.file.open("r+b") as file:
        file.write(good)
    place.app.close()
    assert waiting.get(timeout=60)
    assert place.counts("start") == {"before": 1, "delayed": 1}


@pytest.mark.parametrize("first", [0, 3])
def test_a_task_that_closes_the_files_of_its_process_costs_that_process_only(
    place: Place, first: int
) -> None:
    worker = place.worker("-c", "1")
    (old,) = worker.pool(place.broker)
    closed = place.send("tests.worker.live_app.close_files", first)
    assert closed.get(timeout=20) == "closed"
    after = place.send("tests.worker.live_app.close_files", 4000)
    assert after.get(timeout=20) == "closed"
    assert worker.pool(place.broker) != [old]
    assert place.broker.dead() == ()
    assert worker.stop() == 0, worker.text


def test_a_dead_worker_is_not_said_to_be_online(place: Place) -> None:
    worker = place.worker("-c", "1")
    running = place.send("tests.worker.live_app.close_files", 4000)
    running.get(timeout=20)
    worker.kill()
    record = place.broker.runs()[-1]
    assert silent_for(record, record.seen_at + place.lease - 0.1) is None
    assert silent_for(record, record.seen_at + place.lease + 0.1) is not None
