"""The README's three lines for Redis, on a server of the test's own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from tests.servers import Redis, redis
from tests.worker.harness import until

from umbel import Umbel

__all__ = ["redis"]

README = (Path(__file__).parents[2] / "README.md").read_text()
USUAL = "redis://localhost:6379/0"


def test_a_worker_on_redis_in_three_lines(redis: Redis, tmp_path: Path) -> None:
    redis.flush()
    [block] = re.findall(r"```sh no-run: it needs a Redis server.*?\n(.*?)```", README, re.DOTALL)
    install, export, start = block.splitlines()
    assert install == "pip install 'umbel[redis]'"
    assert export.endswith(USUAL)
    module = re.search(r"```python tasks.py\n(.*?)```", README, re.DOTALL)
    assert module is not None
    (tmp_path / "tasks.py").write_text(module[1])
    (tmp_path / "three.txt").write_text("one two three")
    commands = f"{export.replace(USUAL, redis.url)}\nexec {start}\n"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with (tmp_path / "worker.log").open("wb") as log:
        worker = subprocess.Popen(
            ["sh", "-c", commands],
            cwd=tmp_path,
            env={**os.environ, "PATH": path},
            stdout=log,
            stderr=log,
        )
    try:
        until(lambda: " ready." in (tmp_path / "worker.log").read_text(), what="the worker")
        with Umbel("client", broker=redis.url, set_as_current=False) as client:
            sent = client.send_task("tasks.word_count", ["three.txt"])
            assert sent.get(timeout=20) == 3
    finally:
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(30) == 0
