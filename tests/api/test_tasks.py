"""Tasks as objects: names, calls, options, handlers, the registry."""

from __future__ import annotations

import asyncio
import inspect
import warnings
from typing import Any

import pytest
from tests.api.looking import lease, only, waiting

from umbel import Celery, Task, Umbel
from umbel.exceptions import (
    DuplicateTaskNameWarning,
    ImproperlyConfigured,
    LaterSetting,
    NotRegistered,
    UnknownSetting,
)
from umbel.request import running
from umbel.task import no_handler


def test_celery_is_umbel() -> None:
    assert Celery is Umbel


def test_a_task_is_called_like_its_function(app: Umbel) -> None:
    @app.task
    def add(x: int, y: int = 1) -> int:
        """Adds."""
        return x + y

    assert add(1) == 2
    assert add(1, y=5) == 6
    assert add.run(2) == 3
    assert (add.__name__, add.__doc__, add.__module__) == ("add", "Adds.", __name__)
    assert add.name == f"{__name__}.add"
    assert app.tasks[add.name] is add
    assert waiting(app) == []


def test_a_bound_task_gets_itself_and_its_request(app: Umbel) -> None:
    @app.task(bind=True, name="proj.b")
    def b(self: Task[..., Any], x: int) -> tuple[Any, ...]:
        return self is b, self.request.args, self.request.called_directly, self.request.id

    assert b(5) == (True, (5,), True, None)
    result = b.delay(6)
    request = lease(app)
    with running(b, request):
        assert b.run(6) == (True, [6], False, result.id)
    assert b.request.id is None


def test_the_signature_is_that_of_a_call(app: Umbel) -> None:
    @app.task(bind=True)
    def bound(self: Any, x: int, y: int = 2) -> int:
        return x + y

    @app.task
    def plain(x: int, *, y: int = 2) -> int:
        return x + y

    class Adder(Task[[int], int]):
        def run(self, x: int) -> int:
            return x

    shown = [str(inspect.signature(each)) for each in (bound, plain, app.register_task(Adder()))]
    assert shown == [
        "(x: 'int', y: 'int' = 2) -> 'int'",
        "(x: 'int', *, y: 'int' = 2) -> 'int'",
        "(x: 'int') -> 'int'",
    ]
    inspect.signature(Adder)  # the class is another matter
    assert not hasattr(plain, "__signature__")


def test_a_task_called_inside_another_has_a_request_of_its_own(app: Umbel) -> None:
    @app.task(bind=True, name="proj.inner")
    def inner(self: Task[..., Any]) -> tuple[Any, ...]:
        return self.request.id, outer.request.id

    @app.task(bind=True, name="proj.outer")
    def outer(self: Task[..., Any]) -> tuple[Any, ...]:
        return (*inner(), self.request.id)

    result = outer.delay()
    with running(outer, lease(app)):
        assert outer.run() == (None, result.id, result.id)


def test_coroutine_tasks_are_awaited_by_their_caller(app: Umbel) -> None:
    @app.task
    async def co(x: int) -> int:
        await asyncio.sleep(0)
        return x + 1

    assert co.is_async
    assert asyncio.run(co(1)) == 2


def test_names(app: Umbel) -> None:
    def f() -> None: ...

    f.__module__ = "__main__"
    assert app.task(f).name == "proj.f"
    assert Umbel(set_as_current=False).gen_task_name("f", "__main__") == "__main__.f"
    assert app.task(name="x.y")(lambda: None).name == "x.y"


def test_of_two_functions_under_one_name_the_first_stays(app: Umbel) -> None:
    @app.task(name="proj.same")
    def first() -> int:
        return 1

    def second() -> int:
        return 2

    with pytest.warns(DuplicateTaskNameWarning, match=r"'proj\.same'.*second") as caught:
        kept = app.task(name="proj.same")(second)
    assert kept is first
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert app.task(name="proj.same")(first.__wrapped__) is first


