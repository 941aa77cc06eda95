"""Waiting and waking between processes: doorbells, and what may become of them."""

from __future__ import annotations

import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from umbel.brokers.sqlite import SqliteBroker
from umbel.brokers.sqlite.doorbell import ANY, Doorbells, result_tag
from umbel.message import Result
from umbel.ports import BrokerOptions, Revocation
from umbel.stores.sqlite import SqliteStore
from umbel.testing.contract.rig import QUEUE, Background, eventually, posting

pytestmark = pytest.mark.skipif(
    not hasattr(socket, "AF_UNIX"), reason="without such sockets waiters look every 30 ms"
)

_WAITER = """
import sys, time
from umbel.brokers.sqlite import SqliteBroker
from umbel.message import How, Settlement
from umbel.ports import BrokerOptions
broker = SqliteBroker(sys.argv[1], BrokerOptions())
broker.open()
broker.enlist("run", "run#1", b"")
print("open", flush=True)
number, settlements = 0, []
while True:
    number += 1
    turn = broker.turn("run#1", number, queues=["work"], settlements=settlements, limit=8)
    settlements = [Settlement(delivery.lease, How.ACK) for delivery in turn.deliveries]
    for delivery in turn.deliveries:
        print(delivery.message.id, time.time(), time.process_time(), flush=True)
    if not settlements:
        broker.wait(["work"], 60.0)
"""


