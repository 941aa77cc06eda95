"""Classes of tasks: `base=`, `app.Task`, `register_task`."""

from __future__ import annotations

from typing import Any

import pytest
from tests.api.looking import only

from umbel import Task, Umbel
from umbel.exceptions import LaterSetting
from umbel.task import no_handler


class Counting(Task[..., Any]):
    """What tasks of this module have in common."""

    abstract = True
    max_retries = 7
    queue = "counted"
    throws = (KeyError,)
    calls = 0

    def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
        self.calls += 1


class Mixin:
    acks_late = True


class Adder(Mixin, Counting):
    """Adds."""

    name = "proj.adder"
    max_retries = 2

    def __init__(self) -> None:
        self.made = True

    def run(self, x: int, y: int = 1) -> int:
        return x + y


@pytest.mark.option("base")
def test_a_function_gets_the_options_and_methods_of_its_base(app: Umbel) -> None:
    @app.task(base=Counting, name="proj.f", max_retries=1)
    def f(x: int) -> int:
        return x

    @app.task(base=Counting, bind=True)
    def g(self: Any) -> object:
        return self

    loose: Any = f
    assert isinstance(f, Counting)
    assert (f.max_retries, loose.queue, f.throws) == (1, "counted", (KeyError,))
    assert g.max_retries == 7
    assert g() is g
    f.on_success(1, "id", (), {})
    assert (loose.calls, Counting.calls) == (1, 0)
    f.delay(3)
    assert only(app, "counted").task == "proj.f"
    f.max_retries = 9
    assert (f.max_retries, Counting.max_retries, g.max_retries) == (9, 7, 7)


@pytest.mark.parametrize("task", [Adder, Adder()])
def test_a_class_with_run_is_registered(app: Umbel, task: Any) -> None:
    adder = app.register_task(task, priority=4)
    assert isinstance(adder, Adder)
    assert app.tasks["proj.adder"] is adder
    assert (adder(1), adder.run(1, y=3)) == (2, 4)
    assert (adder.max_retries, adder.acks_late, adder.made) == (2, True, True)
    assert (adder.__name__, adder.__doc__) == ("Adder", "Adds.")
    assert adder.on_failure is no_handler
    adder.delay(1, 2)
    message = only(app, "counted")
    assert (message.task, message.properties["priority"]) == ("proj.adder", 4)
    with pytest.raises(TypeError, match="missing 1 required"):
        adder.delay()
    again = app.register_task(Adder)
    assert app.tasks["proj.adder"] is again


def test_a_name_is_the_modules_and_the_classes(app: Umbel) -> None:
    class Plain(Task[..., Any]):
        def run(self) -> object:
            return self.request.called_directly, self.name

    plain = app.register_task(Plain)
    assert plain.name == f"{__name__}.Plain"
    assert plain() == (True, plain.name)


def test_an_apps_own_class_knows_it(app: Umbel) -> None:
    made = Umbel("b", task_cls=Counting, set_as_current=False)

    class Mine(made.Task):  # type: ignore[name-defined,misc]
        def run(self) -> object:
            return self.app

    assert Mine.app is made
    assert made.register_task(Mine)() is made
    assert made.task(lambda: None).max_retries == 7
    assert app.Task is app.Task


def test_a_class_may_have_a_call_of_its_own(app: Umbel) -> None:
    class Loud(Task[..., Any]):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return ("loud", self.run(*args, **kwargs))

    @app.task(base=Loud)
    def f(x: int) -> Any:
        return x

    assert f.entry(3) == ("loud", 3)

    @app.task
    def g(x: int) -> int:
        return x

    assert g.entry(3) == 3


def test_a_call_of_its_own_may_call_the_one_of_task(app: Umbel) -> None:
    """As the worker's execution: the function sees its request, and may retry."""

    class Logged(Task[..., Any]):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return super().__call__(*args, **kwargs)

    @app.task(base=Logged, bind=True, max_retries=3)
    def third(self: Any, n: int) -> Any:
        if self.request.retries < 2:
            raise self.retry(countdown=0)
        return self.request.id, self.request.retries

    assert third.apply((1,), task_id="given").get() == ("given", 2)

    @app.task(base=Logged, bind=True)
    def nested(self: Any, n: int) -> Any:
        """What it calls itself is called like a function."""
        mine = (self.request.id, self.request.called_directly, self.request.args)
        return [mine, *(nested(n - 1) if n else [])]

    assert nested.apply((1,), task_id="outer").get() == [
        ("outer", False, (1,)),
        (None, True, (0,)),
    ]
    assert nested(0) == [(None, True, (0,))]

    @app.task(base=Logged, bind=True)
    async def awaited(self: Any) -> Any:
        return self.request.id

    assert awaited.apply(task_id="loop").get() == "loop"


def test_options_set_before_the_registration_hold(app: Umbel) -> None:
    class Early(Task[..., Any]):
        def __init__(self) -> None:
            self.max_retries = 11

        def run(self) -> None: ...

    assert app.register_task(Early).max_retries == 11


def test_what_is_no_task_class_is_refused(app: Umbel) -> None:
    class NoRun(Task[..., Any]): ...

    class Wrong(Adder):
        priority = 77

    for wrong in (NoRun, int, 5):
        loose: Any = wrong
        with pytest.raises(TypeError, match="with a method run"):
            app.register_task(loose)
    with pytest.raises(ValueError, match="priority is 77"):
        app.register_task(Wrong)
    adder = app.register_task(Adder)
    with pytest.raises(TypeError, match="a task of another app"):
        Umbel("other", set_as_current=False).register_task(adder)


def test_a_rate_limit_of_a_class_is_said_to_have_no_effect(app: Umbel) -> None:
    class Limited(Adder):
        rate_limit = "10/s"

    with pytest.warns(LaterSetting, match="rate_limit has no effect yet"):
        app.register_task(Limited)
