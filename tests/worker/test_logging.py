"""Log lines in Celery's format; what an app has set up itself is left alone."""

from __future__ import annotations

import json
import logging
import math
import os
import re
import signal
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.worker.harness import until
from tests.worker.living import Place

from umbel.worker.jsonlog import JsonFormatter

LINE = re.compile(
    r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}: (?P<level>[A-Z]+)/(?P<process>[\w-]+)\] (?P<text>.*)"
)


def _lines(text: str) -> list[tuple[str, str, str]]:
    """(level, process, text) of each line that is in Celery's format."""
    matches = [LINE.fullmatch(line) for line in text.splitlines()]
    return [(m["level"], m["process"], m["text"]) for m in matches if m]


def test_log_lines_have_celerys_format(place: Place) -> None:
    worker = place.worker("-c", "1")
    good = place.send("quick", "good")
    pid = good.get(timeout=30)
    bad = place.send("fail", "bad")
    place.noted("task_failure:KeyError", bad.id)
    assert worker.stop() == 0, worker.text
    lines = _lines(worker.text)
    texts = [text for _, _, text in lines]
    assert any(level == "INFO" and process == "MainProcess" for level, process, _ in lines)
    (received,) = [text for text in texts if good.id in text and "received" in text]
    assert received == f"Task quick[{good.id}] received"
    (level, process, succeeded) = next(
        line for line in lines if good.id in line[2] and "succeeded" in line[2]
    )
    assert (level, process) == ("INFO", "ForkPoolWorker-1")
    assert re.fullmatch(rf"Task quick\[{good.id}\] succeeded in \d+\.\d+s: {pid}", succeeded)
    (level, process, raised) = next(
        line for line in lines if bad.id in line[2] and "raised" in line[2]
    )
    assert (level, process) == ("ERROR", "ForkPoolWorker-1")
    assert raised == f"Task fail[{bad.id}] raised unexpected: KeyError('bad')"
    assert "raise KeyError(tag)" in worker.text


def test_print_in_a_task_is_a_log_line(place: Place) -> None:
    worker = place.worker("-c", "1")
    place.send("chatter", "tag").get(timeout=30)
    assert worker.stop() == 0, worker.text
    lines = _lines(worker.text)
    assert ("WARNING", "ForkPoolWorker-1", "printed by tag") in lines
    assert ("INFO", "ForkPoolWorker-1", "logged by tag") in lines


def test_redirection_can_be_switched_off(place: Place) -> None:
    worker = place.worker("-c", "1", env={"UMBEL_WORKER_REDIRECT_STDOUTS": "0"})
    place.send("chatter", "tag").get(timeout=30)
    assert worker.stop() == 0, worker.text
    assert "printed by tag" in worker.text.splitlines()
    assert not [text for _, _, text in _lines(worker.text) if text == "printed by tag"]


def test_logfile(place: Place) -> None:
    path = place.folder / "worker.txt"
    worker = place.worker("-c", "1", "--logfile", str(path), ready=False)
    place.send("chatter", "tag").get(timeout=30)
    until(lambda: " ready." in path.read_text(), what="the worker says that it is ready")
    assert worker.stop() == 0, worker.text
    texts = [text for _, _, text in _lines(path.read_text())]
    assert "printed by tag" in texts
    assert any(text.endswith(" ready.") for text in texts)
    assert worker.text == ""


def test_a_logfile_that_cannot_be_written(place: Place) -> None:
    worker = place.worker("--logfile", str(place.folder), ready=False)
    assert worker.process.wait(30) == 78
    (line,) = worker.text.splitlines()
    assert str(place.folder) in line


@pytest.mark.parametrize("how", ["own", "setup_logging"])
def test_a_logging_set_up_of_the_app_is_left_alone(place: Place, how: str) -> None:
    """The app logs to a file of its own, in a format of its own."""
    path = place.folder / "app.txt"
    env = {"APP_LOG": str(path), "APP_LOG_HOW": how}
    worker = place.worker("-c", "1", app="tests.worker.logging_app", env=env, ready=False)
    place.send("chatter", "tag").get(timeout=30)
    until(lambda: " ready." in path.read_text(), what="the worker says that it is ready")
    assert worker.stop() == 0, worker.text
    lines = path.read_text().splitlines()
    assert "APP:INFO:shop:logged by tag" in lines
    assert any(re.fullmatch(r"APP:INFO:umbel\.\w+:.* ready\.", line) for line in lines)
    # Not redirected either: what a task prints stays where it was.
    assert worker.text.splitlines() == ["printed by tag"]


