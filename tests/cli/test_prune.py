"""``umbel prune``: results by age and count, dead letters by their limits."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.cli.helpers import Ended, bury

from umbel import Umbel
from umbel.message import Result
from umbel.states import FAILURE, SUCCESS
from umbel.stored import encode_meta

Run = Callable[..., Ended]
URLS = [None, "sqlite:///results.db", "db+sqlite:///results.db", "file://results"]

pytestmark = pytest.mark.filterwarnings("ignore::umbel.exceptions.NoWorkerYet")


def put(app: Umbel, task_id: str, age: float, state: str = SUCCESS) -> None:
    """A result of a task that ended `age` seconds ago and lives for 100 s."""
    ended = app.clock.wall() - age
    done = datetime.fromtimestamp(ended, UTC).isoformat()
    assert app.store is not None
    app.store.put(
        [Result(task_id, state, encode_meta(task_id, state, 1, date_done=done), ended + 100)]
    )


@pytest.fixture(params=URLS, ids=str)
def store_url(request: pytest.FixtureRequest, folder: Path, app: Umbel) -> str | None:
    url: str | None = request.param
    text = f"\napp.conf.result_expires = 100\napp.conf.result_backend = {url!r}\n"
    (folder / "proj.py").write_text((folder / "proj.py").read_text() + text)
    app.conf.update(result_backend=url, result_expires=100)
    return url


def left(app: Umbel, *task_ids: str) -> set[str]:
    assert app.store is not None
    return {record.task_id for record in app.store.get(task_ids) if record is not None}


@pytest.mark.usefixtures("store_url")
def test_what_is_too_old_goes(umbel: Run, app: Umbel) -> None:
    put(app, "old", 101)
    put(app, "new", 1)
    assert umbel("-A", "proj", "prune").out == "1 result and 0 dead letters deleted\n"
    assert left(app, "old", "new") == {"new"}


@pytest.mark.setting("result_keep")
@pytest.mark.usefixtures("store_url")
def test_result_keep_keeps_the_newest_successes(umbel: Run, app: Umbel, folder: Path) -> None:
    for age in range(5):
        put(app, f"m{age}", 10.0 * age)
    put(app, "failed", 50, FAILURE)
    assert umbel("-A", "proj", "prune").out == "0 results and 0 dead letters deleted\n"
    (folder / "proj.py").write_text((folder / "proj.py").read_text() + "app.conf.result_keep = 2\n")
    del_proj()
    assert umbel("-A", "proj", "prune").out == "3 results and 0 dead letters deleted\n"
    assert left(app, "m0", "m1", "m2", "m3", "m4", "failed") == {"m0", "m1", "failed"}
    assert (
        umbel("-A", "proj", "prune", "--keep", "0").out == "2 results and 0 dead letters deleted\n"
    )


def del_proj() -> None:
    """So that the next command sees what has become of it."""
    del sys.modules["proj"]


def test_dead_letters_go_by_their_limits(umbel: Run, app: Umbel, folder: Path) -> None:
    for task_id in ("a", "b", "c"):
        app.send_task("proj.add", task_id=task_id)
        bury(app, task_id)
    assert umbel("-A", "proj", "prune").out == "0 results and 0 dead letters deleted\n"
    text = "\napp.conf.dead_letters_max_count = 1\n"
    (folder / "proj.py").write_text((folder / "proj.py").read_text() + text)
    del_proj()
    assert umbel("-A", "proj", "prune").out == "0 results and 2 dead letters deleted\n"
    assert [letter.id for letter in app.dead.list()] == ["c"]


def test_without_a_store_only_dead_letters_are_looked_at(umbel: Run, app: Umbel) -> None:
    ended = umbel("-b", "sqlite:///tasks.db", "--result-backend", "disabled://", "prune")
    assert ended.out == "0 results and 0 dead letters deleted\n"
