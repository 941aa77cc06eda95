"""States of one's own, annotations of tasks, task loggers, results as tuples."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from tests.api.looking import lease, only, store

from umbel import AsyncResult, Task, Umbel
from umbel.exceptions import EncodeError, ImproperlyConfigured
from umbel.request import running
from umbel.result import result_from_tuple
from umbel.tasklog import TaskFormatter, WorkerFormatter, get_task_logger


def test_update_state(app: Umbel) -> None:
    @app.task(bind=True)
    def work(self: Task[..., Any]) -> None:
        self.update_state(state="PROGRESS", meta={"done": 3})
        self.update_state(task_id="another", state="SEEN")

    result = work.delay()
    with running(work, lease(app)):
        work.run()
    assert (result.state, result.info, result.ready()) == ("PROGRESS", {"done": 3}, False)
    assert app.AsyncResult("another").state == "SEEN"
    work.update_state(result.id, meta={"done": 4})
    assert (result.state, result.info) == ("PROGRESS", {"done": 4})
    store(app, result.id, "SUCCESS", 5)
    work.update_state(result.id, "PROGRESS")
    assert app.AsyncResult(result.id).state == "SUCCESS"
    with pytest.raises(ValueError, match="name a task_id"):
        work.update_state(state="PROGRESS")
    with pytest.raises(EncodeError, match="meta of state PROGRESS"):
        work.update_state("x", "PROGRESS", meta=object())
    for state in (3, "", ["PROGRESS"]):
        with pytest.raises(TypeError, match=r"got the state .*; expected a text"):
            work.update_state("x", state)  # type: ignore[arg-type]


def test_update_state_in_the_caller_stores_only_if_asked(app: Umbel) -> None:
    @app.task(bind=True)
    def work(self: Task[..., Any]) -> None:
        self.update_state(state="PROGRESS")
        raise KeyError

    assert not app.AsyncResult(work.apply().id).exists()
    app.conf.task_store_eager_result = True
    seen = []
    work.on_failure = lambda exc, task_id, *more: seen.append(app.AsyncResult(task_id).state)
    work.apply()
    assert seen == ["FAILURE"]


@pytest.mark.setting("task_annotations")
def test_task_annotations(app: Umbel) -> None:
    called: list[object] = []

    class Annotator:
        def annotate(self, task: Task[..., Any]) -> Any:
            return {"queue": "annotated"} if task.name == "b" else None

    app.conf.task_annotations = [
        {"*": {"max_retries": 5, "on_failure": lambda self, *args: called.append(self)}},
        {"a": {"max_retries": 6, "acks_late": True}},
        Annotator(),
    ]

    @app.task(name="a", max_retries=1)
    def a() -> None:
        raise KeyError

    @app.task(name="b", max_retries=1)
    def b() -> None: ...

    b.delay()
    assert only(app, "annotated").task == "b"
    assert (a.max_retries, a.acks_late, b.max_retries, b.acks_late) == (6, True, 5, False)
    a.apply()
    assert called == [a]

    @app.task
    def late() -> None: ...

    assert late.max_retries == 5
    app.conf.task_annotations = 5
    with pytest.raises(ImproperlyConfigured, match="task_annotations has 5"):
        app.task(lambda: None)


def test_task_loggers(app: Umbel) -> None:
    records: list[logging.LogRecord] = []
    logger = get_task_logger(f"{__name__}.one")
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign,assignment]
    logger.addHandler(handler)
    text: list[str] = []
    form = WorkerFormatter("W %(message)s", None, "%(task_name)s[%(task_id)s] %(message)s", None)

    @app.task(name="log", bind=True)
    def log(self: Task[..., Any]) -> None:
        logger.warning("inside")
        text.append(form.format(records[-1]))

    log.apply(task_id="the-id")
    logger.warning("outside")
    text.append(form.format(records[-1]))
    text.append(form.format(logging.makeLogRecord({"name": "other", "msg": "plain"})))
    assert text == ["log[the-id] inside", "???[???] outside", "W plain"]
    assert logger.parent is get_task_logger("umbel.task")
    assert TaskFormatter("%(task_id)s").format(records[-1]) == "???"
    logger.removeHandler(handler)


def test_results_as_tuples(app: Umbel) -> None:
    first: AsyncResult[Any] = AsyncResult("first", app=app)
    last: AsyncResult[Any] = AsyncResult("last", app=app, parent=first)
    assert last.as_tuple() == (("last", (("first", None), None)), None)
    again = result_from_tuple(json.loads(json.dumps(last.as_tuple())), app)
    assert (again.id, again.parent.id, again.parent.parent) == ("last", "first", None)  # type: ignore[union-attr]
    assert result_from_tuple(last) is last
    assert result_from_tuple("x", app).id == "x"
    with pytest.raises(ValueError, match="expected what as_tuple"):
        result_from_tuple((1, 2), app)