def test_the_level_of_the_command_line(place: Place) -> None:
    worker = place.worker("-c", "1", "-l", "ERROR", ready=False)
    place.send("chatter", "tag").get(timeout=30)
    place.send("fail", "bad")
    place.noted("start", "bad")
    assert worker.stop() == 0, worker.text
    assert {level for level, _, _ in _lines(worker.text)} == {"ERROR"}


def test_the_log_says_where_the_default_broker_is(place: Place) -> None:
    """No broker is named: the file in the working directory is used, and the log says which."""
    folder = place.folder / "work"
    folder.mkdir()
    (folder / "plain_app.py").write_text("from umbel import Umbel\napp = Umbel('plain')\n")
    command = [sys.executable, "-m", "umbel", "-A", "plain_app", "worker", "-l", "INFO", "-c", "1"]
    log = folder / "log.txt"
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=folder, stdout=out, stderr=out)
    try:
        until(lambda: " ready." in log.read_text(), what="the worker is ready")
    finally:
        process.terminate()
        assert process.wait(30) == 0
    assert any(str(folder / "umbel.db") in text for _, _, text in _lines(log.read_text()))


# JSON


def _objects(text: str) -> list[dict[str, Any]]:
    """Every line, each of which has to be an object."""
    objects = [json.loads(line, parse_constant=pytest.fail) for line in text.split("\n")[:-1]]
    assert all(type(each) is dict for each in objects)
    assert text.isascii()
    return objects


def _one(objects: list[dict[str, Any]], **wanted: object) -> dict[str, Any]:
    found = [each for each in objects if wanted.items() <= each.items()]
    assert len(found) == 1, (wanted, objects)
    return found[0]


@pytest.mark.setting("worker_log_json")
@pytest.mark.parametrize("how", ["option", "environment"])
def test_worker_log_json_makes_every_line_an_object(place: Place, how: str) -> None:
    """From the first warning to the last word, of all processes, whatever the tasks do."""
    options = ["--log-json"] if how == "option" else []
    env = {} if how == "option" else {"UMBEL_WORKER_LOG_JSON": "1"}
    worker = place.worker("-c", "1", *options, app="tests.worker.json_app", env=env)
    began = datetime.now(UTC)
    spoken, failed = place.send("speak", "tag"), place.send("fail", "bad")
    assert spoken.get(timeout=30) == "tag"
    with pytest.raises(KeyError):
        failed.get(timeout=30)
    pool = worker.pool(place.broker)
    os.kill(pool[0], signal.SIGKILL)
    until(lambda: "ended: " in worker.text, what="the supervisor tells of the death")
    assert worker.stop() == 0, worker.text
    objects = _objects(worker.text)
    for each in objects:
        assert {"time", "level", "logger", "message", "process", "pid"} <= each.keys()
        assert each["time"].endswith("Z")
    main = {"pid": worker.pid, "process": "MainProcess"}
    assert "task_send_sent_event" in objects[0]["message"]
    assert objects[0].items() >= {**main, "level": "WARNING"}.items()
    assert any(" ready." in each["message"] for each in objects)
    _one(objects, message="Warm shutdown (SIGTERM).", **main)

    at = {"task_name": "speak", "task_id": spoken.id, "pid": pool[0], "process": "ForkPoolWorker-1"}
    first = [each for each in objects if each.items() >= at.items()]
    first = first[: 1 + next(i for i, each in enumerate(first) if " retry: " in each["message"])]
    _one(first, message="printed by tag", level="WARNING", logger="umbel.redirected")
    _one(first, message="in two lines \x1b[31m\x00")
    _one(first, message="to stderr")
    paid = _one(first, message="paid tag", logger="shop.tasks", level="INFO")
    assert paid["order"] == {"lines": [1, 2.5]}
    assert paid["odd"] == "{1, 2}"
    assert paid["time_"] == "noon"
    assert datetime.fromisoformat(paid["time"]) >= began
    wrong = _one(first, logger="other", level="ERROR")
    assert "wrong %d" in wrong["message"]
    assert "'tag'" in wrong["message"]
    exception = _one(first, message="it\nfailed")["exception"]
    assert exception.startswith("Traceback ")
    assert exception.endswith("LookupError: line one\nline two")
    assert [each for each in first if "careful" in each["message"]]
    succeeded = next(each for each in objects if "succeeded" in each["message"])
    assert succeeded.items() >= at.items()

    raised = _one(objects, task_id=failed.id, level="ERROR")
    assert raised["message"] == f"Task fail[{failed.id}] raised unexpected: KeyError('bad')"
    assert "raise KeyError(tag)" in raised["exception"]


