"""Sending from coroutines: one thread publishes for all loops, and each caller hears of its own."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.api.looking import lease, only, waiting
from tests.worker.harness import until

from umbel import Task, Umbel, coalescing
from umbel.coalescing import MOST_IN_ONE_STEP, MOST_WAITING
from umbel.exceptions import (
    BrokerUnavailable,
    EncodeError,
    MessageTooLarge,
    OperationalError,
    PublishUnknown,
    UmbelError,
    Unroutable,
)
from umbel.message import Message, Posting
from umbel.request import running
from umbel.signals import after_task_publish, before_task_publish

PATIENCE = 30.0

Add = Task[..., int]


@pytest.fixture
def add(app: Umbel) -> Add:
    @app.task(name="add")
    def add(x: int, y: int = 0) -> int:
        return x + y

    return add


class Broker:
    """What goes to an app's broker: it is counted, may be held up, and may fail."""

    def __init__(self, app: Umbel, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[int] = []
        self.open = threading.Event()
        self.open.set()
        self.busy = threading.Event()
        self.fail: Callable[[], Exception | None] = lambda: None
        broker = app.broker
        self._publish = broker.publish
        monkeypatch.setattr(broker, "publish", self.publish)

    def publish(self, postings: Sequence[Posting]) -> None:
        self.steps.append(len(postings))
        self.busy.set()
        assert self.open.wait(PATIENCE)
        if error := self.fail():
            raise error
        self._publish(postings)


@pytest.fixture
def broker(app: Umbel, monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    watched = Broker(app, monkeypatch)
    yield watched
    watched.open.set()


def run(main: Awaitable[Any]) -> Any:
    async def limited() -> Any:
        async with asyncio.timeout(PATIENCE):
            return await main

    return asyncio.run(limited())


async def true(ask: Callable[[], Any]) -> None:
    """Return once `ask` gives something true."""
    while not ask():  # noqa: ASYNC110  # nobody sets an event
        await asyncio.sleep(0.002)


def ids(app: Umbel) -> list[str]:
    """Of the messages that wait, in their order."""
    found = app.broker.peek("celery", 20_000)
    return [message.id for message in found if isinstance(message, Message)]


# What it is for


@pytest.mark.filterwarnings("ignore::umbel.exceptions.NoWorkerYet")
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_ten_thousand_at_once(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = "memory://ten-thousand" if kind == "memory" else f"sqlite:///{tmp_path / 'x.db'}"
    with Umbel("proj", broker=url, set_as_current=False) as app:

        @app.task(name="add")
        def add(x: int, y: int) -> int:
            return x + y

        watched = Broker(app, monkeypatch)
        before = set(threading.enumerate())

        async def main() -> tuple[list[str], int]:
            results = await asyncio.gather(*(add.adelay(n, y=1) for n in range(10_000)))
            return [result.id for result in results], len(set(threading.enumerate()) - before)

        sent, threads = run(main())
        assert len(set(sent)) == 10_000
        assert threads == 1
        assert sum(watched.steps) == 10_000
        assert len(watched.steps) <= 100
        assert set(ids(app)) == set(sent)


def test_one_call_is_what_delay_sends(app: Umbel, add: Add) -> None:
    result = run(add.adelay(1, y=2))
    message = only(app)
    assert (message.id, message.task) == (result.id, "add")
    assert (
        message.body
        == b'[[1],{"y":2},{"callbacks":null,"errbacks":null,"chain":null,"chord":null}]'
    )
    assert (result.app, result.name, result.parent) == (app, "add", None)


def test_all_ways_to_send(app: Umbel, add: Add) -> None:
    async def main() -> list[Any]:
        return [
            await add.aapply_async((1,), {"y": 2}, task_id="a", priority=3),
            await app.asend_task("other", (1,), task_id="b", countdown=60),
            await add.s(2).aapply_async((1,), task_id="c"),
            await app.signature("other").adelay(1),
            *await add.adelay_many([(1, 2), [3]]),
            await add.adelay_many([]),
        ]

    a, b, c, by_name, many, more, nothing = run(main())
    assert [a.id, b.id, c.id] == ["a", "b", "c"]
    assert nothing == []
    assert set(ids(app)) == {"a", "c", by_name.id, many.id, more.id}
    assert app.broker.queues()[0].delayed == 1


def test_a_chain_has_its_steps_as_parents(app: Umbel, add: Add) -> None:
    chained = run((add.s(1) | add.s(2) | add.s(3)).adelay(0))
    assert only(app).id == chained.parent.parent.id
    assert len({*chained.as_list()}) == 3
    assert run((add.s(1) | add.s(2)).aapply_async((0,), task_id="last")).id == "last"


def test_what_is_wrong_with_a_call_is_raised_by_the_call(app: Umbel, add: Add) -> None:
    wrong: Any = add
    app.conf.task_max_message_size = 1000

    async def main() -> None:
        for call, error in (
            (wrong.adelay(), TypeError),
            (wrong.adelay(1, z=2), TypeError),
            (wrong.adelay(object()), EncodeError),
            (wrong.adelay("x" * 2000), MessageTooLarge),
            (wrong.aapply_async((1,), countdwn=3), TypeError),
            (wrong.adelay_many([(1,), 2]), TypeError),
        ):
            with pytest.raises(error):
                await call

    run(main())
    assert waiting(app) == []


def test_children_of_a_running_task(app: Umbel, add: Add) -> None:
    add.delay(1)
    request = lease(app)

    async def main() -> list[str]:
        sent = [
            await add.adelay(1),
            await app.asend_task("other"),
            *await add.adelay_many([(1,)]),
            await add.aapply_async((1,), add_to_parent=False),
        ]
        return [result.id for result in sent]

    with running(add, request):
        sent = run(main())
    assert [child.id for child in request.children] == sent[:3]
    assert {message.headers["parent_id"] for message in waiting(app)} == {request.id}


def test_signals_are_sent_by_the_caller(app: Umbel, add: Add) -> None:
    seen: list[tuple[str, int]] = []

    def before(**_: Any) -> None:
        seen.append(("before", threading.get_ident()))

    def after(headers: Any, **_: Any) -> None:
        seen.append((headers["id"], threading.get_ident()))

    before_task_publish.connect(before)
    after_task_publish.connect(after)
    try:
        result = run(add.adelay(1))
    finally:
        before_task_publish.disconnect(before)
        after_task_publish.disconnect(after)
    here = threading.get_ident()
    assert seen == [("before", here), (result.id, here)]


# Errors are one's own


def test_a_message_that_is_refused_fails_nobody_else(app: Umbel, add: Add, broker: Broker) -> None:
    async def main() -> list[Any]:
        calls: list[Any] = [add.adelay(n) for n in range(50)]
        calls.append(add.aapply_async((50,), exchange="nowhere", routing_key="x"))
        calls += [add.adelay(n) for n in range(49)]
        results: list[Any] = await asyncio.gather(*calls, return_exceptions=True)
        return results

    results = run(main())
    assert [n for n, each in enumerate(results) if isinstance(each, Exception)] == [50]
    assert isinstance(results[50], Unroutable)
    assert ids(app) == [each.id for each in results if not isinstance(each, Exception)]
    assert len(broker.steps) < 20


def test_each_caller_has_an_error_of_its_own(app: Umbel, add: Add, broker: Broker) -> None:
    broker.fail = lambda: PublishUnknown("the reply was lost")

    async def main() -> list[Any]:
        return await asyncio.gather(*(add.adelay(n) for n in range(3)), return_exceptions=True)

    errors = run(main())
    assert [type(error) for error in errors] == [PublishUnknown] * 3
    assert len({id(error) for error in errors}) == 3
    assert broker.steps == [3], "a publish of unknown effect was repeated"


@pytest.mark.parametrize("url", ["sqlite:////no/such/folder/x.db", "nosuch://", "redis://h"])
def test_a_broker_that_cannot_be_opened_is_told_as_delay_tells_it(url: str) -> None:
    with Umbel("proj", broker=url, set_as_current=False) as app:
        with pytest.raises(UmbelError) as expected:
            app.send_task("t", retry=False)
        with pytest.raises(UmbelError) as got:
            run(app.asend_task("t", retry=False))
    assert (type(got.value), str(got.value)) == (type(expected.value), str(expected.value))


def test_an_error_that_cannot_be_copied_is_told_all_the_same(
    app: Umbel, add: Add, broker: Broker
) -> None:
    class Odd(OperationalError):
        def __init__(self, *, code: int) -> None:
            super().__init__(f"code {code}")

    broker.fail = lambda: Odd(code=7)

    async def main() -> list[Any]:
        return list(
            await asyncio.gather(*(add.adelay(n) for n in range(3)), return_exceptions=True)
        )

    assert [str(error) for error in run(main())] == ["code 7"] * 3


# A broker that is away


def test_the_loop_goes_on_while_a_broker_is_away_and_comes_back(
    app: Umbel, add: Add, broker: Broker
) -> None:
    ticks = 0
    broker.fail = lambda: BrokerUnavailable("away") if ticks < 5 else None

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    async def main() -> list[Any]:
        ticking = asyncio.create_task(tick())
        policy = {"max_retries": None, "interval_start": 0.01, "interval_step": 0}
        try:
            results: list[Any] = await asyncio.gather(
                *(add.aapply_async((n,), retry_policy=policy) for n in range(3))
            )
            return results
        finally:
            ticking.cancel()

    results = run(main())
    assert ids(app) == [result.id for result in results]
    assert len(broker.steps) > 1


def test_the_policy_is_that_of_each_call(app: Umbel, add: Add, broker: Broker) -> None:
    broker.fail = lambda: BrokerUnavailable("away") if len(broker.steps) < 4 else None
    short = {"max_retries": 1, "interval_start": 0, "interval_step": 0}
    long = {"max_retries": 9, "interval_start": 0, "interval_step": 0}

    async def main() -> list[Any]:
        calls = [
            add.aapply_async((0,), retry=False),
            add.aapply_async((1,), retry_policy=short),
            add.aapply_async((2,), retry_policy=long, task_id="long"),
        ]
        results: list[Any] = await asyncio.gather(*calls, return_exceptions=True)
        return results

    never, twice, sent = run(main())
    assert isinstance(never, BrokerUnavailable)
    assert isinstance(twice, BrokerUnavailable)
    assert sent.id == "long"
    assert broker.steps == [3, 2, 1, 1]
    assert ids(app) == ["long"]


def test_no_more_messages_are_made_than_there_is_room_for(
    app: Umbel, add: Add, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = 0
    build = app.publisher.build

    def counted(*args: Any) -> Posting:
        nonlocal made
        made += 1
        return build(*args)

    monkeypatch.setattr(app.publisher, "build", counted)
    broker.open.clear()
    count = MOST_WAITING + 3 * MOST_IN_ONE_STEP

    async def main() -> None:
        calls = [asyncio.create_task(add.adelay(n)) for n in range(count)]
        await true(broker.busy.is_set)
        for _ in range(20):
            await asyncio.sleep(0)
        assert made <= MOST_WAITING + MOST_IN_ONE_STEP
        broker.open.set()
        await asyncio.gather(*calls)

    run(main())
    assert made == count == len(app.broker.peek("celery", 2 * count))


def test_large_messages_do_not_make_large_steps(app: Umbel, add: Add, broker: Broker) -> None:
    async def main() -> None:
        await asyncio.gather(*(add.adelay("x" * 3_000_000) for _ in range(20)))

    run(main())
    assert sum(broker.steps) == 20
    assert max(broker.steps) <= 6


# Who leaves before it is sent


def test_a_caller_that_is_cancelled_takes_back_what_still_waits(
    app: Umbel, add: Add, broker: Broker
) -> None:
    broker.open.clear()

    async def main() -> None:
        on_its_way = asyncio.create_task(add.aapply_async((1,), task_id="on its way"))
        await true(broker.busy.is_set)
        taken_back = asyncio.create_task(add.aapply_async((2,), task_id="taken back"))
        stays = asyncio.create_task(add.aapply_async((3,), task_id="stays"))
        await true(lambda: len(app.publisher.coalescer._queue) == 2)
        on_its_way.cancel()
        taken_back.cancel()
        await asyncio.wait([on_its_way, taken_back])
        assert on_its_way.cancelled()
        assert taken_back.cancelled()
        broker.open.set()
        await stays

    run(main())
    assert ids(app) == ["on its way", "stays"]


def test_a_loop_that_is_closed_meanwhile_harms_nobody(app: Umbel, add: Add, broker: Broker) -> None:
    broker.open.clear()
    gone = asyncio.new_event_loop()
    left = [gone.create_task(add.aapply_async((n,), task_id=f"left {n}")) for n in range(3)]
    gone.run_until_complete(true(broker.busy.is_set))
    gone.close()
    broker.open.set()
    assert run(add.aapply_async((1,), task_id="next")).id == "next"
    assert set(ids(app)) == {"left 0", "left 1", "left 2", "next"}
    for task in left:
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # else it is logged


def test_loops_in_several_threads_share_one_publisher(app: Umbel, add: Add, broker: Broker) -> None:
    threads: set[int] = set()

    def note() -> None:
        threads.add(threading.get_ident())

    broker.fail = note
    sent: list[str] = []

    def work() -> None:
        async def main() -> None:
            for _ in range(5):
                results = await asyncio.gather(*(add.adelay(n) for n in range(20)))
                sent.extend(result.id for result in results)

        run(main())

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(PATIENCE)
    assert len(sent) == len(set(sent)) == 400
    assert set(sent) == set(ids(app))
    assert len(threads) == 1


# Batches


def test_a_batch_in_a_coroutine_is_one_step(app: Umbel, add: Add, broker: Broker) -> None:
    async def main() -> None:
        async with app.batch():
            await asyncio.gather(*(add.adelay(n) for n in range(10)))
            add.delay(10)
            await app.asend_task("other")
            assert broker.steps == []
        assert broker.steps == [12]
        with app.batch():
            await add.adelay(1)
            await add.adelay_many([(1,), (2,)])
        assert broker.steps == [12, 3]

    run(main())


def test_of_a_batch_that_raises_nothing_is_sent(app: Umbel, add: Add, broker: Broker) -> None:
    async def fail() -> None:
        async with app.batch():
            async with app.batch():
                await add.adelay(1)
            raise ZeroDivisionError

    async def nothing() -> None:
        async with app.batch():
            pass

    with pytest.raises(ZeroDivisionError):
        run(fail())
    run(nothing())
    assert broker.steps == []


def test_a_batch_fails_as_a_whole(app: Umbel, add: Add, broker: Broker) -> None:
    broker.fail = lambda: PublishUnknown("lost")

    async def main() -> None:
        async with app.batch():
            await add.adelay(1)
            await add.adelay(2)

    with pytest.raises(PublishUnknown):
        run(main())
    assert broker.steps == [2]


def test_a_coroutine_that_outlives_its_batch_sends_by_itself(app: Umbel, add: Add) -> None:
    async def late(go: asyncio.Event) -> None:
        await go.wait()
        await add.aapply_async((1,), task_id="late")

    async def main() -> None:
        go = asyncio.Event()
        async with app.batch():
            task = asyncio.create_task(late(go))
        go.set()
        await task

    run(main())
    assert ids(app) == ["late"]


# The thread's life


def test_closing_the_app_publishes_what_waits(app: Umbel, add: Add, broker: Broker) -> None:
    broker.open.clear()
    loop = asyncio.new_event_loop()
    calls = [loop.create_task(add.adelay(n)) for n in range(3)]
    loop.run_until_complete(true(broker.busy.is_set))
    more = loop.create_task(add.adelay(3))
    loop.run_until_complete(true(lambda: app.publisher.coalescer._queue))
    threading.Timer(0.05, broker.open.set).start()
    app.close()
    assert len(loop.run_until_complete(asyncio.gather(*calls, more))) == 4
    loop.close()
    assert len(waiting(app)) == 4
    run(add.adelay(5))
    assert len(waiting(app)) == 5


def test_closing_the_app_tells_those_who_wait_for_an_absent_broker(
    app: Umbel, add: Add, broker: Broker
) -> None:
    broker.fail = lambda: BrokerUnavailable("away")
    policy = {"max_retries": None, "interval_start": 60, "interval_max": 60}

    async def main() -> None:
        call = asyncio.create_task(add.aapply_async((1,), retry_policy=policy))
        await true(lambda: app.publisher.coalescer._later)
        await asyncio.to_thread(app.close)
        with pytest.raises(BrokerUnavailable, match="away"):
            await call

    run(main())


def test_a_thread_without_work_ends_and_comes_again(
    app: Umbel, add: Add, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coalescing, "IDLE", 0.01)
    run(add.adelay(1))
    until(lambda: app.publisher.coalescer._thread is None, what="the thread ends")
    run(add.adelay(2))
    assert len(waiting(app)) == 2


def test_a_process_that_can_start_no_thread_says_so(
    app: Umbel, add: Add, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def main() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            calls = [add.adelay(n) for n in range(2)]
            errors = await asyncio.gather(*calls, return_exceptions=True)
            assert [str(error) for error in errors] == ["can't start new thread"] * 2
            with pytest.raises(RuntimeError, match="new thread"):
                await app.AsyncResult("id")
        await add.aapply_async((1,), task_id="later")

    run(main())
    assert ids(app) == ["later"]


SCRIPT = """
import asyncio, os, sys, warnings
from umbel import Umbel
from umbel.exceptions import BrokerUnavailable

warnings.simplefilter("ignore")
app = Umbel("proj", broker=sys.argv[1])

@app.task(name="add")
def add(x):
    return x

"""


def script(tmp_path: Path, code: str) -> list[str]:
    """Run it to its end; the ids that are in the file then."""
    url = f"sqlite:///{tmp_path / 'x.db'}"
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT + code, url],
        capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    with Umbel("looking", broker=url, set_as_current=False) as app:
        return ids(app)


def test_a_fork_has_a_thread_of_its_own(tmp_path: Path) -> None:
    sent = script(
        tmp_path,
        """
async def send(task_id):
    async with asyncio.timeout(20):
        await add.aapply_async((1,), task_id=task_id)

asyncio.run(send("parent"))
child = os.fork()
if child == 0:
    asyncio.run(send("child"))
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
asyncio.run(send("parent again"))
""",
    )
    assert sent == ["parent", "child", "parent again"]


def test_what_has_returned_is_stored_whenever_the_process_dies(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'x.db'}"
    code = """
async def send(n):
    for i in range(1000):
        result = await add.aapply_async((n,), task_id=f"{n}-{i}")
        os.write(1, (result.id + os.linesep).encode())

async def main():
    await asyncio.gather(*(send(n) for n in range(50)))

asyncio.run(main())
"""
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT + code, url], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        returned = [process.stdout.readline().strip() for _ in range(1000)]
        process.kill()
        returned += process.stdout.read().split()
    with Umbel("looking", broker=url, set_as_current=False) as app:
        stored = ids(app)
    assert len(returned) == len(set(returned)) >= 1000
    assert set(returned) <= set(stored)
    assert len(stored) == len(set(stored)) < 50_000


def test_what_a_loop_has_left_behind_is_sent_at_the_end_of_the_process(tmp_path: Path) -> None:
    sent = script(
        tmp_path,
        """
asyncio.run(add.aapply_async((0,), task_id="first"))
import threading
started, real = threading.Event(), app.broker.publish

def slow(postings):
    started.set()
    import time
    time.sleep(0.2)
    real(postings)

app.broker.publish = slow
loop = asyncio.new_event_loop()
async def some():
    tasks = [asyncio.ensure_future(add.aapply_async((n,), task_id=f"left {n}")) for n in (1, 2)]
    await asyncio.to_thread(started.wait, 10)
    tasks.append(asyncio.ensure_future(add.aapply_async((3,), task_id="left 3")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return tasks
tasks = loop.run_until_complete(some())
loop.close()
""",
    )
    assert sent == ["first", "left 1", "left 2", "left 3"]


def test_a_broker_that_stays_away_does_not_hold_up_the_end_of_the_process(
    tmp_path: Path,
) -> None:
    sent = script(
        tmp_path,
        """
asyncio.run(add.aapply_async((0,), task_id="first"))
def away(postings):
    raise BrokerUnavailable("away")
app.broker.publish = away
loop = asyncio.new_event_loop()
policy = {"max_retries": None, "interval_start": 0.01, "interval_max": 3600, "interval_step": 1}
async def some():
    task = asyncio.ensure_future(add.aapply_async((1,), retry_policy=policy))
    while not app.publisher.coalescer._later:
        await asyncio.sleep(0.001)
    return task
task = loop.run_until_complete(some())
loop.close()
""",
    )
    assert sent == ["first"]


# Eager tasks


def test_an_eager_task_runs_on_the_loop_of_its_caller(app: Umbel) -> None:
    app.conf.task_always_eager = True
    loops: list[Any] = []

    @app.task(bind=True)
    async def double(self: Any, x: int) -> int:
        await asyncio.sleep(0)
        loops.append((asyncio.get_running_loop(), self.request.is_eager))
        return 2 * x

    @app.task
    def add_one(x: int) -> int:
        return x + 1

    async def main() -> None:
        here = asyncio.get_running_loop()
        result = await double.adelay(3)
        assert await result == await result.aget() == result.get() == 6
        assert await result.astate() == "SUCCESS"
        assert await result.aready()
        assert [change async for change in result] == [("SUCCESS", 6)]
        chained = await (double.s(1) | add_one.s() | double.s()).adelay()
        assert (await chained, await chained.parent) == (6, 3)
        assert [each.get() for each in await double.adelay_many([(1,), (2,)])] == [2, 4]
        assert loops == [(here, True)] * 5

    run(main())


def test_an_eager_coroutine_that_fails_is_retried_and_told(app: Umbel) -> None:
    app.conf.task_always_eager = True
    runs: list[int] = []

    @app.task(autoretry_for=(ConnectionError,), max_retries=2, retry_backoff=True)
    async def shaky() -> None:
        runs.append(1)
        await asyncio.sleep(0)
        raise ConnectionError("no")

    async def main() -> None:
        result = await shaky.adelay()
        assert result.failed()
        with pytest.raises(ConnectionError):
            await result
        app.conf.task_eager_propagates = True
        with pytest.raises(ConnectionError):
            await shaky.adelay()

    run(main())
    assert len(runs) == 6


def test_an_eager_coroutine_can_be_cancelled(app: Umbel) -> None:
    app.conf.task_always_eager = True
    started: list[asyncio.Event] = []

    @app.task
    async def endless() -> None:
        started[0].set()
        await asyncio.sleep(3600)

    async def main() -> None:
        started.append(asyncio.Event())
        call = asyncio.create_task(endless.adelay())
        await started[0].wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    run(main())
