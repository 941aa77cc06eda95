"""`umbel report` and `app.bugreport()`: complete, without secrets, without a connection."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest
from tests.cli.helpers import Ended

from umbel import Umbel, __version__
from umbel.report import bugreport, collect

Run = Callable[..., Ended]
SECRET = "hunter2"

SECRETIVE = f"""
from umbel import Umbel

app = Umbel("proj", broker="sqlite:///tasks.db", task_acks_late=True)
app.conf.update(
    result_backend="db+postgresql+psycopg://me:{SECRET}@host/results?password={SECRET}",
    redis_password="{SECRET}",
    database_engine_options={{"connect_args": {{"password": "{SECRET}"}}, "pool_size": 3}},
    broker_write_url="sqlite:///other.db",
)

@app.task
def add(x, y): return x + y
"""


@pytest.mark.filterwarnings("ignore::umbel.exceptions.LaterSetting")
def test_the_text_has_all_and_no_secret(umbel: Run, folder: Path) -> None:
    (folder / "proj.py").write_text(SECRETIVE)
    ended = umbel("-q", "-A", "proj", "report")
    assert ended.code == 0
    assert SECRET not in ended.out + ended.err
    lines = ended.out.splitlines()
    assert f"umbel: {__version__}" in lines
    assert f"python: {platform.python_implementation()} {platform.python_version()}" in lines
    assert f"platform: {platform.platform()}" in lines
    assert f"packages: {', '.join(f'{n} {metadata.version(n)}' for n in NEEDED)}" in lines
    assert f"  sql: sqlalchemy {metadata.version('sqlalchemy')}" in lines
    assert "app: 'proj' with 1 tasks" in lines
    at = lines.index("broker: sqlite:///tasks.db")
    assert lines[at + 1] == "  write_url: sqlite:///other.db"
    assert lines[at + 2].startswith("  can: atomic_follow_ups, ")
    assert lines[at + 3] == "  can't: shared_with_celery, wait_takes"
    assert lines[at + 4].startswith("result backend: db+postgresql+psycopg://me:***")
    settings = lines[lines.index("settings that aren't at their defaults:") + 1 :]
    assert "  task_acks_late: True" in settings
    assert any(line.startswith("  database_engine_options: {") for line in settings)
    assert not any("task_time_limit" in line for line in settings)
    assert list(folder.glob("*.db*")) == []


NEEDED = ("click", "msgspec", "rich")


@pytest.mark.filterwarnings("ignore::umbel.exceptions.LaterSetting")
def test_json_has_the_same(umbel: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "proj.py").write_text(SECRETIVE)
    monkeypatch.setenv("UMBEL_TASK_TRACK_STARTED", "1")
    ended = umbel("-q", "-A", "proj", "report", "--json")
    assert SECRET not in ended.out
    report = json.loads(ended.out)
    assert report["umbel"] == __version__
    assert list(report["packages"]) == list(NEEDED)
    assert report["extras"]["yaml"] == {"pyyaml": metadata.version("pyyaml")}
    assert "all" not in report["extras"]
    assert report["broker"]["features"]["atomic_follow_ups"] is True
    assert report["settings"]["task_acks_late"] is True
    assert report["settings"]["task_track_started"] is True
    assert "UMBEL_TASK_TRACK_STARTED" in report["environment"]
    assert report["app"] == {"name": "proj", "tasks": 1}


def test_no_app_and_no_broker_are_needed(umbel: Run) -> None:
    ended = umbel("report")
    assert (ended.code, ended.err) == (0, "")
    assert "broker: sqlite:///umbel.db" in ended.out


@pytest.mark.parametrize("url", ["amqp://u:hunter2@host", "nothing://u:hunter2@host"])
def test_a_broker_that_cannot_be_is_part_of_the_report(url: str) -> None:
    app = Umbel("x", broker=url, set_as_current=False)
    text = bugreport(app)
    assert "  error: " in text
    assert SECRET not in text
    assert SECRET not in str(collect(app))


def test_results_that_are_disabled() -> None:
    app = Umbel("x", broker="memory://", backend="disabled://", set_as_current=False)
    assert "result backend: disabled" in bugreport(app).splitlines()
    assert app.bugreport() == bugreport(app)
