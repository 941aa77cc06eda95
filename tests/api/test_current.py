"""Which app code is in: the current one, shared tasks, several apps in one process."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.api.looking import lease, only, waiting

from umbel import AsyncResult, Task, Umbel, current_app, current_task, shared_task
from umbel.current import Proxy, get_current_app
from umbel.request import running


@pytest.fixture
def other() -> Any:
    with Umbel("other", broker="memory://other-app") as made:
        yield made


@pytest.fixture(autouse=True)
def no_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """What other tests of this process have made the default is no app of these."""
    monkeypatch.setattr("umbel.current._default", None)


def in_thread(fun: Callable[[], object]) -> object:
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(fun()))
    thread.start()
    thread.join()
    return found[0]


def test_the_app_made_last_is_current(app: Umbel, other: Umbel) -> None:
    assert current_app == other
    assert AsyncResult("x").app is other
    app.set_current()
    assert current_app == app
    assert current_app.main == "proj"
    assert in_thread(get_current_app) is app
    Umbel("third", set_as_current=False)
    assert current_app == app


def test_a_thread_has_its_own_current_app_and_the_default_otherwise(
    app: Umbel, other: Umbel
) -> None:
    app.set_default()
    assert in_thread(get_current_app) is app

    def own() -> object:
        other.set_current()
        return get_current_app()

    app.set_current()
    assert in_thread(own) is other
    assert get_current_app() is app


def test_the_app_of_the_running_task_is_current(app: Umbel, other: Umbel) -> None:
    seen: list[object] = []

    @app.task(name="look")
    def look() -> None:
        seen.append((get_current_app(), current_task.name, current_app.current_task))

    assert not current_task
    assert app.current_task is None
    look()
    assert seen == [(app, "look", look)]
    assert get_current_app() is other


def test_a_shared_task_is_one_of_every_app(app: Umbel, other: Umbel) -> None:
    assert app.tasks == {}  # finalized before

    @shared_task(bind=True, name="lib.double", max_retries=7)
    def double(self: Task[..., Any], x: int) -> tuple[object, int]:
        return self.app, x * 2

    assert app.tasks["lib.double"] is not other.tasks["lib.double"]
    assert app.tasks["lib.double"].app is app
    assert isinstance(double, Task)
    assert double.max_retries == 7
    assert double(4) == (other, 8)
    app.set_current()
    assert double(4) == (app, 8)
    double.delay(3)
    assert only(app).task == "lib.double"
    assert waiting(other) == []
    later = Umbel("later", set_as_current=False)
    assert later.tasks["lib.double"].app is later


def test_a_shared_task_in_a_running_task_is_of_that_app(app: Umbel, other: Umbel) -> None:
    @shared_task(name="lib.send")
    def send() -> None: ...

    @app.task(name="outer")
    def outer() -> None:
        send.delay()

    outer.delay()
    with running(outer, lease(app)):
        outer.run()
    assert only(app).task == "lib.send"
    assert waiting(other) == []


def test_an_apps_own_task_wins_over_a_shared_one(app: Umbel) -> None:
    @shared_task(name="lib.same")
    def shared() -> str:
        return "shared"

    @app.task(name="lib.same")
    def own() -> str:
        return "own"

    assert app.tasks["lib.same"] is own
    assert shared() == "own"


def test_a_shared_task_is_of_the_module_that_defines_it(app: Umbel) -> None:
    @shared_task
    def plain(x: int) -> None: ...

    @shared_task(bind=True)
    def bound(self: Any, x: int) -> None: ...

    for task in (plain, bound):
        assert task.__module__ == __name__
        assert str(inspect.signature(task)) == "(x: 'int') -> 'None'"


def test_sharing_twice_is_an_error(app: Umbel) -> None:
    @shared_task
    def once() -> None: ...

    for task in (once, app.task(lambda: None)):
        with pytest.raises(TypeError, match="expected a function"):
            shared_task(task)


@pytest.mark.option("shared")
def test_apps_share_no_state(app: Umbel, other: Umbel) -> None:
    @app.task(name="t", queue="q1")
    def one() -> None: ...

    @other.task(name="t", queue="q2")
    def two() -> None: ...

    app.conf.task_acks_late = True
    assert (one.acks_late, two.acks_late) == (True, False)
    one.delay()
    assert [m.task for m in waiting(app, "q1")] == ["t"]
    assert waiting(other, "q1") == waiting(other, "q2") == []
    assert set(app.tasks) == set(other.tasks) == {"t"}
    assert app.tasks["t"] is one
    assert app.AsyncResult("x").app is app

    @app.task(name="spread", shared=True)
    def spread() -> None: ...

    assert "spread" in other.tasks


def test_finalizing_sends_the_signals_once_in_order(app: Umbel) -> None:
    seen: list[str] = []

    def note(signal: Any, sender: object, **kwargs: Any) -> None:
        assert sender is app
        seen.append(signal.name)
        if "source" in kwargs:
            assert kwargs["source"] is app.conf

    for signal in (app.on_configure, app.on_after_configure, app.on_after_finalize):
        signal.connect(note)
    before = app.finalized
    assert "x" not in app.tasks
    app.finalize()
    assert (before, app.finalized) == (False, True)
    assert seen == ["on_configure", "on_after_configure", "on_after_finalize"]


def test_settings_of_on_after_configure_hold_for_the_first_message(app: Umbel) -> None:
    @app.on_after_configure.connect
    def setup(sender: Umbel, **kwargs: Any) -> None:
        sender.conf.task_default_queue = "late"

    app.conf.task_acks_late = True  # settings can be touched before
    app.send_task("x")
    assert only(app, "late").task == "x"


def test_without_autofinalize_tasks_have_to_wait() -> None:
    app = Umbel("a", autofinalize=False, set_as_current=False)

    @app.task(name="t")
    def t() -> None: ...

    with pytest.raises(RuntimeError, match="autofinalize=False"):
        app.tasks["t"]
    app.finalize()
    assert app.tasks["t"] is t


def test_a_proxy_of_nothing_is_false() -> None:
    assert not Proxy(lambda: None)
    assert repr(Proxy(lambda: 5)) == "5"
