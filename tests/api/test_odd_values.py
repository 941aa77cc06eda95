"""Odd values of options: each is refused in the caller, by a sentence that names option and value,
and nothing is sent."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from umbel import Umbel
from umbel.exceptions import ImproperlyConfigured, TimeoutError
from umbel.routing import Queue

HUGE = 10**400
"""Above every float."""


class Silent:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


@pytest.fixture
def app() -> Umbel:
    return Umbel("odd", broker="memory://", set_as_current=False)


def waiting(app: Umbel) -> int:
    return sum(queue.ready + queue.delayed for queue in app.broker.queues())


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("countdown", HUGE), ("countdown", math.nan), ("countdown", "x" * 10_000),
        ("countdown", Silent()), ("eta", Silent()), ("expires", HUGE), ("time_limit", HUGE),
        ("time_limit", Silent()), ("soft_time_limit", math.nan), ("priority", "x" * 10_000),
        ("priority", Silent()), ("delivery_mode", "x" * 10_000), ("retry_policy", 3),
        ("retry_policy", ""), ("retry_policy", [("max_retries", 1)]), ("retry_policy", {1: 2}),
        ("result_cls", 3),
    ],
)  # fmt: skip
def test_an_option_of_a_call(app: Umbel, option: str, value: Any) -> None:
    @app.task
    def f() -> None: ...

    with pytest.raises((TypeError, ValueError)) as caught:
        f.apply_async(**{option: value})
    message = str(caught.value)
    assert message.startswith(f"{option} is "), message
    assert "; expected " in message
    assert len(message) < 300
    assert waiting(app) == 0


@pytest.mark.parametrize("value", [3, None, "x", [1], {1: 2}])
def test_retry_kwargs_of_a_task(app: Umbel, value: Any) -> None:
    with pytest.raises(TypeError, match=r"retry_kwargs is .*; expected a dict"):
        app.task(retry_kwargs=value)(lambda: None)
    assert not [name for name in app.tasks if "lambda" in name]


@pytest.mark.parametrize("value", [math.nan, HUGE, "1", [], Silent()])
@pytest.mark.parametrize("option", ["timeout", "interval"])
def test_times_of_get(app: Umbel, option: str, value: Any) -> None:
    """A timeout that no clock can tell the end of would wait for ever."""
    options: dict[str, Any] = {"timeout": 0.01, option: value}
    with pytest.raises(ValueError, match=f"{option} is .*; expected a number of seconds"):
        app.AsyncResult("id").get(**options)


QUEUES: list[tuple[str, Callable[[], Any]]] = [
    ("queue_arguments of queue 'q' is 3", lambda: Queue("q", queue_arguments=3)),  # type: ignore[arg-type]
    ("queue_arguments of queue 'q' is \\['x'\\]", lambda: Queue("q", queue_arguments=["x"])),  # type: ignore[arg-type]
    ("bindings of queue 'q' is 3", lambda: Queue("q", bindings=3)),  # type: ignore[arg-type]
    ("bindings of queue 'q' names 'ab'", lambda: Queue("q", bindings=["ab"])),  # type: ignore[list-item]
    ("bindings of queue 'q' names 1", lambda: Queue("q", [1, 2])),  # type: ignore[list-item]
    ("max_priority of queue 'q' is 'xx", lambda: Queue("q", max_priority="x" * 9999)),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("message", "make"), QUEUES)
def test_what_is_no_queue(message: str, make: Callable[[], Any]) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^{message}") as caught:
        make()
    assert "; expected " in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("max_retries", "3"), ("max_retries", -1), ("max_retries", 1.5), ("max_retries", True),
        ("max_redeliveries", "3"), ("acks_late", "false"), ("ignore_result", "no"),
        ("reject_on_worker_lost", []), ("typing", 2), ("dead_letters", Silent()),
    ],
)  # fmt: skip
def test_an_option_of_a_task(app: Umbel, option: str, value: Any) -> None:
    """Such as text from the environment, which a worker would find out when it is too late."""
    message = f"{option} is .*; expected"
    options: dict[str, Any] = {option: value}
    make: Callable[..., Any] = app.task
    with pytest.raises(ValueError, match=message):
        make(name="f", **options)(print)
    assert "f" not in app.tasks

    annotated = Umbel(
        "more", broker="memory://", set_as_current=False, task_annotations={"*": options}
    )
    with pytest.raises(ValueError, match=message):
        annotated.task(name="f")(lambda: None).delay()


HALF = "a\udcff"
"""Half of a surrogate pair in it, as in an argument of a command line that isn't UTF-8."""


@pytest.fixture(params=["memory", "sqlite"])
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Umbel]:
    url = "memory://odd" if request.param == "memory" else f"sqlite:///{tmp_path}/odd.db"
    with Umbel("odd", broker=url, set_as_current=False) as app:
        app.broker.declare(["celery"])
        yield app


def test_of_what_is_not_unicode_there_is_nothing(either: Umbel) -> None:
    app = either
    assert str(app.why(HALF)).startswith("never seen")
    assert app.AsyncResult(HALF).state == app.backend.get_state(HALF) == "PENDING"
    with pytest.raises(TimeoutError, match="its state is PENDING"):
        app.AsyncResult(HALF).get(timeout=0.01)
    app.AsyncResult(HALF).forget()
    assert app.dead.list(HALF) == []
    assert app.dead.get(HALF) is None
    assert app.dead.requeue(HALF) is False
    assert app.dead.delete(HALF) is False
    assert app.dead.delete_all(HALF) == 0


def test_what_is_not_unicode_is_not_stored(either: Umbel) -> None:
    @either.task
    def f() -> None: ...

    calls: list[tuple[str, Callable[[], Any]]] = [
        ("update_state of task '.*' got the state", lambda: f.update_state("id", HALF, {})),
        ("task_id is", lambda: f.update_state(HALF, "S", {})),
        ("store_result got the state", lambda: either.backend.store_result("id", 1, HALF)),
        ("task_id is", lambda: either.backend.store_result(HALF, 1, "S")),
        ("task_id is", lambda: either.revoke([HALF])),
    ]
    for message, call in calls:
        with pytest.raises(TypeError, match=rf"^{message} 'a\\udcff'; expected a text"):
            call()
    assert either.store is not None
    assert either.store.get(["id"]) == [None]


def test_annotations_that_are_no_options() -> None:
    app = Umbel("odd", broker="memory://", set_as_current=False, task_annotations={"f": 3})
    with pytest.raises(ImproperlyConfigured, match="task_annotations has 3 for 'f'; expected a"):
        app.task(name="f")(lambda: None).delay()


def test_settings_that_no_float_or_text_can_hold(app: Umbel) -> None:
    endless: list[Any] = []
    endless.append(endless)
    for value, shown in ((HUGE, "1000"), (endless, "a list that contains itself")):
        before = app.conf.task_time_limit
        with pytest.raises(ImproperlyConfigured, match=f"'task_time_limit' can't be {shown}"):
            app.conf["task_time_limit"] = value
        assert app.conf.task_time_limit == before
