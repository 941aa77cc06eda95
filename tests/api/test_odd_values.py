"""Odd values of options: each is refused in the caller, by a sentence that names option and value,
and nothing is sent."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from umbel import Umbel, shared_task
from umbel.exceptions import ImproperlyConfigured, TimeoutError
from umbel.exchanges import Exchange
from umbel.queues import Queue, binding

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
        ("result_cls", 3), ("stamped_headers", 3), ("stamped_headers", [3]),
        ("stamped_headers", "tenant"), ("stamped_headers", Silent()), ("route_name", {}),
        ("route_name", {1: 2}), ("route_name", 3),
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


class Undecided:
    def __bool__(self) -> bool:
        raise RuntimeError("neither")


def test_whether_a_call_is_a_child_is_known_before_it_is_sent(app: Umbel) -> None:
    @app.task
    def f() -> None: ...

    undecided: Any = Undecided()
    with pytest.raises(RuntimeError, match="neither"):
        f.apply_async(add_to_parent=undecided)
    with pytest.raises(RuntimeError, match="neither"):
        app.send_task("f", add_to_parent=undecided)
    with pytest.raises(RuntimeError, match="neither"):
        asyncio.run(f.aapply_async(add_to_parent=undecided))
    assert waiting(app) == 0


@pytest.mark.parametrize("bad", [3, None, "x", [1], {1: 2}, Silent()])
def test_arguments_that_are_of_no_use(app: Umbel, bad: Any) -> None:
    """Of calls that take more than options: what they got, and what they expected."""

    @app.task(name="f")
    def f(**named: object) -> None: ...

    named: Any = {3: 4}
    odd: Any = bad  # for which no type is narrowed
    calls: list[tuple[str, Callable[[], object]]] = [
        ("kwargs of task 'f' is {3: 4}, with the key 3", lambda: f.apply_async(kwargs=named)),
        ("kwargs of task 'f' is {3: 4}, with the key 3", lambda: app.send_task("f", kwargs=named)),
        ("kwargs of task 'f' is {3: 4}, with the key 3", lambda: f.apply(kwargs=named)),
        ("stamped_headers is 3", lambda: f.s().stamp(stamped_headers=3)),
        ("stamped_headers is 3", lambda: f.s().set(stamped_headers=3).apply_async()),
    ]
    if not isinstance(bad, str):
        calls += [
            ("task_id is ", lambda: app.why(odd)),
            ("task_id is ", lambda: app.dead.get(odd)),
            ("task_id is ", lambda: app.dead.requeue(odd)),
            ("task_id is ", lambda: app.dead.delete(odd)),
        ]
    if not callable(bad) and bad is not None:
        calls += [
            ("filter is ", lambda: app.task(filter=odd)(print)),
            ("filter is ", lambda: shared_task(filter=odd)(print)),
        ]
    if not isinstance(bad, (list, dict)):
        calls += [
            ("revoke got ", lambda: app.revoke(odd)),
            ("delay_many of task 'f' got ", lambda: f.delay_many(odd)),
        ]
    for message, call in calls:
        with pytest.raises(TypeError, match=f"^{re.escape(message)}") as caught:
            call()
        assert "; expected " in str(caught.value)
    assert waiting(app) == 0


def test_packages_that_are_none(app: Umbel) -> None:
    message = "autodiscover_tasks\\(\\) got .* as packages; expected a list of their names"
    for bad in (3, [3], Silent(), {3: 4}):
        with pytest.raises(ImproperlyConfigured, match=message):
            app.autodiscover_tasks(bad)  # type: ignore[arg-type]
    with pytest.raises(ImproperlyConfigured, match=message):
        app.autodiscover_tasks(lambda: 3, force=True)  # type: ignore[arg-type]
    with pytest.raises(ImproperlyConfigured, match="got related_name=3; expected the name of a"):
        app.autodiscover_tasks(["umbel"], 3)  # type: ignore[arg-type]


def test_a_list_in_place_of_a_name(app: Umbel) -> None:
    """Which can't be looked for in a dict."""

    @app.task(name="f")
    def f() -> None: ...

    bad: Any = ["json"]
    with pytest.raises(ImproperlyConfigured, match=r"no serializer \['json'\] is known here"):
        f.apply_async(serializer=bad)
    with pytest.raises(ImproperlyConfigured, match=r"no serializer \['json'\] is known here"):
        app.task(name="g", serializer=bad)(lambda: None).delay()
    with pytest.raises(ImproperlyConfigured, match=r"exchange is named .*; expected a text"):
        Exchange(bad)
    with pytest.raises(TypeError, match=r"alias of queue 'q' is \['json'\]; expected a text"):
        Queue("q", alias=bad)
    with pytest.raises(TypeError, match=r"routing_key of a binding to 'e' is \['json'\]; expected"):
        binding("e", bad)
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
