"""Every name of a Celery app's surface: what ours does, or the error that says what to use."""

from __future__ import annotations

import copy
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, timedelta, timezone
from pathlib import Path
from types import ModuleType
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from tests.api.looking import only

from umbel import Task, Umbel, shared_task
from umbel.clock import ManualClock
from umbel.control import Inspect
from umbel.exceptions import (
    FixupWarning,
    ImproperlyConfigured,
    NotProvided,
    NotRegistered,
    UmbelError,
    UnknownSetting,
)
from umbel.message import Result

PRESENT = (
    # methods
    "task", "register_task", "send_task", "signature", "config_from_object", "config_from_envvar",
    "config_from_cmdline", "add_defaults", "autodiscover_tasks", "setup_security",
    "connection_for_read", "connection_for_write", "connection", "broker_connection",
    "connection_or_acquire", "producer_or_acquire", "finalize", "close", "start", "worker_main",
    "set_current", "set_default", "select_queues", "now", "uses_utc_timezone", "either",
    "bugreport", "gen_task_name", "prepare_config", "on_init", "create_task_cls",
    "subclass_with_self", "type_checker",
    # properties
    "conf", "tasks", "control", "current_task", "current_worker_task", "oid", "thread_oid",
    "timezone", "annotations", "Task", "AsyncResult", "GroupResult", "backend",
    # attributes
    "main", "user_options", "steps", "task_cls", "builtin_fixups", "on_configure",
    "on_after_configure", "on_after_finalize", "on_after_fork", "autofinalize", "fixups",
    "set_as_current", "strict_typing", "namespace", "configured", "finalized",
)  # fmt: skip
ABSENT = {
    "amqp": "app.router",
    "events": "Events and remote control",
    "log": "get_task_logger",
    "loader": "config_from_object",
    "pool": "thread-safe",
    "producer_pool": "app.batch()",
    "Worker": "worker_main",
    "WorkController": "worker_main",
    "Beat": "Scheduler",
    "add_periodic_task": "Scheduler",
}


@pytest.mark.parametrize("name", PRESENT)
def test_what_is_there(app: Umbel, name: str) -> None:
    getattr(app, name)


@pytest.mark.parametrize(("name", "hint"), ABSENT.items())
def test_what_is_not_there_says_what_to_use(app: Umbel, name: str, hint: str) -> None:
    with pytest.raises(NotProvided, match=rf"app\.{name} .*{re.escape(hint)}"):
        getattr(app, name)
    assert not hasattr(app, name)
    assert isinstance(NotProvided(), UmbelError)


def test_a_misspelt_name_is_a_plain_attribute_error(app: Umbel) -> None:
    with pytest.raises(AttributeError, match="'Umbel' object has no attribute 'taskz'"):
        _ = app.taskz  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["loader", "amqp", "events", "log", "control", "tasks"])
def test_parts_that_can_not_be_given(name: str) -> None:
    Umbel(set_as_current=False, **{name: None})  # type: ignore[arg-type]
    with pytest.raises(ImproperlyConfigured, match=rf"Umbel\({name}="):
        Umbel(set_as_current=False, **{name: object()})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["amqp_cls", "loader_cls", "control_cls", "registry_cls"])
def test_parts_that_a_class_can_not_replace(name: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=f"class Mine sets {name}"):
        type("Mine", (Umbel,), {name: "proj.parts:Part"})


def test_bootsteps_and_options_of_the_app_are_refused(app: Umbel) -> None:
    assert set(app.steps) == {"worker", "consumer"}
    assert set(app.user_options) == {"preload", "worker", "beat", "events"}
    with pytest.raises(ImproperlyConfigured, match="worker_process_init"):
        app.steps["worker"].add(object())
    with pytest.raises(ImproperlyConfigured, match="worker_process_init"):
        app.steps["consumer"].update([object()])
    with pytest.raises(ImproperlyConfigured, match="worker_process_init"):
        app.steps["worker"] |= {object()}
    with pytest.raises(ImproperlyConfigured, match="worker_process_init"):
        app.steps.update({"worker": {object()}})
    with pytest.raises(ImproperlyConfigured, match="environment variable"):
        app.user_options["worker"].add(object())


