"""A small application that was written for Celery alone runs unchanged: ``shop``.

Under Celery 5.7 with its workers, the same program prints the same.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.helpers import clean_environment
from tests.worker.harness import until

SHOP = Path(__file__).parent / "shop"


class Terminal:
    """A worker of the shop, for one queue."""

    def __init__(self, folder: Path, queue: str, environment: dict[str, str]) -> None:
        self.log = folder / f"{queue}.log"
        self._out = self.log.open("wb")
        options = ["worker", "-l", "INFO", "-c", "1", "-Q", queue, "-n", f"{queue}@%h"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "umbel", "--as-celery", "-A", "proj", *options],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=self._out,
        )

    def stop(self) -> int:
        self.process.terminate()
        try:
            return self.process.wait(30)
        finally:
            self.process.kill()
            self._out.close()


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[tuple[Path, dict[str, str], list[Terminal]]]:
    """The shop in a folder of its own, its environment, and its two workers."""
    folder = tmp_path / "shop"
    shutil.copytree(SHOP, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "file.txt").write_text("hi")
    environment = clean_environment(
        SHOP_BROKER="sqlite:///shop.db", SHOP_RESULTS="sqlite:///results.db"
    )
    workers = [Terminal(folder, queue, environment) for queue in ("orders", "mail")]
    try:
        yield folder, environment, workers
    finally:
        for worker in workers:
            worker.process.kill()
            worker.process.wait(10)


def test_it_runs_unchanged(shop: tuple[Path, dict[str, str], list[Terminal]]) -> None:
    folder, environment, workers = shop
    for worker in workers:
        until(lambda: " ready." in worker.log.read_text(), what=f"{worker.log} says ready")  # noqa: B023
    done = subprocess.run(
        [sys.executable, "-m", "umbel.compat.celery", "order.py", "file.txt"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    logs = {worker.log.stem: worker.log.read_text() for worker in workers}
    assert done.returncode == 0, (done.stderr, logs)
    said = json.loads(done.stdout)
    assert "'Workflows'" in said.pop("group")  # what a Celery has, and this release hasn't
    assert said == {
        "chain": [100, 10, 6],
        "pipe": 3,
        "link": [2, "a letter by mail"],
        "letter": "one by mail",
        "retry": {"item": "book", "retries": 2, "name": "proj.tasks.reserve"},
        "hopeless": "ConnectionError: never there",
        "failed": ["ValueError: can't pay 0", "FAILURE", False, False],
        "later": [3, 4],
        "flaky": "hi",
        "progress": {"done": 1, "total": 2},
        "slow": "stopped",
        "refuse": "Reject: ('not for us', False)",
        "by name": [{"paid": 5}, True, "shop.pay"],
        "signature": 6,
        "timeout": True,
    }
    assert [worker.stop() for worker in workers] == [0, 0]
    orders, mail = (worker.log.read_text() for worker in workers)
    assert "a process of the shop is up" in orders
    assert "a process of the shop is up" in mail
    assert "]: adding 1 and 5" in orders  # get_task_logger, in the tasks' format
    assert "on_failure of shop.pay: can't pay 0" in orders
    assert "failed: shop.pay: ValueError" in orders
    assert "postrun of proj.tasks.progress: IGNORED" in orders
    assert "Task proj.mail.tasks.letter[" in mail  # by the route, and as a link
    assert mail.count("postrun of proj.mail.tasks.letter: SUCCESS") == 2
    assert "Task proj.mail.tasks" not in orders
