"""Batches, many at once, and what happens when the broker is away."""

from __future__ import annotations

import contextvars
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.api.looking import waiting

from umbel import Umbel
from umbel.exceptions import (
    BrokerUnavailable,
    EncodeError,
    ImproperlyConfigured,
    NoWorkerYet,
    QueueNotFound,
    Unroutable,
)

# Nothing here starts a worker.
pytestmark = pytest.mark.filterwarnings(f"ignore::{NoWorkerYet.__module__}.NoWorkerYet")


def names(app: Umbel, queue: str = "celery") -> list[str]:
    return [message.task for message in waiting(app, queue)]


# Many


def test_delay_many_sends_in_order_and_all(app: Umbel) -> None:
    @app.task
    def add(x: int, y: int = 0) -> int:
        return x + y

    results = add.delay_many([(1,), (2, 3), [4]])
    assert [message.id for message in waiting(app)] == [result.id for result in results]
    assert [m.headers["argsrepr"] for m in waiting(app)] == ["(1,)", "(2, 3)", "(4,)"]
    assert add.delay_many([]) == []


@pytest.mark.parametrize(
    ("bad", "error"),
    [("ab", TypeError), (5, TypeError), ((), TypeError), ((object(),), EncodeError)],
)
def test_delay_many_sends_nothing_where_one_is_wrong(
    app: Umbel, bad: Any, error: type[Exception]
) -> None:
    @app.task
    def one(x: Any) -> None: ...

    with pytest.raises(error):
        one.delay_many([(1,), bad])
    assert waiting(app) == []


# Batches


def bad_after_good(app: Umbel) -> None:
    app.send_task("never")
    app.send_task("")


def test_a_batch_is_sent_at_its_end(app: Umbel) -> None:
    with app.batch():
        app.send_task("a")
        app.send_task("b", queue="other")
        assert names(app) == []
    assert (names(app), names(app, "other")) == (["a"], ["b"])


def test_a_batch_that_raises_sends_nothing(app: Umbel) -> None:
    with pytest.raises(TypeError), app.batch():
        bad_after_good(app)
    app.send_task("after")
    assert names(app) == ["after"]


def test_batches_inside_batches_go_out_with_the_outer_one(app: Umbel) -> None:
    with app.batch():
        app.send_task("a")
        with app.batch():
            app.send_task("b")
        with pytest.raises(TypeError), app.batch():
            bad_after_good(app)
        assert names(app) == []
        app.send_task("c")
    assert names(app) == ["a", "b", "c"]


def test_a_batch_is_of_its_app_and_its_thread(app: Umbel) -> None:
    with Umbel("o", broker="memory://other-batch", set_as_current=False) as other:
        with app.batch():
            other.send_task("other")
            thread = threading.Thread(target=app.send_task, args=("thread",))
            thread.start()
            thread.join()
            app.send_task("inside")
            assert (names(app), names(other)) == (["thread"], ["other"])
            with other.batch():
                app.send_task("inside other's")
        assert names(app) == ["thread", "inside", "inside other's"]


def test_what_outlives_a_batch_is_sent_and_not_lost(app: Umbel) -> None:
    with app.batch():
        context = contextvars.copy_context()
    context.run(app.send_task, "late")
    assert names(app) == ["late"]


def test_a_batch_is_one_step(app: Umbel) -> None:
    """A part that no queue takes: nothing of the batch is stored."""
    app.send_task("first")

    def send() -> None:
        with app.batch():
            app.send_task("a")
            app.send_task("b")
            raise Unroutable("made up")

    with pytest.raises(Unroutable):
        send()
    assert names(app) == ["first"]


# Queues


@pytest.mark.setting("task_create_missing_queues", "task_queues")
def test_a_queue_that_is_not_declared(app: Umbel) -> None:
    app.conf.update(task_create_missing_queues=False, task_queues=["celery", "slow"])
    with pytest.raises(QueueNotFound, match="'slwo' isn't declared; known: 'slow'"):
        app.send_task("a", queue="slwo")
    app.send_task("a", queue="slow")
    assert names(app, "slow") == ["a"]


