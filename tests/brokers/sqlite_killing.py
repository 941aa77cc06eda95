"""A server of deaths: ``python sqlite_killing.py DIRECTORY``.

Reads lines ``OPERATION N PATH`` from stdin; for each it forks a child that opens the file PATH,
and kills itself by SIGKILL just before the N-th statement of the operation. Answers each line
with the child's wait status: -9, or 0 where the operation ended before it came to N statements.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from umbel.brokers.sqlite import SqliteBroker
from umbel.clock import ManualClock
from umbel.exchanges import Binding
from umbel.message import Dead, How, Loss, Lost, Message, Posting, Result, Settlement
from umbel.ports import BrokerOptions, Revocation
from umbel.stores.sqlite import SqliteStore

START: Final = 1_800_000_000.0
NOW: Final = START + 42.0
"""When the operations run; the template is made from `START` on."""
OPTIONS: Final = BrokerOptions(dead_max_count=3)
QUEUES: Final = ("work", "other")
EXPIRED: Final = START + 10


NEWS: Final = (
    Binding("work", "news", "topic", "sport.#"),
    Binding("other", "news", "topic", "#.goal"),
)


def own(run: str) -> Binding:
    """Of the queue that ends with this run."""
    return Binding(f"own of {run}", f"to {run}", "fanout")


def posting(
    task_id: str, queue: str = "work", due_at: float | None = None, exchange: str = ""
) -> Posting:
    message = Message(
        body=b"[[],{},{}]",
        content_encoding="utf-8",
        content_type="application/json",
        headers={"id": task_id, "task": "tasks.add"},
        properties={},
    )
    return Posting(message, queue, exchange, due_at=due_at)


def result(task_id: str, expires_at: float | None = None) -> Result:
    return Result(task_id, "SUCCESS", b"{}", expires_at)


class Pair:
    """A broker and a store on one file at one moment."""

    def __init__(self, path: Path, now: float = NOW) -> None:
        self.clock = ManualClock(now)
        self.broker = SqliteBroker(path, OPTIONS, clock=self.clock)
        self.store = SqliteStore(path, clock=self.clock)

    def open(self) -> None:
        self.broker.open()
        self.store.open()

    def close(self) -> None:
        self.store.close()
        self.broker.close()

    def trace(self, call: Callable[[str], object] | None) -> None:
        self.broker.database.set_trace(call)
        self.store.database.set_trace(call)


def make_template(path: Path) -> None:
    """A file in which every operation has something to do."""
    pair = Pair(path, START)
    pair.open()
    broker, store, clock = pair.broker, pair.store, pair.clock
    broker.declare(QUEUES)
    broker.enlist("dying", "dying#1", b"its options")
    broker.enlist("run", "run#1", b"options")
    broker.enlist("run", "run#2", b"options")
    broker.declare([], NEWS)
    for run in ("dying", "run"):
        broker.declare([], [own(run)], run=run)
        broker.publish([posting(f"own{n}", "", exchange=f"to {run}") for n in range(3)])
        broker.publish([posting("own3", "", START + 9000, exchange=f"to {run}")])
        broker.enlist(run, f"{run}#9", b"")
        broker.turn(f"{run}#9", 1, queues=[f"own of {run}"], limit=2, begin=1)
    broker.publish([posting(f"d{n}") for n in range(3)])
    broker.turn("dying#1", 1, queues=QUEUES, limit=3, begin=1)
    broker.publish([posting(f"x{n}") for n in range(4)])
    broker.turn("run#2", 1, queues=QUEUES, limit=4)
    dead = [Settlement(n, How.ACK, dead=Dead("failed", "ValueError")) for n in (1, 2, 3)]
    broker.turn("run#2", 2, settlements=dead)
    broker.publish([posting(f"m{n}") for n in range(6)])
    broker.turn("run#1", 1, queues=QUEUES, limit=6, begin=2)
    broker.publish([posting("ready"), posting("ready", "other"), posting("also")])
    broker.publish([posting("soon", due_at=START + 40), posting("later", due_at=NOW + 900)])
    broker.revoke([Revocation("old"), Revocation("x1"), Revocation("also")])
    broker.acquire("site", "run", 3600.0)
    broker.acquire("over", "run", 1.0)
    broker.take("calls", 5.0, 0.1, 5.0)
    broker.count("open", 1, 3600.0)
    store.put([result("r1"), result("r2", EXPIRED)])
    for _ in range(3):  # the dying run falls silent, the other one doesn't
        clock.advance(9.5)
        broker.beat("run")
    pair.close()


def open_again(pair: Pair) -> None:
    pair.close()
    pair.broker.open()


def settle_all_ways(pair: Pair) -> None:
    pair.broker.turn(
        "run#1",
        2,
        queues=QUEUES,
        settlements=[
            Settlement(
                1, How.ACK, (posting("then"), posting("wait", due_at=NOW + 9)), None, result("m0")
            ),
            Settlement(2, How.REJECT, dead=Dead("refused", "Reject"), result=result("m1")),
            Settlement(3, How.REQUEUE, note="the process died"),
            Settlement(4, How.RELEASE, delay=5.0, unknown=True),
            Settlement(5, How.RELEASE, redelivered=True),
            Settlement(6, How.ACK, (posting("nowhere", "nowhere"),)),
            Settlement(99, How.ACK),
        ],
        begin=7,
        limit=3,
    )


def abandon(pair: Pair) -> None:
    pair.broker.abandon(
        "run#1",
        decided=[Settlement(1, How.ACK, (posting("then"),), None, result("m0"))],
        running=dict.fromkeys([2, 3], Lost(Loss.PROCESS, "signal 9")),
    )


OPERATIONS: Final[dict[str, Callable[[Pair], object]]] = {
    "open": open_again,
    "declare": lambda pair: pair.broker.declare(["work", "new", "newer"]),
    "declare bindings": lambda pair: pair.broker.declare(
        ["new"], [NEWS[0], Binding("work", "news", "topic", "new"), Binding("new", "x", "headers")]
    ),
    "declare own queue": lambda pair: pair.broker.declare(
        ["mine"], [Binding("mine", "x", "fanout")], run="run"
    ),
    "unbind": lambda pair: pair.broker.unbind([*NEWS, own("nobody")]),
    "publish to an exchange": lambda pair: pair.broker.publish(
        [posting("p", "sport.goal", exchange="news"), posting("q", "art.goal", exchange="news")]
    ),
    "publish one": lambda pair: pair.broker.publish([posting("p")]),
    "publish three": lambda pair: pair.broker.publish(
        [posting("p"), posting("q", "other"), posting("s", due_at=NOW + 1)]
    ),
    "enlist": lambda pair: pair.broker.enlist("third", "third#1", b"info"),
    "turn that settles": settle_all_ways,
    "turn that leases": lambda pair: pair.broker.turn("run#1", 2, queues=QUEUES, limit=5),
    "beat": lambda pair: pair.broker.beat("run"),
    "abandon": abandon,
    "leave": lambda pair: pair.broker.leave("run"),
    "revoke": lambda pair: pair.broker.revoke([Revocation("ready"), Revocation("later")]),
    "revoke once": lambda pair: pair.broker.revoke([Revocation("ready")], once="x"),
    "unrevoke": lambda pair: pair.broker.unrevoke(["x1", "also"]),
    "acquire": lambda pair: pair.broker.acquire("over", "other", 60.0),
    "release": lambda pair: pair.broker.release("site", "run"),
    "take": lambda pair: pair.broker.take("calls", 1.0, 0.1, 5.0),
    "count": lambda pair: pair.broker.count("open", -2, 60.0),
    "broadcast": lambda pair: pair.broker.broadcast("control", b"ping"),
    "purge": lambda pair: pair.broker.purge(QUEUES),
    "dead_requeue": lambda pair: pair.broker.dead_requeue("x1", posting("x1")),
    "dead_delete": lambda pair: pair.broker.dead_delete(["x0", "x2"]),
    "find": lambda pair: pair.broker.find("soon"),
    "put": lambda pair: pair.store.put([result("p1"), result("r2")]),
    "forget": lambda pair: pair.store.forget(["r1", "r2"]),
    "prune": lambda pair: pair.store.prune(),
}


class Killer:
    """A trace callback that ends this process before the `n`-th statement."""

    def __init__(self, n: int) -> None:
        self._left = n

    def __call__(self, statement: str) -> None:
        self._left -= 1
        if not self._left:
            os.kill(os.getpid(), signal.SIGKILL)


def die(operation: str, n: int, path: Path) -> None:
    pair = Pair(path)
    if operation != "open":
        pair.open()
    pair.trace(Killer(n))
    OPERATIONS[operation](pair)
    pair.trace(None)
    pair.close()


def serve() -> None:
    for line in sys.stdin:
        operation, n, path = line.rstrip("\n").split("\t")
        child = os.fork()
        if not child:
            die(operation, int(n), Path(path))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    serve()
