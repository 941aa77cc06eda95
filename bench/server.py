"""The Redis server of a run: on a port of its own, without persistence, gone afterwards."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Final, Self

import redis

PARKED: Final = 1
"""The database that tasks are sent to before they are to be seen by a worker, which is in 0."""

# Copies what waits in database 1 into database 0, in one step.
# ARGV: names of keys. A list, a hash, a sorted set or a stream each; what isn't there is passed by.
_RELEASE: Final = """
local call = redis.call
for _, name in ipairs(ARGV) do
  call('SELECT', 1)
  local kind, items = call('TYPE', name).ok, {}
  if kind == 'list' then items = call('LRANGE', name, 0, -1)
  elseif kind == 'hash' then items = call('HGETALL', name)
  elseif kind == 'stream' then items = call('XRANGE', name, '-', '+') end
  call('DEL', name)
  call('SELECT', 0)
  for first = 1, #items, 1000 do
    local last = math.min(first + 999, #items)
    if kind == 'list' then call('RPUSH', name, unpack(items, first, last))
    elseif kind == 'hash' then call('HSET', name, unpack(items, first, last))
    else
      for each = first, last do call('XADD', name, '*', unpack(items[each][2])) end
    end
  end
end
"""


class NoServer(Exception):
    """There is no Redis to measure with."""


class RedisServer:
    """Started in a `with`. Raises `NoServer`."""

    def __init__(self, folder: Path) -> None:
        program = shutil.which("redis-server") or shutil.which("valkey-server")
        if program is None:
            raise NoServer(
                "redis-server isn't installed, which this measures with; install it, on Debian: "
                "apt-get install redis-server"
            )
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._log = folder / "redis.log"
        self._command = [
            program, "--bind", "127.0.0.1", "--port", str(self.port), "--save", "",
            "--appendonly", "no", "--dir", str(folder),
        ]  # fmt: skip

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self.client = redis.Redis(port=self.port)
        deadline = time.monotonic() + 20
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise NoServer(f"Redis didn't start: {self._log.read_text()[-2000:]}")
            time.sleep(0.02)
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self._process.kill()
        self._process.wait()

    def _answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except redis.ConnectionError:
            return False

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def version(self) -> str:
        return str(self.client.info("server")["redis_version"])

    def url(self, database: int = 0) -> str:
        return f"redis://127.0.0.1:{self.port}/{database}"

    def release(self, *keys: str) -> None:
        """What was sent to these keys of the parked database is there for the worker, at once."""
        self.client.eval(_RELEASE, 0, *keys)

    def keys(self) -> set[str]:
        """Of the worker's database."""
        return {key.decode() for key in self.client.scan_iter(count=10_000)}
