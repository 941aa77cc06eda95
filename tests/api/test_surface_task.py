"""Every name of a Celery task's surface, of its request and of the options of its calls."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from tests.api.looking import lease, only, waiting

from umbel import AsyncResult, Signature, Task, Umbel, chain
from umbel.exceptions import (
    Ignore,
    ImproperlyConfigured,
    LaterSetting,
    NotProvided,
    Unroutable,
)
from umbel.message import Posting
from umbel.request import Context, current_request, running

DEFAULTS: dict[str, Any] = {
    "typing": True,
    "max_retries": 3,
    "default_retry_delay": 180,
    "rate_limit": None,
    "ignore_result": False,
    "trail": True,
    "send_events": True,
    "store_errors_even_if_ignored": False,
    "store_eager_result": False,
    "serializer": "json",
    "compression": None,
    "time_limit": None,
    "soft_time_limit": None,
    "track_started": False,
    "acks_late": False,
    "acks_on_failure": True,
    "acks_on_timeout": True,
    "acks_on_failure_or_timeout": True,
    "reject_on_worker_lost": False,
    "retry_on_worker_lost": False,
    "throws": (),
    "expires": None,
    "priority": None,
    "resultrepr_maxsize": 1024,
    "queue": None,
    "exchange": None,
    "routing_key": None,
    "autoretry_for": (),
    "dont_autoretry_for": (),
    "retry_kwargs": {},
    "retry_backoff": False,
    "retry_backoff_max": 600,
    "retry_jitter": True,
    "__bound__": True,
}
METHODS = (
    "run", "__call__", "delay", "apply_async", "apply", "retry", "replace", "update_state",
    "signature", "subtask", "s", "si", "chunks", "map", "starmap", "AsyncResult",
    "signature_from_request", "subtask_from_request", "shadow_name", "add_trail", "push_request",
    "pop_request", "bind", "on_bound", "annotate", "add_around", "before_start", "on_success",
    "on_retry", "on_failure", "after_return", "on_replace",
)  # fmt: skip
ABSENT = {
    "Strategy": "task_received",
    "Request": "before_start",
    "start_strategy": "no start strategies",
    "from_config": "task_<option>",
    "send_event": "Events and remote control",
    "add_to_chord": "Workflows",
}


@pytest.fixture
def add(app: Umbel) -> Task[[int, int], int]:
    @app.task
    def add(x: int, y: int) -> int:
        return x + y

    return add


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_there(add: Task[[int, int], int], name: str) -> None:
    assert callable(getattr(add, name))


@pytest.mark.parametrize(("name", "value"), DEFAULTS.items())
def test_an_option_is_an_attribute(add: Task[[int, int], int], name: str, value: object) -> None:
    assert getattr(add, name) == value


@pytest.mark.parametrize(("name", "hint"), ABSENT.items())
def test_what_is_not_there_says_what_to_use(
    add: Task[[int, int], int], name: str, hint: str
) -> None:
    with pytest.raises(NotProvided, match=rf"task\.{name} .*{hint}"):
        getattr(add, name)
    assert not hasattr(add, name)


@pytest.mark.parametrize("name", ["chunks", "map", "starmap"])
def test_many_in_few_messages_come_later(add: Task[[int, int], int], name: str) -> None:
    with pytest.raises(ImproperlyConfigured, match="Workflows"):
        getattr(add, name)([(1, 2)], *((2,) if name == "chunks" else ()))


def test_an_option_that_is_left_out_is_its_setting(app: Umbel, add: Task[..., int]) -> None:
    app.conf.update(task_serializer="yaml", task_default_priority=4, task_compression="zlib")
    assert (add.serializer, add.priority, add.compression) == ("yaml", 4, "zlib")
    add.serializer = "json"
    add.time_limit = 30  # set after the definition: holds for what is sent from now on
    assert add.serializer == "json"
    add.delay(1, 2)
    message = only(app)
    assert (message.content_type, message.headers["timelimit"]) == (
        "application/json", [30, None],
    )  # fmt: skip


def test_request_and_strategy_can_not_be_replaced() -> None:
    for name in ("Request", "Strategy"):
        with pytest.raises(ImproperlyConfigured, match=f"sets {name}.*task_received"):
            type("Mine", (Task,), {name: object})


@pytest.mark.parametrize("limit", ["10/m", 5.0])
def test_a_rate_limit_names_what_honours_it(app: Umbel, limit: str | float) -> None:
    with pytest.warns(LaterSetting, match="the release that brings rate limits") as said:
        limited = app.task(rate_limit=limit)(test_add_trail)
    assert len(said) == 1
    assert limited.rate_limit == limit


def test_results_are_kept_by_the_app(app: Umbel, add: Task[[int, int], int]) -> None:
    assert add.backend is app.backend
    with pytest.raises(ImproperlyConfigured, match="result_backend"):
        app.task(backend="redis://")(test_add_trail)  # type: ignore[call-overload]


# Hooks of classes


class Hooked(Task[..., Any]):
    bound_to: list[Umbel] = []

    @classmethod
    def on_bound(cls, app: Umbel) -> None:
        cls.bound_to.append(app)

    def shadow_name(self, args: Any, kwargs: Any, options: Any) -> str:
        return f"{self.name}-{args[0]}"


def test_on_bound_and_shadow_name(app: Umbel) -> None:
    @app.task(base=Hooked, name="t")
    def hooked(x: int) -> None: ...

    assert Hooked.bound_to[-1] is app
    hooked.delay(3)
    hooked.apply_async((4,), shadow="other")
    assert [message.headers["shadow"] for message in waiting(app)] == ["t-3", "other"]


def test_bind_gives_a_class_its_app(app: Umbel) -> None:
    class Mine(Task[..., Any]):
        pass

    assert Mine.bind(app) is app
    assert Mine.app is app
    with pytest.raises(TypeError, match="a class of your own"):
        Task.bind(app)


def test_add_around_wraps_a_method(app: Umbel) -> None:
    class Mine(Task[..., Any]):
        name = "mine"

        def run(self) -> int:
            return 1

    def doubled(method: Callable[..., int]) -> Callable[..., int]:
        return lambda self: 2 * method(self)

    Mine.add_around("run", doubled)
    Mine.add_around("run", doubled)  # in place of the first, as it wraps what was there
    assert app.register_task(Mine)() == 2


# Requests


def test_push_and_pop_request(add: Task[[int, int], int]) -> None:
    assert not add.request.id
    add.push_request({"id": "a"}, retries=2)
    add.push_request(id="b")
    stack = add.request_stack
    assert (add.request.id, add.request.retries, len(stack)) == ("b", 0, 2)
    popped = add.pop_request()
    assert popped is not None
    assert popped.id == "b"
    assert add.request.retries == 2
    assert stack.top is add.request
    add.pop_request()
    assert add.pop_request() is None
    assert not add.request.id
    assert not stack.top
    assert len(stack) == 0


REQUEST_DEFAULTS: dict[str, Any] = {
    "args": None, "kwargs": None, "callbacks": None, "errbacks": None, "chain": None,
    "chord": None, "called_directly": True, "correlation_id": None, "delivery_info": None,
    "eta": None, "expires": None, "group": None, "group_index": None, "headers": None,
    "hostname": None, "id": None, "ignore_result": False, "is_eager": False, "logfile": None,
    "loglevel": None, "origin": None, "parent_id": None, "properties": None, "retries": 0,
    "reply_to": None, "replaced_task_nesting": 0, "root_id": None, "shadow": None,
    "taskset": None, "timelimit": None, "time_limit": None, "soft_time_limit": None, "utc": True,
    "stamped_headers": None, "stamps": None, "children": [],
}  # fmt: skip


@pytest.mark.parametrize(("name", "value"), REQUEST_DEFAULTS.items())
def test_a_request_has_defaults(name: str, value: object) -> None:
    assert getattr(Context(), name) == value


def test_a_request_is_updated_and_cleared() -> None:
    request = Context({"id": "a"}, args=(1,))
    request.update({"root_id": "r"}, custom=3)
    assert (request.id, request.args, request.root_id, request.get("custom")) == (
        "a", (1,), "r", 3,
    )  # fmt: skip
    request.children.append(AsyncResult("c", app=Umbel(set_as_current=False)))
    request.clear()
    assert (request.id, request.args, request.children) == (None, None, [])
    assert request.get("custom", "gone") == "gone"


def test_a_request_as_the_options_of_a_call(app: Umbel, add: Task[[int, int], int]) -> None:
    callback = add.s(1)
    sent: dict[str, Any] = {
        "link": callback, "expires": 60, "headers": {"mine": 1}, "group_id": "g",
        "group_index": 2, "shadow": "s", "time_limit": 9, "retries": 2, "stamped_headers": ["k"],
        "k": "v",
    }  # fmt: skip
    add.apply_async((1, 2), task_id="a", **sent)
    request = lease(app)
    again = add.signature_from_request(request)
    assert (again.task, again.args, again.kwargs) == (add.name, (1, 2), {})
    assert again.options["link"] == [callback]
    assert {name: again.options.get(name) for name in sent if name not in ("link", "expires")} == {
        name: value for name, value in sent.items() if name not in ("link", "expires")
    }
    assert again.options["task_id"] == "a"
    assert again.options["queue"] == "celery"
    assert again.options["expires"] == request.expires
    again.apply_async()
    message = only(app)
    assert message.headers["retries"] == 2
    assert message.headers["stamps"] == {"k": "v"}
    other = add.subtask_from_request(request, args=(3, 4), queue="mail", priority=7)
    assert (other.args, other.options["queue"], other.options["priority"]) == ((3, 4), "mail", 7)


def test_add_trail(add: Task[[int, int], int]) -> None:
    request = Context()
    with running(add, request):
        result = add.AsyncResult("child")
        assert add.add_trail(result) is result
        add.trail = False
        add.add_trail(result)
    assert request.children == [result]


# Replacing


def replaced_by(task: Task[..., Any], sig: Any, **options: Any) -> list[Posting]:
    """What goes with the end of a run in a worker that is replaced."""
    task.apply_async(task_id="a", **options)
    request = lease(task.app)
    with running(task, request), pytest.raises(Ignore, match="Replaced by new task"):
        task.replace(sig)
    return request.follow_ups


@pytest.fixture
def old(app: Umbel) -> Task[..., Any]:
    @app.task
    def old() -> None: ...

    return old


def test_a_task_is_replaced_by_a_call_of_its_id(
    old: Task[..., Any], add: Task[[int, int], int]
) -> None:
    callback, errback = add.s(10), add.si(0, 0)
    (posting,) = replaced_by(
        old, add.s(1, 2), link=callback, link_error=errback, root_id="r", group_id="g",
        group_index=1, reply_to="here", ignore_result=False,
    )  # fmt: skip
    headers = posting.message.headers
    assert {name: headers[name] for name in ("id", "task", "root_id", "group", "group_index")} == {
        "id": "a", "task": add.name, "root_id": "r", "group": "g", "group_index": 1,
    }  # fmt: skip
    assert headers["replaced_task_nesting"] == 1
    assert posting.message.properties["reply_to"] == "here"
    old.app.broker.publish([posting])
    request = lease(old.app)
    assert request.args == [1, 2]
    assert request.callbacks == [callback]
    assert request.errbacks == [errback]
    assert request.replaced_task_nesting == 1


def test_a_task_is_replaced_by_a_chain(old: Task[..., Any], add: Task[[int, int], int]) -> None:
    callback = add.s(10)
    (posting,) = replaced_by(old, add.s(1, 2) | add.s(3), link=callback)
    old.app.broker.publish([posting])
    request = lease(old.app)
    assert request.id != "a"
    assert request.callbacks is None
    (last,) = request.chain or [{}]
    assert last["options"]["task_id"] == "a"
    assert last["options"]["link"] == [callback]


def test_the_rest_of_a_chain_follows_what_replaces_a_step(
    old: Task[..., Any], add: Task[[int, int], int]
) -> None:
    later = add.s(3).set(task_id="later")
    (posting,) = replaced_by(old, add.s(1, 2), chain=[later], link=add.s(10))
    old.app.broker.publish([posting])
    request = lease(old.app)
    assert request.id == "a"
    assert request.callbacks == [add.s(10)]
    assert [step["options"]["task_id"] for step in request.chain or ()] == ["later"]
    assert request.replaced_task_nesting == 1


def test_what_can_not_replace_a_task(old: Task[..., Any], add: Task[[int, int], int]) -> None:
    with pytest.raises(ImproperlyConfigured, match="an empty chain"):
        old.replace(chain())
    with pytest.raises(ImproperlyConfigured, match="a part of a chord"):
        old.replace(add.s(1, 2).set(chord={"task": "x"}))
    with pytest.raises(TypeError, match="is no signature"):
        old.replace(7)  # type: ignore[arg-type]


def test_arguments_of_what_replaces_are_checked(
    old: Task[..., Any], add: Task[[int, int], int]
) -> None:
    old.apply_async()
    with running(old, lease(old.app)), pytest.raises(TypeError, match="missing 1 required"):
        old.replace(add.s(1))


@pytest.mark.parametrize("how", ["return", "raise"])
@pytest.mark.parametrize("steps", [1, 2])
def test_a_task_in_its_caller_is_replaced_there(
    app: Umbel, add: Task[[int, int], int], how: str, steps: int
) -> None:
    @app.task(bind=True)
    def eager(self: Any) -> Any:
        sig: Signature = add.s(1, 2) if steps == 1 else add.s(1, 1) | add.s(1)
        if how == "raise":
            raise self.replace(sig)
        return self.replace(sig)

    result = eager.apply()
    assert (result.state, result.get()) == ("SUCCESS", 3)
    if how == "return":
        assert eager() == 3
    assert not waiting(app)


@pytest.mark.parametrize("awaited", [False, True])
def test_a_coroutine_is_replaced_too(app: Umbel, add: Task[[int, int], int], awaited: bool) -> None:
    @app.task(bind=True)
    async def eager(self: Any) -> Any:
        return self.replace(add.s(1, 2))

    app.conf.task_always_eager = True
    result = asyncio.run(eager.adelay()) if awaited else eager.delay()
    assert (result.state, result.result) == ("SUCCESS", 3)


def test_shadow_name_and_result_cls_of_coroutines(app: Umbel) -> None:
    @app.task(base=Hooked, name="t")
    def hooked(x: int) -> None: ...

    async def send() -> Any:
        return await hooked.aapply_async((3,), task_id="a", result_cls=Mine)

    assert type(asyncio.run(send())) is Mine
    assert only(app).headers["shadow"] == "t-3"
    app.close()


def test_a_failure_in_its_place_is_the_failure_of_a_task(app: Umbel) -> None:
    @app.task
    def broken() -> None:
        raise ValueError("no")

    @app.task(bind=True)
    def eager(self: Any) -> Any:
        return self.replace(broken.s())

    result = eager.apply()
    assert (result.state, repr(result.result)) == ("FAILURE", "ValueError('no')")


def test_on_replace_has_the_last_word(app: Umbel, add: Task[[int, int], int]) -> None:
    class Kept(Task[..., Any]):
        def on_replace(self, sig: Signature) -> Any:
            return sig.args

    @app.task(base=Kept, bind=True)
    def kept(self: Any) -> Any:
        return self.replace(add.s(1, 2))

    assert kept() == (1, 2)


def test_apply_of_signatures(app: Umbel, add: Task[[int, int], int]) -> None:
    assert add.s(2).apply((1,)).get() == 3
    result = (add.s(2) | add.s(3) | add.s(4)).apply((1,), task_id="last")
    assert (result.get(), result.id, result.parent.get()) == (10, "last", 6)
    assert result.parent.parent.get() == 3
    failed = (add.s("x") | add.s(3)).apply((1,))
    assert (failed.state, failed.parent) == ("FAILURE", None)
    assert chain().apply() is None
    assert not waiting(app)


# Options of calls


def test_handles_of_the_app_are_taken(app: Umbel, add: Task[[int, int], int]) -> None:
    with app.connection_for_write() as connection, app.producer_or_acquire() as producer:
        add.apply_async((1, 2), connection=connection, producer=producer, publisher=None)
    assert only(app)


@pytest.mark.parametrize("name", ["connection", "producer", "publisher"])
def test_a_foreign_way_to_a_broker_is_refused(
    app: Umbel, add: Task[[int, int], int], name: str
) -> None:
    other = Umbel(set_as_current=False).connection()
    for value in (object(), other):
        with pytest.raises(ImproperlyConfigured, match=f"{name} is .*its own broker"):
            add.apply_async((1, 2), **{name: value})  # type: ignore[arg-type]
        with pytest.raises(ImproperlyConfigured, match=f"{name} is .*its own broker"):
            app.send_task("x", **{name: value})  # type: ignore[arg-type]
    assert not waiting(app)


@pytest.mark.parametrize("name", ["timeout", "confirm_timeout"])
def test_what_has_no_effect_yet_says_so(app: Umbel, add: Task[[int, int], int], name: str) -> None:
    with pytest.warns(LaterSetting, match=f"{name} has no effect yet.*RabbitMQ"):
        add.apply_async((1, 2), **{name: 3})  # type: ignore[arg-type]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        add.apply_async((1, 2), **{name: None})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["immediate", "router", "task_type", "chord"])
def test_what_would_change_a_task_is_refused(add: Task[[int, int], int], name: str) -> None:
    add.apply_async((1, 2), **{name: None})  # type: ignore[arg-type]
    with pytest.raises(ImproperlyConfigured, match=rf"{name}=.*Leave {name} out"):
        add.apply_async((1, 2), **{name: {"x": 1}})  # type: ignore[arg-type]


def test_mandatory_is_what_always_holds(app: Umbel, add: Task[[int, int], int]) -> None:
    app.conf.task_create_missing_queues = False
    with pytest.raises(Exception, match="mail") as raised:
        add.apply_async((1, 2), mandatory=True, queue="mail")
    assert not isinstance(raised.value, TypeError)
    assert issubclass(Unroutable, Exception)


class Mine(AsyncResult[Any]):
    __slots__ = ()


@pytest.mark.option("result_cls")
def test_result_cls(app: Umbel, add: Task[[int, int], int]) -> None:
    for result in (
        add.apply_async((1, 2), task_id="a", result_cls=Mine),
        app.send_task(add.name, (1, 2), task_id="a", result_cls=Mine),
    ):
        assert (type(result), result.id, result.app) == (Mine, "a", app)
    plain: Any = add.apply_async((1, 2), task_id="b", result_cls=lambda task_id: [task_id])  # type: ignore[arg-type]
    assert plain == ["b"]


@pytest.mark.option("route_name")
def test_route_name(app: Umbel, add: Task[[int, int], int]) -> None:
    app.conf.task_routes = {"mail.*": {"queue": "mail"}}
    add.apply_async((1, 2), route_name="mail.send")
    add.s(1, 2).apply_async(route_name="mail.send")
    assert [message.headers["task"] for message in waiting(app, "mail")] == [add.name, add.name]


@pytest.mark.option("retries", "replaced_task_nesting")
def test_retries_and_nesting_are_headers(app: Umbel, add: Task[[int, int], int]) -> None:
    add.apply_async((1, 2), retries=2, replaced_task_nesting=1)
    request = lease(app)
    assert (request.retries, request.replaced_task_nesting) == (2, 1)


def test_a_pushed_request_is_of_this_context_only(add: Task[[int, int], int]) -> None:
    before = current_request.get()
    add.push_request(id="x")
    add.pop_request()
    assert current_request.get() is before


def test_run_is_a_method_where_the_task_is_bound(app: Umbel) -> None:
    @app.task(bind=True)
    def load(self: Any, path: str) -> str:
        """Loads it."""
        return path

    assert load.run("x") == "x"
    assert (load.run.__name__, load.run.__module__, load.run.__doc__) == (
        "load",
        __name__,
        "Loads it.",
    )