# Signals of the app


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")  # threads of other tests
def test_on_after_fork_is_sent_in_each_child(app: Umbel, tmp_path: Path) -> None:
    seen = tmp_path / "seen"

    @app.on_after_fork.connect
    def note(sender: object, **_: object) -> None:
        seen.write_text(f"{sender is app} {os.getpid()}")

    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    assert seen.read_text() == f"True {child}"


# Classes of apps


class Doubled(Task[..., Any]):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return 2 * self.run(*args, **kwargs)


class Special(Umbel):
    task_cls = f"{__name__}:Doubled"
    builtin_fixups = frozenset({f"{__name__}:fix"})

    def on_init(self) -> None:
        self.began = (self.main, self.fixed)  # type: ignore[attr-defined]

    def prepare_config(self, config: dict[str, Any]) -> dict[str, Any]:
        return {**config, "task_time_limit": 2 * config["task_time_limit"]}

    def gen_task_name(self, name: str, module: str) -> str:
        return name.upper()


def fix(app: Any) -> None:
    app.fixed = True


@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])


def test_a_class_of_apps(importable: None) -> None:
    app = Special("mine", set_as_current=False, config_source={"task_time_limit": 3})

    @app.task
    def four() -> int:
        return 4

    assert four() == 8
    assert isinstance(four, Doubled)
    assert issubclass(app.Task, Doubled)
    assert app.Task.app is app
    assert four.name == "FOUR"
    assert app.conf.task_time_limit == 6
    assert app.began == ("mine", True)


def test_fixups_are_called_with_the_app() -> None:
    seen: list[Umbel] = []
    app = Umbel(set_as_current=False, fixups=[seen.append])
    assert seen == [app]


def test_subclass_with_self(app: Umbel) -> None:
    class Part:
        """What it is."""

    made: Any = app.subclass_with_self(Part, name="MyPart", attribute="owner", size=3)
    assert Part in made.__mro__
    assert (made.__name__, made.owner, made.size, made.__doc__) == (
        "MyPart", app, 3, "What it is.",
    )  # fmt: skip


def test_type_checker(app: Umbel) -> None:
    def bound(self: object, x: int, y: int = 0) -> None: ...

    check = app.type_checker(bound, bound=True)
    check(1, y=2)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        check()


# Settings


def test_config_from_cmdline(app: Umbel) -> None:
    app.config_from_cmdline(
        ["task.acks_late=true", "worker_concurrency=3", ".worker_lease_time=2.5",
         "celery.task_default_queue=mail"],
    )  # fmt: skip
    conf = app.conf
    assert conf.task_acks_late is True
    assert (conf.worker_concurrency, conf.worker_lease_time) == (3, 2.5)
    assert conf.task_default_queue == "mail"


@pytest.mark.parametrize(
    ("argument", "error"),
    [
        ("task_acks_late", "expected name=value"),
        ("task_acks_late=perhaps", "setting 'task_acks_late' can't be 'perhaps'"),
        ("task_acks_lat=true", "did you mean 'task_acks_late'"),
        ("task_routes=x", "can't be written as text"),
    ],
)
def test_config_from_cmdline_refuses(app: Umbel, argument: str, error: str) -> None:
    with pytest.raises((ImproperlyConfigured, UnknownSetting), match=error):
        app.config_from_cmdline([argument])


