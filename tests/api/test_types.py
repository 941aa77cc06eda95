"""What type checkers say of calls: the arguments of `delay` are those of the function.

``typed.txt`` is the program that they check; each line that ends in ``# error`` must be one, and
no other may. It isn't a ``.py`` file, since the project itself has to be clean.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("typed.txt")
ROOT = SOURCE.parents[2]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    return Path(shutil.copy(SOURCE, tmp_path / "typed.py"))


def expected() -> set[int]:
    lines = SOURCE.read_text().splitlines()
    return {number for number, line in enumerate(lines, 1) if line.endswith("# error")}


def test_mypy_finds_exactly_the_wrong_calls(program: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", "", "--cache-dir", str(program.parent),
         "--no-error-summary", "--follow-imports=silent", str(program)],
        capture_output=True, text=True, cwd=program.parent, check=False,
    )  # fmt: skip
    found = {int(line) for line in re.findall(r"typed\.py:(\d+): error", run.stdout)}
    assert found == expected(), run.stdout + run.stderr


def test_pyright_finds_exactly_the_wrong_calls(program: Path) -> None:
    (program.parent / "pyrightconfig.json").write_text(json.dumps({"include": ["typed.py"]}))
    run = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "-p", str(program.parent),
         "--pythonpath", sys.executable],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    found = {
        each["range"]["start"]["line"] + 1
        for each in json.loads(run.stdout)["generalDiagnostics"]
        if each["severity"] == "error"
    }
    assert found == expected(), run.stdout
