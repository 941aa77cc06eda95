"""Options of tasks and calls that no other test shows; the page of options names them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.api.looking import lease, only, waiting
from tests.worker.harness import until
from tests.worker.living import Place

from umbel import Umbel
from umbel.exceptions import Retry
from umbel.request import running

pytestmark = pytest.mark.filterwarnings("ignore::umbel.exceptions.NoWorkerYet")


def with_options(place: Place, **options: Any) -> Any:
    env = {"OPTIONS": json.dumps(options)}
    return place.worker("-c", "1", app="tests.settings.settings_app", env=env)


# Of tasks


@pytest.mark.option("resultrepr_maxsize")
@pytest.mark.parametrize(("size", "whole"), [(1024, True), (20, False)])
def test_the_log_shows_so_much_of_a_result(place: Place, size: int, whole: bool) -> None:
    worker = with_options(place, resultrepr_maxsize=size)
    result = place.send("echo", "x" * 100)
    result.get(timeout=30)
    assert worker.stop() == 0, worker.text
    (line,) = [line for line in worker.text.splitlines() if "succeeded" in line]
    assert ("x" * 100 in line) is whole
    assert "x" * 10 in line


@pytest.mark.option("throws")
def test_what_a_task_may_throw_is_no_error_in_the_log(place: Place) -> None:
    worker = place.worker("-c", "1", app="tests.settings.settings_app")
    for name in ("fail", "expected_fail"):
        until(place.send(name, name).ready, what=name)
    assert worker.stop() == 0, worker.text
    lines = worker.text.splitlines()
    assert [line for line in lines if "ERROR/" in line and "Task fail[" in line]
    assert [line for line in lines if "INFO/" in line and "Task expected_fail[" in line]
    assert not [line for line in lines if "ERROR/" in line and "expected_fail" in line]


@pytest.mark.option("trail")
@pytest.mark.parametrize("trail", [True, False])
def test_children_are_noted_or_not(app: Umbel, trail: bool) -> None:
    task = app.task(name="parent", trail=trail)(lambda: None)
    task.delay()
    request = lease(app)
    with running(task, request):
        app.send_task("child")
    assert len(request.children) == trail


@pytest.mark.option("default_retry_delay")
def test_the_delay_of_retries(app: Umbel) -> None:
    task = app.task(name="again", default_retry_delay=7)(lambda: None)
    task.delay()
    with running(task, lease(app)), pytest.raises(Retry) as caught:
        task.retry()
    assert caught.value.when == 7


@pytest.mark.option("store_eager_result")
@pytest.mark.parametrize("store", [True, False])
def test_results_of_eager_tasks(app: Umbel, store: bool) -> None:
    task = app.task(name="eager", store_eager_result=store)(lambda: 3)
    result = task.apply()
    assert result.get() == 3
    assert app.AsyncResult(result.id).exists() is store


@pytest.mark.option("name")
def test_the_name_of_a_task(app: Umbel) -> None:
    task = app.task(name="a.name")(lambda: None)
    task.delay()
    assert only(app).task == "a.name"


@pytest.mark.option("typing")
@pytest.mark.parametrize("typing", [True, False])
def test_the_check_of_arguments(app: Umbel, typing: bool) -> None:
    task: Any = app.task(name="typed", typing=typing)(lambda: None)
    if typing:
        with pytest.raises(TypeError):
            task.delay(1)
    else:
        task.delay(1)
    assert len(waiting(app)) == (not typing)


@pytest.mark.option("queue", "priority", "expires", "time_limit", "soft_time_limit", "serializer",
                    "compression")  # fmt: skip
def test_options_of_a_task_hold_for_its_calls_unless_they_say_otherwise(app: Umbel) -> None:
    task = app.task(
        name="a", queue="slow", priority=3, expires=60, time_limit=9, soft_time_limit=8,
        serializer="yaml", compression="zlib",
    )(lambda: None)  # fmt: skip
    task.delay()
    task.apply_async(queue="fast", priority=5, expires=None, time_limit=5, soft_time_limit=4,
                     serializer="json")  # fmt: skip
    slow, fast = only(app, "slow"), only(app, "fast")
    assert (slow.properties["priority"], fast.properties["priority"]) == (3, 5)
    assert (slow.headers["expires"] is None, fast.headers["expires"]) == (False, None)
    assert (slow.headers["timelimit"], fast.headers["timelimit"]) == ([9, 8], [5, 4])
    assert (slow.content_type, fast.content_type) == ("application/x-yaml", "application/json")
    assert slow.headers["compression"] == "application/x-gzip"


# Of calls


@pytest.mark.option("countdown", "eta")
def test_when_a_call_is_due(app: Umbel) -> None:
    app.send_task("a", countdown=60)
    app.send_task("b", eta="2030-01-01T00:00:00+00:00")
    app.send_task("c", eta="2030-01-01T00:00:00+00:00", countdown=-1)
    (queue,) = app.broker.queues()
    assert (queue.ready, queue.delayed) == (1, 2)


@pytest.mark.option("declare")
def test_queues_that_are_declared_before(app: Umbel) -> None:
    app.send_task("a", declare=["others"])
    assert {queue.name for queue in app.broker.queues()} == {"celery", "others"}


@pytest.mark.option("add_to_parent")
@pytest.mark.parametrize("add", [True, False])
def test_a_call_is_a_child_or_not(app: Umbel, add: bool) -> None:
    task = app.task(name="parent")(lambda: None)
    task.delay()
    request = lease(app)
    with running(task, request):
        app.send_task("child", add_to_parent=add)
    assert len(request.children) == add
