"""`autodiscover_tasks`: packages, their modules, and when they are imported."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from umbel import Umbel
from umbel.exceptions import ImproperlyConfigured


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: Any) -> list[str]:
    """Three packages: one with tasks, one with jobs, one whose tasks can't be imported."""
    monkeypatch.syspath_prepend(tmp_path)
    names = []
    for part, files in (("a", ["tasks"]), ("b", ["jobs"]), ("c", ["tasks"])):
        name = f"{request.node.originalname}_{part}"
        folder = tmp_path / name
        folder.mkdir()
        (folder / "__init__.py").write_text("")
        for file in files:
            text = "from umbel import shared_task\n@shared_task\ndef found(): pass\n"
            (folder / f"{file}.py").write_text(text if part != "c" else "import no_such_module_c\n")
        names.append(name)
    return names


def test_modules_are_imported_when_a_worker_loads_them(app: Umbel, packages: list[str]) -> None:
    a, b, _ = packages
    asked = []

    def lazily() -> list[str]:
        asked.append(1)
        return [b]

    app.autodiscover_tasks([a, b])
    app.autodiscover_tasks(lazily, related_name="jobs")
    assert (a in sys.modules, asked) == (False, [])
    app.load_modules()
    assert {f"{a}.tasks.found", f"{b}.jobs.found"} <= set(app.tasks)
    assert f"{b}.tasks" not in sys.modules


def test_force_and_packages_alone(app: Umbel, packages: list[str]) -> None:
    a, b, c = packages
    app.autodiscover_tasks([b], related_name=None, force=True)
    assert (b in sys.modules, f"{b}.jobs" in sys.modules) == (True, False)
    app.autodiscover_tasks(a, force=True)
    assert f"{a}.tasks.found" in app.tasks
    with pytest.raises(ModuleNotFoundError, match="no_such_module_c"):
        app.autodiscover_tasks([c], force=True)
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        app.autodiscover_tasks(["no_such_package"], force=True)


def test_packages_have_to_be_named(app: Umbel) -> None:
    with pytest.raises(ImproperlyConfigured, match="names no packages"):
        app.autodiscover_tasks()