@contextmanager
def _waiter(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A worker of its own process, which says what it takes and when."""
    command = [sys.executable, "-c", _WAITER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        yield process
        process.kill()


def _line(process: subprocess.Popen[str]) -> tuple[str, float, float]:
    """The next message that the waiter took: its id, when, its CPU seconds until then."""
    assert process.stdout is not None
    task_id, at, cpu = process.stdout.readline().split()
    return task_id, float(at), float(cpu)


def _bells(path: Path) -> list[str]:
    directory = Path(f"{path}-bells")
    return os.listdir(directory) if directory.exists() else []


def _is_waiting(path: Path) -> bool:
    return any(name.startswith("w") for name in _bells(path))


@pytest.fixture(params=["short", "long"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Also one that is longer than a socket's address may be."""
    directory = tmp_path / ("d" * 120 if request.param == "long" else "d")
    directory.mkdir()
    return directory / "umbel.db"


@pytest.fixture
def broker(path: Path) -> Iterator[SqliteBroker]:
    broker = SqliteBroker(path, BrokerOptions())
    broker.open()
    broker.declare([QUEUE])
    broker.enlist("client", None, b"")
    yield broker
    broker.close()


def test_a_waiter_in_another_process_is_woken_at_once(broker: SqliteBroker, path: Path) -> None:
    delays = []
    with _waiter(path) as process:
        for n in range(15):
            eventually(lambda: _is_waiting(path))
            sent_at = time.time()
            broker.publish([posting(str(n))])
            task_id, taken_at, _ = _line(process)
            assert task_id == str(n)
            delays.append(taken_at - sent_at)
    assert statistics.median(delays) < 0.02


def test_an_idle_waiter_costs_next_to_nothing(broker: SqliteBroker, path: Path) -> None:
    with _waiter(path) as process:
        broker.publish([posting("first")])
        _, started_at, before = _line(process)
        broker.publish([posting("last", due_at=time.time() + 2.0)])
        broker.publish([posting(str(n), due_at=time.time() + 1000 + n) for n in range(1000)])
        _, ended_at, after = _line(process)
    assert ended_at - started_at >= 1.9
    assert (after - before) / (ended_at - started_at) < 0.01


def test_an_earlier_due_time_wakes_whoever_sleeps_until_a_later_one(
    broker: SqliteBroker, path: Path
) -> None:
    broker.publish([posting("later", due_at=time.time() + 3600)])
    with _waiter(path) as process:
        eventually(lambda: _is_waiting(path))
        due_at = time.time() + 0.2
        broker.publish([posting("soon", due_at=due_at)])
        task_id, taken_at, _ = _line(process)
    assert task_id == "soon"
    assert 0 <= taken_at - due_at < 0.5


def test_a_frozen_waiter_is_handed_nothing_and_holds_up_nobody(
    broker: SqliteBroker, path: Path
) -> None:
    with _waiter(path) as process:
        eventually(lambda: _is_waiting(path))
        process.send_signal(signal.SIGSTOP)
        started = time.monotonic()
        for n in range(400):  # more than a socket takes
            broker.publish([posting(str(n))])
        assert time.monotonic() - started < 5.0
        assert broker.queues()[0].ready == 400
        assert _is_waiting(path)
        process.send_signal(signal.SIGCONT)
        assert _line(process)[0] == "0"


def test_a_dead_waiters_bell_is_removed_by_who_rings_it(broker: SqliteBroker, path: Path) -> None:
    with _waiter(path) as process:
        eventually(lambda: _is_waiting(path))
        process.kill()
    assert _is_waiting(path)
    broker.publish([posting("a")])
    assert not _is_waiting(path)


def test_a_dead_process_s_idle_bell_is_removed_by_who_hangs_another(
    broker: SqliteBroker, path: Path
) -> None:
    with _waiter(path) as process:
        eventually(lambda: _is_waiting(path))
        (name,) = _bells(path)
        process.kill()
    directory = Path(f"{path}-bells")
    (directory / name).rename(directory / f"-{name.partition('.')[2]}")
    broker.wait([QUEUE], 0.01)
    assert len(_bells(path)) == 1
    broker.close()
    assert _bells(path) == []


def test_a_waiter_whose_bell_was_removed_gets_another(broker: SqliteBroker, path: Path) -> None:
    broker.wait([QUEUE], 0.01)
    for name in _bells(path):
        (Path(f"{path}-bells") / name).unlink()
    os.rmdir(f"{path}-bells")
    waiting = Background(lambda: broker.wait([QUEUE], 60.0))
    eventually(lambda: _is_waiting(path))
    other = SqliteBroker(path, BrokerOptions())
    other.open()
    started = time.monotonic()
    other.publish([posting("a")])
    assert waiting.result() is True
    assert time.monotonic() - started < 0.5
    other.close()


def test_a_revocation_wakes_even_if_it_came_before_the_wait(
    broker: SqliteBroker, path: Path
) -> None:
    other = SqliteBroker(path, BrokerOptions())
    other.open()
    other.revoke([Revocation("x")])
    assert broker.wait([QUEUE], 60.0) is True
    broker.revoked(0)
    assert broker.wait([QUEUE], 0.01) is False
    waiting = Background(lambda: broker.wait([QUEUE], 60.0))
    eventually(lambda: _is_waiting(path))
    other.revoke([Revocation("y")])
    assert waiting.result() is True
    other.close()


def test_only_those_are_rung_who_wait_for_it(broker: SqliteBroker, path: Path) -> None:
    bells = Doorbells(str(path))
    with (
        bells.waiting("r", result_tag("mine")) as mine,
        bells.waiting("r", result_tag("another's")) as others,
        bells.waiting("r", ANY) as many,
        bells.waiting("w", "1") as worker,
    ):
        bells.ring({"r": {result_tag("mine")}})
        assert mine.sleep(10.0)
        assert many.sleep(10.0)
        assert not others.sleep(0.0)
        assert not worker.sleep(0.0)
        bells.ring({"r": None, "w": {"2"}})
        assert others.sleep(10.0)
        assert not worker.sleep(0.0)
    bells.close()


def test_a_result_wakes_its_caller_at_once(broker: SqliteBroker, path: Path) -> None:
    store, other = SqliteStore(path), SqliteStore(path)
    store.open()
    other.open()
    waiting = Background(lambda: store.wait(["mine"], 60.0))
    eventually(lambda: any(name.startswith("r") for name in _bells(path)))
    started = time.monotonic()
    other.put([Result("mine", "SUCCESS", b"{}")])
    waiting.result()
    assert time.monotonic() - started < 0.5
    store.close()
    other.close()


def test_without_sockets_a_waiter_looks_often_enough(
    broker: SqliteBroker, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Windows: the module's view of the platform is all that changes."""
    monkeypatch.delattr(socket, "AF_UNIX")
    waiting = Background(lambda: broker.wait([QUEUE], 60.0))
    other = SqliteBroker(path, BrokerOptions())
    other.open()
    other.publish([posting("a")])
    assert waiting.result() is True
    assert _bells(path) == []
    other.close()


_WITHOUT_FILES = """
import os, resource, sys, threading
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
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
taken = []
try:
    while True:
        taken.append(os.dup(0))
except OSError:
    pass
assert broker.wait(["work"], 0.1) is False
store.wait(["x"], 0.1)
threading.Timer(0.1, lambda: broker.publish([posting("a")])).start()
assert broker.wait(["work"], 60.0) is True
for each in taken:
    os.close(each)
broker.close()
store.close()
"""


def test_a_process_that_may_open_no_more_files_looks_instead(path: Path) -> None:
    answer = subprocess.run(
        [sys.executable, "-c", _WITHOUT_FILES, str(path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert answer.stderr == ""
