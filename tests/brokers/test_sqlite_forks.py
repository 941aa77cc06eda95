"""Threads that send while others fork: each fork waits for its moment, and nobody for ever."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")

_OPENING = """
import os, sys, threading
from umbel.brokers.sqlite import SqliteBroker
from umbel.ports import BrokerOptions
from umbel.stores.sqlite import SqliteStore
from umbel.testing.contract.rig import posting
broker = SqliteBroker(sys.argv[1], BrokerOptions())
broker.open()
broker.declare(["work"])
broker.enlist("run", None, b"")
store = SqliteStore(sys.argv[1])
store.open()

def at_once(*bodies):
    threads = [threading.Thread(target=body) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""

_SENDING_AND_FORKING = """
def send(name):
    for n in range(100):
        broker.publish([posting(f"{name}{n}")])
        store.wait(["x"], 0.0001)

def fork():
    for n in range(30):
        child = os.fork()
        if not child:
            broker.publish([posting("child")])
            at_once(*[lambda: store.wait(["x"], 0.0001)] * 2)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0

at_once(lambda: send("a"), lambda: send("b"), fork, fork, fork)
"""

_FORKING_WITHIN_A_TRANSACTION = """
inside = threading.Event()

def fork():
    child = os.fork()
    if not child:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0

def within():  # as a signal handler does that comes in between
    with broker.database.write():
        inside.set()
        waiting.wait()
        fork()

class Waits:  # a lock that says when the other thread's fork has come to it
    def __init__(self, lock):
        self.lock = lock
    def acquire(self, *args, **options):
        waiting.set()
        return self.lock.acquire(*args, **options)
    def __getattr__(self, name):
        return getattr(self.lock, name)
    def __enter__(self):
        return self.acquire()
    def __exit__(self, *args):
        self.lock.release()

def outside():
    inside.wait()
    broker.database._lock = Waits(broker.database._lock)
    fork()

waiting = threading.Event()
at_once(within, outside)
"""

_SEEN = """
print(broker.queues()[0].ready)
store.close()
broker.close()
"""


def _run(body: str, path: Path) -> str:
    answer = subprocess.run(
        # Python 3.12 and later warn of every fork beside threads.
        [sys.executable, "-W", "ignore", "-c", _OPENING + body + _SEEN, str(path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert answer.stderr == ""
    return answer.stdout.strip()


def test_threads_may_send_and_fork_at_once(tmp_path: Path) -> None:
    assert _run(_SENDING_AND_FORKING, tmp_path / "a.db") == str(2 * 100 + 3 * 30)


def test_a_fork_within_a_transaction_waits_for_no_other_fork(tmp_path: Path) -> None:
    assert _run(_FORKING_WITHIN_A_TRANSACTION, tmp_path / "a.db") == "0"
