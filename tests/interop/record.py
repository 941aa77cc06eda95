"""Writes down, byte for byte, what Celery stores as results, for tests that run without it.

python -m tests.interop.record
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import redis
from tests.interop.environments import python_with
from tests.interop.sides import FLEET
from tests.servers import Redis

RECORDED = Path(__file__).parents[1] / "stores" / "celery_5_7_redis"


def main() -> None:
    server = Redis()
    try:
        server.start()
        subprocess.run([python_with("5.7"), FLEET / "store.py", server.url], check=True)
        with redis.Redis(port=server.port) as client:
            for name in ("success", "failure", "started", "extended"):
                record = client.get(f"celery-task-meta-{name}")
                assert isinstance(record, bytes)
                (RECORDED / f"{name}.json").write_bytes(record)
    finally:
        server.remove()


if __name__ == "__main__":
    main()
