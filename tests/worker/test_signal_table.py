"""Every signal and every handler in every outcome: their order and their arguments, by real
workers, beside what a worker of Celery's was heard to say."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.worker import heard_app
from tests.worker.harness import Worker, until
from tests.worker.heard import (
    ALL_ROWS,
    COLD_EARLY,
    COLD_LATE,
    DIED_EARLY,
    DIED_LATE,
    EAGER,
    ENDINGS_OF_A_PROCESS,
    EXPIRED,
    EXPIRED_LATER,
    FOLLOWS,
    LIFE,
    LOST,
    NEVER,
    ON_A_LOOP,
    REPLACED,
    REVOKED,
    ROWS,
    SENT,
    SUCCESS,
    TERMINATED,
    UNKNOWN,
    UNREADABLE,
    UNSENDABLE,
    Heard,
    Row,
    failure,
    named,
)
from tests.worker.living import Place

from umbel import signals
from umbel.canvas import signature

APP = "tests.worker.heard_app"
HANDLERS = ("before_start", "on_success", "on_retry", "on_failure", "after_return", "on_replace")
DIFFERENCES = Path(__file__).parents[2] / "docs" / "differences.md"
_numbers = count(1)


@dataclass(frozen=True)
class Event:
    name: str
    task_id: str | None
    pid: int
    named: dict[str, Any]

    @property
    def text(self) -> str:
        """As the table writes it."""
        parts: tuple[object, ...] = ()
        told = self.named
        match self.name:
            case "after_return" | "task_postrun":
                state, retval = told.get("status", told.get("state")), told["retval"]
                parts = (state,) if state == "SUCCESS" else (state, retval)
            case "on_failure" | "on_retry":
                parts = (told["exc"],)
            case "task_failure" | "task_internal_error":
                parts = (told["exception"],)
            case "task_retry":
                parts = (told["reason"], told["einfo"].removeprefix("einfo "))
            case "task_revoked":
                parts = (told["terminated"], told["signum"], told["expired"])
            case "task_unknown":
                parts = (told["exc"],)
        return ":".join(map(str, (self.name, *parts)))


class Ear(Place):
    """A place whose workers, and this process, write down what they hear."""

    def __init__(self, folder: Path, lease: float = 30.0) -> None:
        super().__init__(folder, lease)
        self.file_of_events = folder / "heard.jsonl"
        self.has_one_process = False
        self.receivers_raise = False
        """Those in this process."""

    def start(self, *options: str, ready: bool = True, **env: str) -> Worker:
        env = {"HEARD": str(self.file_of_events), "UMBEL_TASK_UNKNOWN_WAIT": "0.2", **env}
        if "LISTEN_TO" not in env:  # who listens to this one gets no log
            env["LISTEN_TO"] = " ".join(set(heard_app.NAMES) - {"setup_logging"})
        return self.worker(*(options or ("-c", "1")), app=APP, env=env, ready=ready)

    def events(self, task_id: str | None = None) -> list[Event]:
        """The caller's come first: a worker may begin before the caller has told its own."""
        events = self.everything() if self.file_of_events.exists() else []
        mine = [each for each in events if each.task_id == task_id]
        return sorted(mine, key=lambda each: each.pid != os.getpid())

    def everything(self) -> list[Event]:
        *lines, _ = self.file_of_events.read_text().split("\n")  # the last one may be half written
        return [Event(*json.loads(line)) for line in lines]

    def life(self) -> list[str]:
        """The signals that are about no task."""
        return [each.name for each in self.events()]

    def heard(self, task_id: str) -> Heard:
        return tuple(each.text for each in self.events(task_id) if each.name != "waits")

    def call(self, task: str, task_id: str = "", **options: Any) -> str:
        """The id of a message; the caller's signals are heard."""
        task_id = task_id or f"{task}-{next(_numbers)}"
        with heard_app.listening(*SENT, raises=self.receivers_raise):
            self.send_named(task, task_id, **options)
        return task_id

    def send_named(self, task: str, task_id: str, **options: Any) -> None:
        self.app.send_task(task, (1,), {"y": 2}, task_id=task_id, **options)

    def waits(self, task_id: str) -> None:
        until(
            lambda: any(each.name == "waits" for each in self.events(task_id)),
            what=f"{task_id} waits; {self.logs()}",
        )

    def check(self, row: Row, mode: str, task_id: str, wanted: Heard | None = None) -> None:
        """The caller's signals, then those of the row, each with all its arguments."""
        task = f"{row.task}.{mode}" if "." not in row.task else row.task
        whole = (*SENT, *row.ours) if wanted is None else wanted
        until(
            lambda: len(self.heard(task_id)) >= len(whole),
            what=f"heard {self.heard(task_id)} of {whole}; {self.logs()}",
        )
        assert self.heard(task_id) == whole
        for event, text in zip(self.clean(task_id), whole, strict=True):
            if event.name != "task_rejected":
                self.check_named(event, named(text, task, task_id))
        ours = [each.pid for each in self.clean(task_id)]
        if wanted is None:
            assert set(ours[: len(SENT)]) == {os.getpid()}
            others = {os.getpid(), *(() if self.has_one_process else self.supervisors())}
            assert not others & set(ours[len(SENT) :])

    def clean(self, task_id: str) -> list[Event]:
        return [each for each in self.events(task_id) if each.name != "waits"]

    def check_named(self, event: Event, wanted: dict[str, Any]) -> None:
        told = dict(event.named)
        if event.name == "before_task_publish":
            told.pop("retry_policy")
        if f"{told.get('exception')}: " in str(told.get("traceback")):
            told["traceback"] = "traceback"  # the text, of what was raised in no Python code
        assert told == wanted, event.name
        if event.name in heard_app.NAMES:
            declared = getattr(signals, event.name).providing_args
            assert declared == event.named.keys() - {"sender"}

    def supervisors(self) -> set[int]:
        return {worker.pid for worker in self._workers}

    def over(self, *workers: Worker) -> None:
        """Stop, and nothing more is heard of any task."""
        before = self.file_of_events.read_text().count('"task_')
        for worker in workers:
            assert worker.stop() == 0, worker.text
        assert self.file_of_events.read_text().count('"task_') == before


