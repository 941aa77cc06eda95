"""Web processes are forked after the app has sent something: each has connections of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from tests.servers import Redis

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")

_PARENT_AND_CHILDREN_SEND = """
import os, sys
from umbel import Umbel
app = Umbel("web", broker=sys.argv[1])
app.send_task("before")
children = []
for _ in range(4):
    child = os.fork()
    if not child:
        for _ in range(50):
            app.send_task("child")
        os._exit(0)
    children.append(child)
for _ in range(50):
    app.send_task("parent")
assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
app.send_task("after")
[queue] = app.broker.queues()
print(queue.ready)
"""


def test_forked_processes_send_at_once(redis_server: Redis) -> None:
    redis_server.flush()
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _PARENT_AND_CHILDREN_SEND, redis_server.url],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("252\n", "")