# The broker away


def test_publishing_is_repeated_until_the_broker_is_there(tmp_path: Path) -> None:
    folder = tmp_path / "later"
    policy = {"max_retries": None, "interval_start": 0.01, "interval_step": 0, "interval_max": 0.01}
    with Umbel("a", broker=f"sqlite:///{folder}/x.db", set_as_current=False) as app:
        thread = threading.Thread(
            target=app.send_task, args=("a",), kwargs={"retry_policy": policy}
        )
        thread.start()
        thread.join(0.2)
        assert thread.is_alive()
        folder.mkdir()
        thread.join(20)
        assert not thread.is_alive()
        assert names(app) == ["a"]


def took(call: Callable[[], object]) -> float:
    start = time.monotonic()
    with pytest.raises(BrokerUnavailable, match="doesn't exist"):
        call()
    return time.monotonic() - start


@pytest.mark.option("retry", "retry_policy")
@pytest.mark.setting("task_publish_retry", "task_publish_retry_policy")
def test_publishing_is_repeated_by_the_policy_and_then_given_up(tmp_path: Path) -> None:
    with Umbel("a", broker=f"sqlite:///{tmp_path}/no/x.db", set_as_current=False) as app:
        app.conf.task_publish_retry_policy = {"max_retries": 2, "interval_start": 0.4}
        # Waits of 0.4 and 0.6 s, where the default's are 0.6 s in all; then none, by the call.
        assert 1.0 <= took(lambda: app.send_task("a")) < 5
        assert took(lambda: app.send_task("a", retry=False)) < 0.5
        assert took(lambda: app.send_task("a", retry_policy={"max_retries": 0})) < 0.5
        app.conf.task_publish_retry = False
        assert took(lambda: app.send_task("a")) < 0.5


# Drivers


def test_no_broker_named_is_a_file_here_and_the_log_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    with caplog.at_level(logging.INFO, "umbel"), Umbel("a", set_as_current=False) as app:
        app.send_task("a")
        app.close()
        app.send_task("b")
        assert names(app) == ["a", "b"]
        assert app.store is not None
    said = [record.getMessage() for record in caplog.records if record.name == "umbel"]
    assert said == [f"No broker is named, so messages and results are kept in {tmp_path}/umbel.db"]
    assert (tmp_path / "umbel.db").exists()


@pytest.mark.setting("result_backend")
def test_results_are_kept_with_the_messages_unless_told_otherwise(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    with Umbel("a", broker=url, set_as_current=False) as app:
        assert app.store is not None
        assert app.store.location == app.broker.location
    with Umbel("a", broker=url, backend="memory://r", set_as_current=False) as app:
        assert app.store is not None
        assert app.store.location != app.broker.location
    with Umbel("a", broker=url, backend="disabled://", set_as_current=False) as app:
        assert app.store is None


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("amqp://localhost/0", "release 'RabbitMQ'"),
        ("amqp://u:secret@h//", r"amqp://u:\*{8}@h//.*release 'RabbitMQ'"),
        ("sqlit:///a.db", "did you mean sqlite://"),
        ("memroy://", "did you mean memory://"),
        ("tasks.db", "expected memory://"),
        ("sqlite://a.db", "three slashes"),
        ("sqlite:///", "three slashes"),
        ("sqlite:///:memory:", "Use memory://"),
        ("sqlite:///a.db?sync=never", "sync=normal or sync=full"),
        ("sqlite:///a.db?mode=ro", "sync=normal or sync=full"),
        ("memory://a/b", "letters"),
    ],
)
def test_a_bad_url_is_one_sentence(url: str, text: str) -> None:
    app = Umbel("a", broker=url, set_as_current=False)
    with pytest.raises(ImproperlyConfigured, match=text) as caught:
        app.send_task("a")
    assert "secret" not in str(caught.value)


