"""`Task.retry` and automatic retries: what is raised, and the message of the next try."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.api.looking import lease

from umbel import Task, Umbel
from umbel.clock import ManualClock
from umbel.exceptions import Ignore, MaxRetriesExceededError, Reject, Retry
from umbel.message import Message, Posting
from umbel.request import Context, running

NOW = 1_800_000_000.0
SOON = datetime(2027, 1, 15, 8, 1, tzinfo=UTC)


class Boom(Exception):
    pass


@pytest.fixture
def task(app: Umbel) -> Task[..., Any]:
    @app.task(bind=True, name="proj.t")
    def t(self: Any, a: Any = 0, b: Any = 0) -> None: ...

    return t


def begin(app: Umbel, task: Task[..., Any], *args: Any, **options: Any) -> Context:
    task.apply_async(args, **options)
    return lease(app)


def retry(task: Task[..., Any], request: Context, **options: Any) -> Posting:
    """The posting of a retry, from inside a run."""
    with running(task, request), pytest.raises(Retry) as caught:
        task.retry(**options)
    posting = caught.value.posting
    assert posting is not None
    assert request.follow_ups == [posting]
    return posting


def old(request: Context) -> Message:
    assert request.delivery is not None
    message = request.delivery.message
    assert isinstance(message, Message)
    return message


def test_the_next_message_differs_only_where_it_must(app: Umbel, task: Task[..., Any]) -> None:
    request = begin(
        app, task, 1, priority=4, headers={"tenant": "acme"}, time_limit=9, shadow="s", root_id="r"
    )
    before = old(request)
    before.headers.update({"redelivered": True, "x-death": [{}], "x-first-death-queue": "q"})
    posting = retry(task, request)
    after = posting.message
    eta = "2027-01-15T08:03:00+00:00"
    gone = {"redelivered", "x-death", "x-first-death-queue"}
    kept = {name: value for name, value in before.headers.items() if name not in gone}
    assert after.headers == {**kept, "retries": 1, "eta": eta, "parent_id": request.id}
    assert after.headers["root_id"] == "r"
    assert after.body == before.body
    tag = after.properties["delivery_tag"]
    assert tag != before.properties["delivery_tag"]
    assert after.properties == {**before.properties, "delivery_tag": tag}
    assert (posting.routing_key, posting.exchange, posting.priority) == ("celery", "", 4)
    assert posting.due_at == NOW + 180


def test_a_parent_stays_and_retries_go_up(app: Umbel, task: Task[..., Any]) -> None:
    request = begin(app, task, parent_id="p")
    app.publisher.send([retry(task, request, countdown=0)], None)
    again = lease(app)
    assert (again.id, again.parent_id, again.retries) == (request.id, "p", 1)
    assert retry(task, again).message.headers["retries"] == 2


def test_it_goes_back_to_the_queue_it_came_from(app: Umbel, task: Task[..., Any]) -> None:
    task.apply_async(queue="slow")
    app.conf.task_create_missing_queues = False
    request = lease(app, "slow")
    assert retry(task, request).routing_key == "slow"
    app.conf.task_create_missing_queues = True
    request.follow_ups.clear()
    posting = retry(task, request, queue="other")
    assert posting.routing_key == "other"
    assert posting.message.properties["delivery_info"] == {"exchange": "", "routing_key": "other"}


@pytest.mark.parametrize(
    ("options", "due_in", "when"),
    [
        ({}, 180, 180.0),
        ({"countdown": 7}, 7, 7),
        ({"eta": SOON}, 60, SOON),
        ({"eta": SOON, "countdown": 7}, 7, 7),
    ],
)
def test_when_it_is_due(
    app: Umbel, task: Task[..., Any], options: Any, due_in: float, when: Any
) -> None:
    request = begin(app, task)
    error = Boom("x")
    with running(task, request), pytest.raises(Retry) as caught:
        task.retry(exc=error, **options)
    assert caught.value.exc is error
    assert caught.value.when == when
    assert caught.value.posting is not None
    assert caught.value.posting.due_at == NOW + due_in


def test_the_default_delay_is_an_option(app: Umbel, task: Task[..., Any]) -> None:
    task.default_retry_delay = 5
    assert retry(task, begin(app, task)).due_at == NOW + 5


def test_options_of_the_retry_replace_those_of_the_message(
    app: Umbel, task: Task[..., Any]
) -> None:
    request = begin(app, task, expires=100, time_limit=9, soft_time_limit=8, headers={"a": 1})
    posting = retry(
        task, request, priority=9, expires=50, soft_time_limit=3, headers={"b": 2}, shadow="x"
    )
    headers, properties = posting.message.headers, posting.message.properties
    assert (headers["timelimit"], headers["a"], headers["b"], headers["shadow"]) == (
        [9, 3],
        1,
        2,
        "x",
    )
    assert headers["expires"] == "2027-01-15T08:00:50+00:00"
    assert (properties["priority"], properties["expiration"]) == (9, "50000")
    assert posting.priority == 9


def test_expires_stays_as_it_was(app: Umbel, clock: ManualClock, task: Task[..., Any]) -> None:
    request = begin(app, task, expires=100)
    clock.advance(40)
    message = retry(task, request).message
    assert message.headers["expires"] == "2027-01-15T08:01:40+00:00"
    assert message.properties["expiration"] == "60000"


@pytest.mark.parametrize(
    ("first", "again", "body"),
    [
        ({"args": (1, 2)}, {"args": (3, 4)}, [[3, 4], {}]),
        ({"args": (1,), "kwargs": {"b": 2}}, {"args": (3, 4)}, [[3, 4], {}]),
        ({"args": (1,), "kwargs": {"b": 2}}, {"args": (3,)}, [[3], {"b": 2}]),
        ({"args": (1, 2)}, {"kwargs": {"a": 3}}, [[], {"a": 3, "b": 2}]),
        ({"args": (1, 2)}, {"kwargs": {"b": 3}}, [[1], {"b": 3}]),
        ({"args": (1, 2)}, {"args": (), "kwargs": {"a": 5}}, [[], {"a": 5}]),
    ],
)
def test_new_arguments(
    app: Umbel, task: Task[..., Any], first: Any, again: Any, body: list[Any]
) -> None:
    task.apply_async(**first)
    message = retry(task, lease(app), **again).message
    embed = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
    assert json.loads(message.body) == [*body, embed]
    assert message.headers["argsrepr"] == repr(tuple(body[0]))
    assert message.headers["kwargsrepr"] == repr(body[1])


def test_new_arguments_must_fit(app: Umbel, task: Task[..., Any]) -> None:
    request = begin(app, task)
    with running(task, request), pytest.raises(TypeError, match=r"proj\.t\(\)"):
        task.retry(args=(1, 2, 3))
    assert request.follow_ups == []


def test_throw_false_returns_it_and_it_is_sent_all_the_same(
    app: Umbel, task: Task[..., Any]
) -> None:
    request = begin(app, task)
    with running(task, request):
        asked = task.retry(throw=False)
    assert request.follow_ups == [asked.posting]


def while_handling(error: Exception, call: Callable[[], object]) -> None:
    try:
        raise error
    except type(error):
        call()


def at(request: Context, retries: int) -> Context:
    request.retries = retries
    return request


def test_three_retries_are_four_runs(app: Umbel, task: Task[..., Any]) -> None:
    request = begin(app, task, 1)
    for retries in range(3):
        request.follow_ups.clear()
        retry(task, at(request, retries))
    with running(task, at(request, 3)):
        with pytest.raises(MaxRetriesExceededError, match=r"proj\.t\[.*\] .* 3 retries") as caught:
            task.retry()
        assert caught.value.task_args == [1]
        cause = KeyError("cause")
        with pytest.raises(Boom) as boom:
            while_handling(cause, lambda: task.retry(exc=Boom()))
        assert boom.value.__cause__ is cause


@pytest.mark.option("max_retries")
def test_max_retries_none_is_no_end_and_an_argument_wins(app: Umbel, task: Task[..., Any]) -> None:
    request = at(begin(app, task), 10**6)
    task.max_retries = None
    assert retry(task, request).message.headers["retries"] == 10**6 + 1
    with running(task, request), pytest.raises(MaxRetriesExceededError):
        task.retry(max_retries=5)
    task.max_retries = 0
    request.follow_ups.clear()
    retry(task, at(request, 4), max_retries=5)


def test_outside_a_worker_it_raises_what_there_is(task: Task[..., Any]) -> None:
    with pytest.raises(Boom):
        task.retry(exc=Boom())
    with pytest.raises(Retry):
        task.retry()
    error = Boom()
    with pytest.raises(Boom) as caught:
        while_handling(error, task.retry)
    assert caught.value is error


def test_an_unknown_option_is_refused(app: Umbel, task: Task[..., Any]) -> None:
    loose: Any = task
    request = begin(app, task)
    with running(task, request), pytest.raises(TypeError, match="did you mean 'queue'"):
        loose.retry(queu="x")
    assert request.follow_ups == []


# Automatic retries


def auto(app: Umbel, **options: Any) -> Task[..., Any]:
    def fail() -> None: ...

    decorate: Any = app.task(name="proj.auto", **options)
    made: Task[..., Any] = decorate(fail)
    return made


def next_try(app: Umbel, task: Task[..., Any], error: Exception, retries: int = 0) -> Retry | None:
    request = at(begin(app, task), retries)
    with running(task, request):
        return task.next_try(error)


@pytest.mark.option("autoretry_for", "dont_autoretry_for")
def test_only_named_exceptions_are_retried(app: Umbel) -> None:
    task = auto(app, autoretry_for=(ValueError, OSError), dont_autoretry_for=[FileNotFoundError])
    assert next_try(app, task, KeyError()) is None
    assert next_try(app, task, FileNotFoundError()) is None
    error = OSError("x")
    found = next_try(app, task, error)
    assert found is not None
    assert found.exc is error
    assert found.when == 180
    assert found.posting is not None
    assert found.posting.message.headers["retries"] == 1


@pytest.mark.parametrize("error", [Ignore(), Reject(), Retry()])
def test_what_a_task_says_itself_is_not_retried(app: Umbel, error: Exception) -> None:
    assert next_try(app, auto(app, autoretry_for=Exception), error) is None


def test_no_retry_is_left(app: Umbel) -> None:
    task = auto(app, autoretry_for=Exception)
    assert next_try(app, task, Boom(), retries=2) is not None
    assert next_try(app, task, Boom(), retries=3) is None


@pytest.mark.option("retry_kwargs")
def test_retry_kwargs_count_and_delay(app: Umbel) -> None:
    task = auto(app, autoretry_for=Exception, retry_kwargs={"max_retries": 5, "countdown": 2})
    found = next_try(app, task, Boom(), retries=4)
    assert found is not None
    assert found.when == 2
    assert next_try(app, task, Boom(), retries=5) is None


@pytest.mark.option("retry_backoff", "retry_backoff_max")
@pytest.mark.parametrize(("retries", "delay"), [(0, 2), (1, 4), (3, 16), (9, 60)])
def test_backoff_replaces_the_countdown(app: Umbel, retries: int, delay: int) -> None:
    task = auto(
        app,
        autoretry_for=Exception,
        max_retries=None,
        retry_backoff=2,
        retry_backoff_max=60,
        retry_jitter=False,
        retry_kwargs={"countdown": 1},
    )
    found = next_try(app, task, Boom(), retries)
    assert found is not None
    assert found.when == delay


@pytest.mark.option("retry_jitter")
def test_jitter_draws_whole_seconds_up_to_the_delay(app: Umbel) -> None:
    task = auto(app, autoretry_for=Exception, retry_backoff=4)
    drawn = {getattr(next_try(app, task, Boom()), "when", None) for _ in range(200)}
    assert drawn == {0, 1, 2, 3, 4}