def test_json_of_the_solo_pool_and_of_a_logfile(place: Place) -> None:
    path = place.folder / "log.jsonl"
    worker = place.worker(
        *("--log-json", "-P", "solo", "-f", str(path)), app="tests.worker.json_app", ready=False
    )
    spoken = place.send("speak", "tag")
    assert spoken.get(timeout=30) == "tag"
    assert worker.stop() == 0, worker.text
    assert any("task_send_sent_event" in each["message"] for each in _objects(worker.text))
    printed = _objects(path.read_text())
    wanted = {"message": "printed by tag", "task_id": spoken.id, "process": "MainProcess"}
    assert [each for each in printed if wanted.items() <= each.items()]


def test_a_worker_that_cannot_start_says_so_in_json(place: Place) -> None:
    worker = place.worker("--log-json", app="nobodys.module", ready=False)
    assert worker.process.wait(30) == 1
    (line,) = _objects(worker.text)
    assert (line["level"], line["logger"]) == ("ERROR", "umbel.cli")
    assert "there is no module 'nobodys'" in line["message"]


def test_without_the_option_an_exception_stands_in_the_text(place: Place) -> None:
    worker = place.worker("-c", "1", app="tests.worker.json_app")
    failed = place.send("fail", "bad")
    with pytest.raises(KeyError):
        failed.get(timeout=30)
    assert worker.stop() == 0, worker.text
    raised = worker.text.partition("raised unexpected: KeyError('bad')\n")[2]
    assert raised.startswith("Traceback (most recent call last):\n")


def test_json_of_an_app_that_logs_by_itself_is_remarked(place: Place) -> None:
    path = place.folder / "app.txt"
    env = {"APP_LOG": str(path), "APP_LOG_HOW": "own"}
    place.worker("--log-json", app="tests.worker.logging_app", env=env, ready=False)
    until(lambda: path.exists() and " ready." in path.read_text(), what="the worker is ready")
    (line,) = [line for line in path.read_text().splitlines() if "has no effect" in line]
    assert line.startswith("APP:WARNING:umbel.worker:worker_log_json")


class _Unwilling:
    def __repr__(self) -> str:
        raise RuntimeError("no")


def _formatted(message: object, *args: object, **extra: object) -> dict[str, Any]:
    record = logging.getLogger("x").makeRecord(
        "x", logging.INFO, "file.py", 1, message, args, None, extra=extra
    )
    text = JsonFormatter().format(record)
    assert "\n" not in text
    (line,) = _objects(text + "\n")
    return line


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (True, True),
        (None, None),
        (10**30, 10**30),
        (math.inf, "inf"),
        (1e-3, 0.001),
        ((1, "é"), [1, "é"]),
        ({"a": {"b": ()}}, {"a": {"b": []}}),
        ({1: 2}, "{1: 2}"),
        ("half \udc80", "half \\udc80"),
        ("snake 🐍\u2028", "snake 🐍\u2028"),
        (logging.INFO, 20),
        (datetime(2026, 1, 31, tzinfo=UTC), repr(datetime(2026, 1, 31, tzinfo=UTC))),
    ],
)
def test_extras_are_json_or_their_repr(value: object, shown: object) -> None:
    assert _formatted("x", thing=value)["thing"] == shown


def test_extras_that_resist_are_written_all_the_same() -> None:
    circle: list[object] = []
    circle.append(circle)
    assert "_Unwilling" in _formatted("x", thing=_Unwilling())["thing"]
    assert type(_formatted("x", thing=circle)["thing"]) is list
    assert type(_formatted("x", thing=10**5000)["thing"]) is str
    assert _formatted("x", **{"odd name \udc80": 1})["odd name \\udc80"] == 1
    assert _formatted("%s", _Unwilling())["message"].endswith("RuntimeError: no")


def test_extras_do_not_replace_what_every_line_has() -> None:
    line = _formatted("x", level=1, level_=2, logger="mine", pid=3, task_id="given")
    assert (line["level"], line["logger"]) == ("INFO", "x")
    assert (line["level_"], line["level__"]) in ((1, 2), (2, 1))
    assert (line["logger_"], line["pid_"], line["task_id"]) == ("mine", 3, "given")