def test_the_environment_names_broker_and_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELERY_BROKER_URL", "memory://celery-env")
    monkeypatch.setenv("CELERY_RESULT_BACKEND", "disabled://")
    app = Umbel("a", broker="sqlite:///never.db", set_as_current=False)
    assert app.conf.broker_url == "memory://celery-env"
    assert app.store is None
    monkeypatch.setenv("UMBEL_BROKER_URL", "memory://umbel-env")
    monkeypatch.setenv("UMBEL_TASK_ACKS_LATE", "true")
    app = Umbel("a", set_as_current=False)
    assert (app.conf.broker_url, app.conf.task_acks_late) == ("memory://umbel-env", True)
    app.conf.broker_url = "memory://code"
    assert app.conf.broker_url == "memory://code"


def test_another_broker_can_be_named_at_any_time(app: Umbel) -> None:
    @app.task(name="t")
    def t() -> None: ...

    t.delay()
    first = app.broker
    app.conf.task_default_priority = 3
    assert app.broker is first
    app.conf.broker_url = "memory://named-later"
    t.delay()
    assert app.broker.location == "memory://named-later"
    assert names(app) == ["t"]
    assert app.store is not None
    assert app.store.location == "memory://named-later"
    app.conf.result_backend = "memory://results-later"
    assert app.store.location == "memory://results-later"


def in_a_fork(do: Callable[[], str]) -> str:
    """What `do` returns, or the sentence of what it raises, in a forked child."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            text = do()
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(writer, text.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    return text


def test_a_forked_child_opens_its_own_drivers(tmp_path: Path) -> None:
    with Umbel("a", broker=f"sqlite:///{tmp_path}/a.db", set_as_current=False) as app:
        app.send_task("parent")
        mine = app.broker

        def child() -> str:
            app.send_task("child")
            origin: str = waiting(app)[1].headers["origin"]
            return f"{app.broker is not mine} {origin.startswith(f'gen{os.getpid()}@')}"

        assert in_a_fork(child) == "True True"
        app.send_task("parent again")
        assert names(app) == ["parent", "child", "parent again"]
        assert app.broker is mine


def test_a_fork_of_a_memory_broker_is_told_that_nobody_would_see_its_messages(app: Umbel) -> None:
    app.send_task("parent")
    said = in_a_fork(lambda: app.send_task("child").id)
    assert said.startswith("ImproperlyConfigured: memory://")
    assert "this is a fork of it" in said


@pytest.mark.parametrize("url", ["memory://forked", "cache+memory://"])
def test_a_fork_of_results_in_memory_is_told_the_same(tmp_path: Path, url: str) -> None:
    broker = f"sqlite:///{tmp_path}/a.db"
    with Umbel("a", broker=broker, backend=url, set_as_current=False) as app:
        assert app.AsyncResult("x").state == "PENDING"
        said = in_a_fork(lambda: app.AsyncResult("x").state)
        assert said.startswith(f"ImproperlyConfigured: {url}")
        assert "this is a fork of it" in said
        assert in_a_fork(lambda: app.send_task("child").task_id) != ""
        assert names(app) == ["child"]


def test_a_fork_of_memory_results_may_not_send_to_that_memory_either() -> None:
    with Umbel("a", broker="memory://forked2", set_as_current=False) as app:
        assert app.AsyncResult("x").state == "PENDING"
        said = in_a_fork(lambda: app.send_task("child").id)
        assert "this is a fork of it" in said


def test_a_fork_of_a_memory_broker_may_read_results_that_lie_elsewhere(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/r.db"
    with Umbel("a", broker="memory://forked3", backend=store, set_as_current=False) as app:
        app.send_task("parent")
        assert in_a_fork(lambda: app.AsyncResult("x").state) == "PENDING"


def test_threads_share_one_app(tmp_path: Path) -> None:
    with Umbel("a", broker=f"sqlite:///{tmp_path}/a.db", set_as_current=False) as app:
        start = threading.Barrier(8)

        def send() -> None:
            start.wait()
            for _ in range(20):
                app.send_task("a")

        threads = [threading.Thread(target=send) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(names(app)) == 160