@pytest.fixture(scope="module", params=["quiet", "raising"])
def ear(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ear]:
    """With one worker, whose receivers and handlers raise in the second round: nothing changes."""
    made = Ear(tmp_path_factory.mktemp("heard"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEARD", str(made.file_of_events))
        try:
            made.receivers_raise = request.param == "raising"
            worker = made.start(RAISE="1" if made.receivers_raise else "")
            yield made
            made.over(worker)
            assert ("RuntimeError" in worker.text) == made.receivers_raise
        finally:
            made.close()


@pytest.fixture
def own_ear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ear]:
    """For what ends whole workers."""
    made = Ear(tmp_path, 6.0)
    monkeypatch.setenv("HEARD", str(made.file_of_events))
    try:
        yield made
    finally:
        made.close()


CASES = [pytest.param(row, mode, id=f"{row.name}-{mode}") for row in ROWS for mode in row.modes]
ON_A_LOOP_CASES = [
    pytest.param(row, mode, id=f"{row.name}-{mode}") for row in ON_A_LOOP for mode in row.modes
]
ELSEWHERE = [
    pytest.param(row, mode, id=f"{row.name}-{mode}")
    for row in (*ROWS, *ON_A_LOOP)
    for mode in row.modes
    if not row.name.startswith(ENDINGS_OF_A_PROCESS)
]
MODES = ("early", "late", "reject")


@pytest.mark.parametrize(("row", "mode"), CASES)
def test_a_run(ear: Ear, row: Row, mode: str) -> None:
    ear.check(row, mode, ear.call(f"{row.task}.{mode}"))


@pytest.mark.parametrize(("row", "mode"), ON_A_LOOP_CASES)
def test_a_run_on_a_loop(ear: Ear, row: Row, mode: str) -> None:
    ear.check(row, mode, ear.call(f"{row.task}.{mode}"))


@pytest.fixture(scope="module", params=["threads", "asyncio", "solo"])
def other_pool(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ear]:
    """With one worker that has another pool than prefork."""
    made = Ear(tmp_path_factory.mktemp("heard"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEARD", str(made.file_of_events))
        try:
            worker = made.start("-P", request.param, "-c", "1", WITHOUT_HARD_LIMITS="1")
            made.has_one_process = request.param == "solo"
            yield made
            made.over(worker)
        finally:
            made.close()


@pytest.mark.parametrize(("row", "mode"), ELSEWHERE)
def test_a_run_in_another_pool(other_pool: Ear, row: Row, mode: str) -> None:
    """Nothing differs."""
    other_pool.check(row, mode, other_pool.call(f"{row.task}.{mode}"))


@pytest.mark.parametrize("mode", MODES)
def test_expired(ear: Ear, mode: str) -> None:
    ear.check(EXPIRED, mode, ear.call(f"returns.{mode}", expires=-1))


@pytest.mark.parametrize("mode", MODES)
def test_expired_while_it_waits_for_its_time(ear: Ear, mode: str) -> None:
    task_id = ear.call(f"returns.{mode}", countdown=0.1, expires=0.05)
    caller, told = ear.events(task_id)[:3], len(SENT)
    assert [each.name for each in caller] == list(SENT)
    until(lambda: len(ear.heard(task_id)) > told, what=ear.logs())
    assert ear.heard(task_id)[told:] == EXPIRED_LATER.ours


@pytest.mark.parametrize("mode", MODES)
def test_revoked_before_start(ear: Ear, mode: str) -> None:
    task_id = f"revoked-{mode}-{next(_numbers)}"
    ear.app.revoke([task_id])
    ear.check(REVOKED, mode, ear.call(f"returns.{mode}", task_id))


@pytest.mark.parametrize("mode", MODES)
def test_terminated(ear: Ear, mode: str) -> None:
    task_id = ear.call(f"waits.{mode}")
    ear.waits(task_id)
    ear.app.revoke([task_id], terminate=True)
    ear.check(TERMINATED, mode, task_id)


def test_unknown(ear: Ear) -> None:
    task_id = ear.call(UNKNOWN.task)
    ear.check(UNKNOWN, "", task_id)


def test_unreadable(ear: Ear) -> None:
    task_id = ear.call("returns.early", serializer="yaml")
    ear.check(UNREADABLE, "early", task_id)
    (rejected,) = (each for each in ear.events(task_id) if each.name == "task_rejected")
    wanted = {"sender": "Taker", "message": f"message {task_id}", "exc": "DecodeError"}
    assert rejected.named == wanted


@pytest.mark.parametrize("mode", MODES)
def test_what_follows_cannot_be_sent(ear: Ear, mode: str) -> None:
    bad = signature("returns.early", (), options={"serializer": "nonesuch"}, app=ear.app)
    ear.check(UNSENDABLE, mode, ear.call(f"returns.{mode}", link=bad))


@pytest.mark.parametrize("mode", MODES)
def test_replaced(ear: Ear, mode: str) -> None:
    """Under the same id another task runs, so that only the order is compared."""
    task_id = ear.call(f"is_replaced.{mode}")
    whole = (*SENT, *REPLACED.ours)
    until(lambda: len(ear.heard(task_id)) >= len(whole), what=ear.logs())
    assert ear.heard(task_id) == whole
    (told,) = (each for each in ear.events(task_id) if each.name == "on_replace")
    assert told.named == {"sig": "returns.late"}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("how", ["link", "link_error", "chain"])
def test_what_follows(ear: Ear, mode: str, how: str) -> None:
    """What follows is sent in the pool process, before its task's own end is told."""
    following = f"following-{how}-{mode}-{next(_numbers)}"
    step = signature(
        "raises.late", (1,), {"y": 2}, {"task_id": following}, immutable=True, app=ear.app
    )
    options: dict[str, Any] = {"chain": [step]} if how == "chain" else {how: step}
    task = f"raises.{mode}" if how == "link_error" else f"returns.{mode}"
    first = ear.call(task, **options)
    wanted = (*FOLLOWS.ours, *failure("ValueError"))
    ear.check(Row("", "raises.late", (), ()), "", following, wanted)
    assert {each.pid for each in ear.events(following)} <= {
        each.pid for each in ear.events(first)[len(SENT) :]
    }
    told = [each for each in ear.everything() if each.task_id in (first, following)]
    place = [each.name for each in told if each.pid != os.getpid()].index("after_task_publish")
    ended = "on_failure" if how == "link_error" else "on_success"
    assert ended in [each.name for each in told if each.pid != os.getpid()][place:]


def test_receivers_of_before_task_publish_may_change_what_follows(own_ear: Ear) -> None:
    """The headers and arguments of a retry and of a callback, in the pool process."""
    worker = own_ear.start(MARK="1")
    link = signature(
        "returns.late", (1,), {"y": 2}, {"task_id": "cb"}, immutable=True, app=own_ear.app
    )
    own_ear.send_named("retries.late", "first", link=link)
    until(lambda: SUCCESS[-1] in own_ear.heard("cb"), what=own_ear.logs())
    for task_id in ("first", "cb"):
        starts = [each for each in own_ear.events(task_id) if each.name == "before_start"]
        assert starts[-1].named["kwargs"] == {"y": 2, "marked": task_id}
    own_ear.over(worker)


def test_a_cold_stop(own_ear: Ear) -> None:
    for row in (COLD_EARLY, COLD_LATE):
        for mode in row.modes:
            first = own_ear.start()
            task_id = own_ear.call(f"waits.{mode}")
            own_ear.waits(task_id)
            assert first.stop(signal.SIGQUIT) == 0
            if row is COLD_LATE:
                second = own_ear.start()
                own_ear.check(row, mode, task_id)
                own_ear.over(second)
            own_ear.check(row, mode, task_id)


def test_the_whole_worker_dies(own_ear: Ear) -> None:
    for row in (DIED_EARLY, DIED_LATE):
        for mode in row.modes:
            first = own_ear.start()
            task_id = own_ear.call(f"waits.{mode}")
            own_ear.waits(task_id)
            first.kill()
            second = own_ear.start()
            own_ear.check(row, mode, task_id)
            own_ear.over(second)


@pytest.mark.parametrize("name", EAGER)
def test_in_the_caller(own_ear: Ear, name: str) -> None:
    with heard_app.listening(*heard_app.NAMES):
        heard_app.app.tasks[f"{name}.early"].apply((1,), {"y": 2}, task_id="eager")
    assert own_ear.heard("eager") == EAGER[name]
    for event, text in zip(own_ear.events("eager"), EAGER[name], strict=True):
        own_ear.check_named(event, named(text, f"{name}.early", "eager"))


def test_the_life_of_a_worker(own_ear: Ear) -> None:
    """Every signal once and in Celery's order, also where all receivers raise."""
    node = "w@here"
    worker = own_ear.start(
        "-c", "1", "-n", node, ready=False, RAISE="1", LISTEN_TO=" ".join(heard_app.NAMES)
    )
    life = own_ear.life
    until(lambda: "worker_ready" in life(), what="the worker is ready")
    until(lambda: life().count("heartbeat_sent") > 1, what="it beats")
    assert worker.stop() == 0
    events = [each for each in own_ear.events() if each.name != "heartbeat_sent"]
    assert tuple(each.name for each in events) == LIFE
    told = {each.name: each.named for each in events}
    at = {each.name: each.pid for each in events}
    assert {pid for name, pid in at.items() if "process_" not in name or "before" in name} == {
        worker.pid
    }
    assert at["worker_process_init"] == at["worker_process_shutdown"] != worker.pid
    assert told["import_modules"] == {"sender": "Umbel"}
    set_up = {"sender": node, "instance": "Worker", "conf": "Settings"}
    assert told["celeryd_after_setup"] == set_up
    assert told["celeryd_init"] == {**set_up, "options": "WorkerOptions"}
    for name in ("worker_init", "worker_ready", "worker_shutdown", "worker_before_create_process"):
        assert told[name] == {"sender": "Worker"}
    assert told["worker_process_init"] == {"sender": node}
    assert told["worker_process_shutdown"] == {
        "sender": node, "pid": at["worker_process_shutdown"], "exitcode": 0,
    }  # fmt: skip
    assert told["worker_shutting_down"] == {
        "sender": node, "sig": "SIGTERM", "how": "Warm", "exitcode": 0,
    }  # fmt: skip
    logging = told["setup_logging"]
    assert logging.keys() == {"sender", "loglevel", "logfile", "format", "colorize"}
    assert (logging["sender"], logging["loglevel"], logging["logfile"]) == (None, 20, None)
    for event in own_ear.events():
        assert event.named.keys() - {"sender"} == getattr(signals, event.name).providing_args
        if event.name == "heartbeat_sent":
            assert (event.named, event.pid) == ({"sender": "Heart"}, worker.pid)


def test_the_loggers_are_told_where_nobody_sets_up_logging(own_ear: Ear) -> None:
    worker = own_ear.start()
    assert worker.stop() == 0
    events = {each.name: each for each in own_ear.events()}
    order = [each.name for each in own_ear.events()]
    logging = [name for name in order if name.startswith("after_setup")]
    assert logging == ["after_setup_logger", "after_setup_task_logger"]
    assert order.index("worker_init") < order.index(logging[0])
    assert order.index(logging[1]) < order.index("celeryd_after_setup")
    for name in logging:
        told = events[name].named
        assert told.keys() - {"sender"} == getattr(signals, name).providing_args
        assert told["logger"] == ("RootLogger" if name == logging[0] else "Logger")
        assert (told["sender"], told["loglevel"], told["logfile"]) == (None, 20, None)
    assert "%(task_name)s" in events[logging[1]].named["format"]


def test_each_process_is_announced_before_it_is_made(own_ear: Ear) -> None:
    worker = own_ear.start()
    own_ear.send_named("kills.early", "killed")
    life = own_ear.life
    until(lambda: life().count("worker_process_init") == 2, what=own_ear.logs())
    until(lambda: LOST[0] in own_ear.heard("killed"), what=own_ear.logs())
    processes = [name for name in life() if name in LIFE[5:7]]
    assert processes == [*LIFE[5:7], *LIFE[5:7]]
    own_ear.over(worker)


def test_settings_and_queues_may_be_changed_as_long_as_the_signals_say(own_ear: Ear) -> None:
    worker = own_ear.start("-n", "w@here", CHANGE="1")
    (record,) = own_ear.broker.runs()
    info = json.loads(record.info)
    assert (info["queues"], info["concurrency"]) == (["changed"], 3)
    own_ear.send_named("returns.early", "elsewhere", queue="changed")
    until(lambda: SUCCESS[-1] in own_ear.heard("elsewhere"), what=own_ear.logs())
    own_ear.over(worker)


def test_every_signal_and_handler_is_in_the_table_or_is_said_never_to_come() -> None:
    events = [event for row in ALL_ROWS for event in row.ours]
    events += [*LIFE, *SENT, "heartbeat_sent", "after_setup_logger", "after_setup_task_logger"]
    told = {event.partition(":")[0] for event in events}
    assert told | NEVER.keys() == {*heard_app.NAMES, *HANDLERS}
    assert not told & NEVER.keys()
    for name in NEVER:
        assert not re.search(rf"\b{name}\.send\(", _source()), name


def _source() -> str:
    folder = Path(signals.__file__).parent
    return "\n".join(path.read_text() for path in folder.rglob("*.py"))


@pytest.mark.parametrize("row", ALL_ROWS, ids=lambda row: row.id)
def test_what_differs_from_the_facts_is_a_listed_difference(row: Row) -> None:
    differs = row.facts is not None and row.facts != row.ours
    assert differs == bool(row.difference)
    if differs:
        rows = DIFFERENCES.read_text().splitlines()
        assert any(line.startswith(f"| {row.difference}") for line in rows), row.difference
