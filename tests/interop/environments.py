"""A virtual environment for each Celery that the tests run, made when first needed.

They lie in ``.venv-interop`` beside ``.venv`` and hold what ``celery-<version>.txt`` pins.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
FOLDER: Final = HERE.parents[1] / ".venv-interop"


def python_with(celery: str) -> Path:
    """The interpreter that has Celery of this version, as ``"5.7"``."""
    folder, pins = FOLDER / celery, HERE / f"celery-{celery}.txt"
    python, stamp = folder / "bin" / "python", folder / "installed.txt"
    wanted = f"{sys.version}\n{FOLDER}\n{pins.read_text()}"
    FOLDER.mkdir(exist_ok=True)
    with (FOLDER / f"{celery}.lock").open("w") as lock:
        # Test runs beside each other: one of them makes it.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text() != wanted:
            shutil.rmtree(folder, ignore_errors=True)
            _make(folder, python, pins)
            stamp.write_text(wanted)
    return python


def _make(folder: Path, python: Path, pins: Path) -> None:
    if uv := shutil.which("uv"):
        _run(uv, "venv", "--python", sys.executable, str(folder))
        _run(uv, "pip", "install", "--python", str(python), "--requirement", str(pins))
    else:
        _run(sys.executable, "-m", "venv", str(folder))
        _run(str(python), "-m", "pip", "install", "--requirement", str(pins))


def _run(*command: str) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 0, (
        f"{' '.join(command)} ended with {done.returncode}; these tests run real Celery, which it "
        f"installs:\n{done.stdout}{done.stderr}"
    )
