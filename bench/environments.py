"""A virtual environment for each library that is measured beside Umbel, made when first needed.

They lie in ``.venv-bench``, under the version of Python that runs this, which is theirs too, and
hold what ``requirements/<library>.txt`` pins: what the library's documentation installs for Redis.
With ``+hiredis`` behind a library's name its environment also has that parser, which speeds
redis-py up, and which Umbel's own installation brings. Umbel and the floor run in the environment
that runs this.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
FOLDER: Final = ROOT / ".venv-bench" / f"{sys.version_info.major}.{sys.version_info.minor}"
OWN: Final = frozenset({"umbel", "floor"})
"""What is measured in this very environment."""


class NoEnvironment(Exception):
    """The libraries couldn't be installed; the message is the installer's last words."""


_failed: dict[str, NoEnvironment] = {}
"""What couldn't be installed isn't tried again in each round."""


def python_of(library: str) -> Path:
    """The interpreter that has `library`. Raises `NoEnvironment`."""
    if library in OWN:
        return Path(sys.executable)
    folder = FOLDER / library
    python, stamp = folder / "bin" / "python", folder / "installed.txt"
    pinned = _pinned(library)
    wanted = "\n".join([sys.version, *pinned])
    if not stamp.exists() or stamp.read_text() != wanted:
        if library in _failed:
            raise _failed[library]
        print(f"installing {library}", file=sys.stderr, flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        try:
            _run(sys.executable, "-m", "venv", str(folder))
            _run(str(python), "-m", "pip", "install", "--quiet", *pinned)
        except NoEnvironment as error:
            _failed[library] = error
            raise
        stamp.write_text(wanted)
    return python


def versions_of(library: str) -> str:
    """As in ``celery 5.7.0, kombu 5.7.0, redis 8.1.0``: what is pinned, as it is installed."""
    program = (
        "import sys\n"
        "from importlib.metadata import version\n"
        "print(', '.join(f'{name} {version(name)}' for name in sys.argv[1:]))\n"
    )
    names = ["redis", "hiredis", "msgspec"]
    if library not in OWN:
        names = [each.partition("==")[0] for each in _pinned(library)]
    done = subprocess.run(
        [python_of(library), "-c", program, *names], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def _pinned(library: str) -> list[str]:
    """As in ``celery==5.7.0``."""
    files = [ROOT / "bench" / "requirements" / f"{name}.txt" for name in library.split("+")]
    return [line for file in files for line in file.read_text().splitlines()]


def _run(*command: str) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise NoEnvironment(said[-1] if said else f"{command[0]} ended with {done.returncode}")