@pytest.mark.parametrize("variable", ["CELERY_CONFIG_MODULE", "UMBEL_CONFIG_MODULE"])
def test_the_environment_names_the_module_with_settings(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    module = ModuleType("settings_of_env")
    vars(module).update(task_default_queue="named", task_acks_late=True)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setenv(variable, module.__name__)
    app = Umbel(set_as_current=False, task_acks_late=False)
    assert app.conf.task_default_queue == "named"
    assert app.conf.task_acks_late is False  # a keyword is above a module
    other = Umbel(set_as_current=False)
    other.config_from_object({"task_acks_late": True})
    assert other.conf.task_default_queue == "celery"  # named by the program: in place of it


def test_the_default_loader_looks_for_celeryconfig(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELERY_LOADER", "default")
    assert Umbel(set_as_current=False).conf.task_default_queue == "celery"  # there is none
    module = ModuleType("celeryconfig")
    vars(module).update(task_default_queue="mail")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert Umbel(set_as_current=False).conf.task_default_queue == "mail"
    monkeypatch.setenv("CELERY_LOADER", "app")
    assert Umbel(set_as_current=False).conf.task_default_queue == "celery"
    monkeypatch.setenv("CELERY_LOADER", "proj.loaders:Mine")
    with pytest.warns(FixupWarning, match=r"'proj.loaders:Mine'.*CELERY_CONFIG_MODULE"):
        Umbel(set_as_current=False)


@pytest.mark.option("filter")
def test_filter_changes_what_the_decorator_gives(app: Umbel) -> None:
    @app.task(name="t", filter=lambda task: (task.name, task))
    def filtered() -> None: ...

    @shared_task(name="s", filter=lambda task: (task.name, task))
    def shared() -> None: ...

    given: Any = [filtered, shared]
    assert given == [("t", app.tasks["t"]), ("s", app.tasks["s"])]


def test_tasks_can_be_forgotten(app: Umbel) -> None:
    @app.task(name="one")
    def one() -> None: ...

    app.tasks.unregister("one")
    assert "one" not in app.tasks
    with pytest.raises(NotRegistered, match="'one' isn't known here"):
        app.tasks.unregister(one)
    with pytest.raises(NotProvided, match=r"app\.register_task"):
        app.tasks.register(one)  # type: ignore[attr-defined]


def test_either(app: Umbel) -> None:
    assert app.either("task_default_queue", None, "first", "second") == "first"
    assert app.either("task_default_queue", None) == "celery"
    assert app.either("task_default_queue") == "celery"


def test_bugreport(app: Umbel) -> None:
    assert "umbel" in app.bugreport()


def test_annotations(app: Umbel) -> None:
    assert not app.annotations
    app.conf.task_annotations = {"*": {"max_retries": 1}}
    assert app.annotations == ({"*": {"max_retries": 1}},)

    @app.task
    def annotated() -> None: ...

    app.annotate(annotated)
    assert annotated.max_retries == 1


# Time and identity


def test_now_is_in_the_zone_of_the_app(app: Umbel, clock: ManualClock) -> None:
    assert app.timezone is app.zone
    assert app.uses_utc_timezone()
    app.conf.timezone = "Asia/Kolkata"
    assert app.now().timestamp() == clock.wall()
    assert app.now().utcoffset() == timedelta(hours=5, minutes=30)
    assert not app.uses_utc_timezone()
    for utc in (UTC, ZoneInfo("UTC"), "UTC"):
        app.conf.timezone = utc
        assert app.uses_utc_timezone()
    app.conf.timezone = timezone(timedelta(0), "other")
    assert not app.uses_utc_timezone()


def test_oid_is_the_reply_to_of_messages(app: Umbel) -> None:
    @app.task
    def noop() -> None: ...

    noop.delay()
    assert only(app).properties["reply_to"] == app.oid


@pytest.fixture
def thread_ids(app: Umbel) -> Iterator[set[str]]:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        yield {app.thread_oid, app.thread_oid, pool.submit(lambda: app.thread_oid).result()}


def test_thread_oid_is_one_for_each_thread(thread_ids: set[str]) -> None:
    assert len(thread_ids) == 2


def test_current_worker_task(app: Umbel) -> None:
    seen: list[object] = []

    @app.task
    def looks() -> None:
        seen.append((app.current_task, app.current_worker_task))

    looks()
    looks.apply()
    assert seen == [(looks, None), (looks, looks)]
    assert app.current_worker_task is None


# Kombu's objects


def test_a_connection_says_whether_the_broker_is_there(tmp_path: Path) -> None:
    app = Umbel(broker=f"sqlite:///{tmp_path}/tasks.db", set_as_current=False)
    with app.connection_for_write() as connection:
        assert connection.ensure_connection(max_retries=1) is connection
        assert connection.connected
        assert connection.as_uri() == app.conf.broker_url
    missing = Umbel(broker="sqlite:////nowhere/tasks.db", set_as_current=False)
    seen: list[float] = []
    with pytest.raises(UmbelError):
        missing.connection_for_read().ensure_connection(
            lambda error, wait: seen.append(wait), max_retries=2, interval_start=0, interval_step=0
        )
    assert seen == [0, 0]
    assert not missing.connection().connected


def test_a_connection_has_nothing_else(app: Umbel) -> None:
    with pytest.raises(NotProvided, match=r"connection\.channel .*ensure_connection"):
        app.connection().channel()  # type: ignore[attr-defined]
    with pytest.raises(NotProvided, match=r"producer\.publish"):
        app.producer_or_acquire().publish({})  # type: ignore[attr-defined]
    with pytest.raises(ImproperlyConfigured, match="heartbeat"):
        app.connection(heartbeat=10)
    with pytest.raises(ImproperlyConfigured, match="another app"):
        app.connection_for_read("redis://elsewhere")


# Results


def test_backend_reads_and_writes_results(app: Umbel) -> None:
    backend = app.backend
    backend.store_result("a", {"done": 3}, "HALFWAY")
    assert (backend.get_state("a"), backend.get_result("a")) == ("HALFWAY", {"done": 3})
    backend.mark_as_done("a", 7)
    meta = backend.get_task_meta("a")
    assert (meta["status"], meta["result"], meta["task_id"]) == ("SUCCESS", 7, "a")
    assert meta["date_done"] == app.now()
    backend.mark_as_failure("b", KeyError("x"), "Traceback …")
    assert isinstance(backend.get_result("b"), KeyError)
    assert backend.get_traceback("b") == "Traceback …"
    backend.forget("b")
    assert backend.get_status("b") == "PENDING"
    assert backend.as_uri().startswith("memory://")
    with pytest.raises(NotProvided, match=r"app\.backend\.client .*app\.store"):
        _ = backend.client  # type: ignore[attr-defined]


def test_the_meta_of_a_task_is_of_one_moment(app: Umbel, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that ends just after it was read, or before its first state is."""
    store = app.store
    assert store is not None
    read = store.get

    def read_then_go_on(ids: Sequence[str]) -> list[Result | None]:
        records = read(ids)
        app.backend.store_result(ids[0], KeyError("late"), "FAILURE", "Traceback …")
        return records

    app.backend.store_result("going", {"done": 3}, "HALFWAY")
    monkeypatch.setattr(store, "get", read_then_go_on)
    for task_id, state, value in (("going", "HALFWAY", {"done": 3}), ("unknown", "PENDING", None)):
        assert app.backend.get_task_meta(task_id) == {
            "status": state,
            "result": value,
            "traceback": None,
            "children": [],
            "date_done": None,
            "task_id": task_id,
        }
        assert app.backend.get_task_meta(task_id)["status"] == "FAILURE"


def test_results_live_as_long_whoever_stores_them(app: Umbel) -> None:
    @app.task(store_eager_result=True)
    def divide(by: int) -> float:
        return 1 / by

    app.conf.update(result_expires=100, result_failure_expires=5000)
    app.backend.mark_as_done("good", 1)
    app.backend.mark_as_failure("bad", KeyError("x"))
    divide.update_state("going", "HALFWAY")
    divide.update_state("failed", "FAILURE", KeyError("x"))
    good, bad = divide.apply((1,)), divide.apply((0,))
    divide.apply_async((1,), task_id="revoked").revoke()
    ids = ["good", "bad", "going", "failed", good.id, bad.id, "revoked"]
    store = app.store
    assert store is not None
    ends = [record.expires_at for record in store.get(ids) if record is not None]
    lives = [end - app.clock.wall() for end in ends if end is not None]
    assert lives == [100, 5000, 100, 5000, 100, 5000, 100]


# Control


def test_control_revokes_and_purges(app: Umbel) -> None:
    @app.task
    def noop() -> None: ...

    first, second, third = noop.delay(), noop.delay(), noop.delay()
    app.control.revoke(first.id)
    app.control.terminate([second.id], signal="SIGKILL")
    assert (first.state, second.state, third.state) == ("REVOKED", "REVOKED", "PENDING")
    assert app.control.purge() >= 1
    assert app.control.discard_all() == 0
    with pytest.raises(ImproperlyConfigured, match="holds for every worker"):
        app.control.revoke(third.id, destination=["w@here"])


@pytest.mark.parametrize("name", ["broadcast", "add_consumer", "shutdown", "rate_limit"])
def test_the_rest_of_control_names_its_release(app: Umbel, name: str) -> None:
    with pytest.raises(NotProvided, match=rf"app\.control\.{name} .*Events and remote control"):
        getattr(app.control, name)


@pytest.mark.parametrize("name", ["active", "stats", "registered"])
def test_the_rest_of_inspect_names_its_release(app: Umbel, name: str) -> None:
    with pytest.raises(NotProvided, match=rf"inspect\(\)\.{name} .*Events and remote control"):
        getattr(app.control.inspect(), name)


def test_who_asks_where_no_worker_is_has_no_answer(app: Umbel) -> None:
    assert app.control.ping() == []
    assert app.control.inspect().ping() is None
    with pytest.raises(ImproperlyConfigured, match="has no app"):
        Inspect()
    with pytest.raises(TypeError, match="destination got 7"):
        app.control.ping(7)  # type: ignore[arg-type]  # the point


# Pickles


def test_an_app_that_can_be_imported_is_pickled_by_its_place(
    app: Umbel, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("place_of_app")
    module.celery = app  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "place_of_app", module)

    @app.task
    def noop() -> None: ...

    assert pickle.loads(pickle.dumps(app)) is app
    assert b"place_of_app" in pickle.dumps(app)
    assert pickle.loads(pickle.dumps(noop)) is noop


def test_signatures_are_pickled_and_copied(app: Umbel, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("place_of_app")
    module.app = app  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "place_of_app", module)

    @app.task
    def add(x: int, y: int) -> int:
        return x + y

    for sig in (add.s(1), add.s(1) | add.s(2)):
        for again in (pickle.loads(pickle.dumps(sig)), copy.deepcopy(sig), copy.copy(sig)):
            assert again == sig
            assert again is not sig
            assert again.app is app
    monkeypatch.delitem(sys.modules, "place_of_app")
    assert copy.deepcopy(add.s(1)).app is app
    assert pickle.loads(pickle.dumps(app)) is not app  # where it was is forgotten


def test_any_other_app_is_pickled_by_its_settings() -> None:
    app = Special("mine", set_as_current=False, task_time_limit=4, broker="memory://pickled")
    made = pickle.loads(pickle.dumps(app))
    assert made is not app
    assert (type(made), made.main) == (Special, "mine")
    assert made.conf.table(censored=False) == app.conf.table(censored=False)


def test_a_task_that_is_not_there_any_more(app: Umbel, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("place_of_app")
    module.app = app  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "place_of_app", module)

    @app.task(name="gone")
    def gone() -> None: ...

    data = pickle.dumps(gone)
    del app.tasks["gone"]
    with pytest.raises(NotRegistered, match="'gone'"):
        pickle.loads(data)


# The command line


PROGRAM = """
import sys
from umbel import Umbel
app = Umbel("prog", broker=sys.argv[1])

@app.task
def add(x, y):
    return x + y

if __name__ == "__main__":
    sys.exit(app.{call})
"""


def run(tmp_path: Path, call: str) -> subprocess.CompletedProcess[str]:
    program = tmp_path / "prog.py"
    program.write_text(PROGRAM.format(call=call))
    url = f"sqlite:///{tmp_path}/tasks.db"
    return subprocess.run(
        [sys.executable, str(program), url],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
    )


def test_start_runs_a_command_with_this_app(tmp_path: Path) -> None:
    called = run(tmp_path, "start(['call', 'prog.add', '-a', '[1, 2]'])")
    assert called.returncode == 0, called.stderr
    counted = run(tmp_path, "start(['queues', '--json'])")
    assert '"ready": 1' in counted.stdout
    wrong = run(tmp_path, "start(['nope'])")
    assert (wrong.returncode, wrong.stdout) == (64, "")
    assert "there is no command 'nope'" in wrong.stderr


def test_worker_main_wants_a_worker(tmp_path: Path) -> None:
    shown = run(tmp_path, "worker_main(['worker', '--help'])")
    assert (shown.returncode, "Run tasks" in shown.stdout) == (0, True)
    app = Umbel(set_as_current=False)
    with pytest.raises(ValueError, match="must have the command 'worker'"):
        app.worker_main(["--loglevel=INFO"])