def test_an_unknown_name_is_explained(app: Umbel) -> None:
    @app.task(name="proj.add")
    def add() -> None: ...

    with pytest.raises(
        NotRegistered, match=r"'proj\.ad' isn't known here; did you mean 'proj\.add'"
    ):
        app.tasks["proj.ad"]
    with pytest.raises(KeyError, match="include="):
        app.tasks["zzzzzz"]


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"max_retrys": 1}, TypeError, "did you mean 'max_retries'"),
        ({"base": int}, TypeError, "derived from it"),
        ({"compression": "zlip"}, ImproperlyConfigured, "did you mean 'zlib'"),
        ({"throws": 5}, ValueError, "throws"),
        ({"autoretry_for": "ValueError"}, ValueError, "autoretry_for"),
        ({"priority": 11}, ValueError, "priority"),
        ({"time_limit": "5"}, ValueError, "time_limit"),
    ],
)
def test_bad_options_are_refused_where_the_task_is_defined(
    app: Umbel, options: Any, error: type[Exception], text: str
) -> None:
    decorate: Any = app.task(name="proj.bad", **options)
    with pytest.raises(error, match=text):
        decorate(lambda: None)
    assert "proj.bad" not in app.tasks


def test_a_rate_limit_is_said_to_have_no_effect(app: Umbel) -> None:
    options: Any = {"rate_limit": "10/s"}
    decorate: Any = app.task(**options)
    with pytest.warns(LaterSetting, match="rate_limit has no effect yet") as caught:
        decorate(lambda: None)
    assert caught[0].filename == __file__


def test_options_are_attributes_as_they_hold(app: Umbel) -> None:
    app.conf.update(task_acks_late=True, task_time_limit=7)

    @app.task(name="proj.o", throws=KeyError, acks_on_failure=False, queue="q")
    def o() -> None: ...

    assert (o.max_retries, o.default_retry_delay, o.acks_late, o.time_limit) == (3, 180.0, True, 7)
    assert (o.throws, o.acks_on_failure, o.acks_on_timeout) == ((KeyError,), False, True)
    loose: Any = o
    assert loose.queue == "q"
    with pytest.raises(AttributeError, match="no attribute 'colour'"):
        _ = loose.colour
    with pytest.raises(ValueError, match="priority"):
        loose.priority = 99


def test_handlers_are_options_and_can_be_assigned(app: Umbel) -> None:
    def report(*args: object) -> None: ...

    @app.task(on_failure=report)
    def t() -> None: ...

    assert t.on_failure is report
    assert t.on_success is no_handler
    t.on_success = report
    assert t.on_success is report
    assert t.before_start("id", (), {}) is None


def test_send_task_of_a_known_name_takes_the_tasks_options(app: Umbel) -> None:
    @app.task(name="proj.k", queue="own", priority=3, time_limit=5)
    def known() -> None: ...

    app.send_task("proj.k", time_limit=None)
    message = only(app, "own")
    assert message.properties["priority"] == 3
    assert message.headers["timelimit"] == [None, None]
    assert message.headers["ignore_result"] is False


def test_settings_come_in_at_the_start() -> None:
    app = Umbel(
        "a",
        broker="memory://settings",
        backend="disabled://",
        include=["a.b"],
        set_as_current=False,
        changes={"task_acks_late": True},
        task_default_queue="q",
    )
    conf = app.conf
    assert (conf.broker_url, conf.result_backend, conf.include) == (
        "memory://settings",
        "disabled://",
        ("a.b",),
    )
    assert (conf.task_acks_late, conf.task_default_queue) == (True, "q")
    with pytest.raises(UnknownSetting, match="task_acks_late"):
        Umbel("a", set_as_current=False, task_ack_late=True)


def test_modules_are_loaded_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    (tmp_path / "umbel_test_include.py").write_text("loaded = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    Umbel("a", include="umbel_test_include", set_as_current=False).load_modules()
    with pytest.raises(ModuleNotFoundError):
        Umbel("a", imports=["umbel_no_such"], set_as_current=False).load_modules()


def test_an_app_can_be_used_after_it_was_closed(app: Umbel) -> None:
    app.send_task("a")
    app.close()
    app.close()
    app.send_task("b")
    assert [message.task for message in waiting(app)] == ["a", "b"]
