"""An app in a file, and a way to run commands on it in this process."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.cli.helpers import Ended
from tests.servers import redis

from umbel import Umbel
from umbel.cli import main

__all__ = ["redis"]

PROJ = """
from umbel import Umbel

app = Umbel("proj", broker="sqlite:///tasks.db")

@app.task
def add(x, y):
    return x + y

@app.task
def boom():
    raise ValueError("no good")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory: empty but for ``proj.py``. Modules imported from it are forgotten."""
    (tmp_path / "proj.py").write_text(PROJ)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    for name in ("UMBEL_APP", "UMBEL_BROKER", "UMBEL_BROKER_URL", "CELERY_BROKER_URL"):
        monkeypatch.delenv(name, raising=False)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def umbel(folder: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """Runs one command in this process, in `folder`."""

    def run(*arguments: str) -> Ended:
        capfd.readouterr()
        code = main(arguments)
        out, err = capfd.readouterr()
        return Ended(code, out, err)

    return run


@pytest.fixture
def app(folder: Path) -> Iterator[Umbel]:
    """A client of the broker that ``proj`` uses."""
    with Umbel("client", broker="sqlite:///tasks.db", set_as_current=False) as client:
        client.broker.declare(["celery"])
        yield client
