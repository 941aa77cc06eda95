"""Log lines in Celery's format; what an app has set up itself is left alone."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from tests.worker.harness import until
from tests.worker.living import Place

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
