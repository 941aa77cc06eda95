"""The commands that speak to a broker, without a worker."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.cli.helpers import Ended, bury, clean_environment, hear_interrupts, shell

from umbel import Umbel
from umbel.exchanges import Binding
from umbel.message import Dead, How, Message, Posting, Result, Settlement
from umbel.ports import Delayed, Ready

Run = Callable[..., Ended]

RUN = "f00d"

pytestmark = pytest.mark.filterwarnings("ignore::umbel.exceptions.NoWorkerYet")


# call


def test_call_prints_the_id_and_sends(umbel: Run, app: Umbel) -> None:
    ended = umbel("-A", "proj", "call", "proj.add", "-a", "[2]", "-k", '{"y": "ü"}')
    assert ended.code == 0
    [message] = app.broker.peek("celery", 10)
    assert ended.out == f"{message.id}\n"  # type: ignore[union-attr]
    assert json.loads(message.body)[:2] == [[2], {"y": "ü"}]  # type: ignore[union-attr]


def test_call_takes_every_option_of_a_call(umbel: Run, app: Umbel) -> None:
    sent = umbel("-A", "proj", "call", "proj.boom", "--countdown", "60", "--queue", "slow")
    [place] = app.broker.find(sent.out.strip())
    assert isinstance(place, Delayed)
    assert place.queue == "slow"
    assert place.due_at == pytest.approx(time.time() + 60, abs=30)
    sent = umbel("-A", "proj", "call", "x.y", "--expires", "3600", "--eta", "2020-01-01T00:00:00Z")
    assert isinstance(app.broker.find(sent.out.strip())[0], Ready)
    sent = umbel("-b", "sqlite:///tasks.db", "call", "x.y", "--expires", "2099-01-01T00:00:00")
    assert (sent.code, sent.err) == (0, "")


def test_call_remarks_on_an_unknown_name_and_sends(umbel: Run, app: Umbel) -> None:
    ended = umbel("-A", "proj", "call", "proj.ad")
    assert ended.code == 0
    assert ended.sentence == (
        "umbel: the app has no task 'proj.ad'; did you mean 'proj.add'? "
        "It waits for a worker that knows it"
    )
    assert umbel("-A", "proj", "call", "x.y").sentence == (
        "umbel: the app has no task 'x.y'; it waits for a worker that knows it"
    )
    assert app.broker.find(ended.out.strip())
    assert umbel("-q", "-A", "proj", "call", "proj.ad").err == ""


@pytest.mark.parametrize("text", ["nan", "inf", "-1", "1e11", "soon"])
def test_result_refuses_a_timeout_that_is_none(umbel: Run, app: Umbel, text: str) -> None:
    ended = umbel("-A", "proj", "result", "x", "--timeout", text)
    assert ended.code == 64
    assert f"--timeout {text}: expected seconds, from 0 and below a billion" in ended.sentence


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["-a", "[1, 2"], "--args '[1, 2' isn't JSON"),
        (["-a", "[" * 3000 + "]" * 3000], "--args"),
        (["-k", '{"x": ' + "[" * 200_000 + "}"], "is nested too deep"),
        (["-a", "[1, 2, 3]"], "proj.add"),
        (["-k", '{"x": 1, "z": 1}'], "proj.add"),
        (["-a", "{}"], "--args '{}' isn't a JSON array; expected one, such as '[1, 2]'"),
        (["-k", "[]"], "--kwargs '[]' isn't a JSON object"),
        (["-a", "[1, 2]", "--eta", "soon"], "eta is 'soon'; expected"),
        (["-a", "[1, 2]", "--expires", "never"], "expires is 'never'; expected"),
        (["--countdown", "x"], "'x' is not a valid float"),
    ],
)
def test_call_refuses_in_one_sentence(umbel: Run, options: list[str], said: str) -> None:
    ended = umbel("-A", "proj", "call", "proj.add", *options)
    assert ended.code == 64
    assert said in ended.sentence


def test_call_says_that_no_worker_ever_came(folder: Path) -> None:
    ended = shell("-A", "proj", "call", "proj.add", "-a", "[1, 2]", cwd=folder)
    assert ended.code == 0
    assert f"umbel: no worker has ever opened {folder}/tasks.db" in ended.sentence


# queues, purge


def test_queues_shows_where_messages_are(umbel: Run, app: Umbel) -> None:
    app.send_task("a")
    app.send_task("a", countdown=60)
    dead = app.send_task("a", priority=9)
    bury(app, dead.id)
    ended = umbel("-A", "proj", "queues")
    header, row = ended.out.splitlines()
    assert header.split() == ["queue", "ready", "delayed", "leased", "set", "aside", "dead"]
    assert row.split() == ["celery", "1", "1", "0", "0", "1"]
    [queue] = json.loads(umbel("-A", "proj", "queues", "--json").out)
    assert queue == {
        "name": "celery", "ready": 1, "delayed": 1, "leased": 0, "set_aside": 0, "dead": 1,
        "bindings": [],
    }  # fmt: skip


def test_queues_shows_what_leads_to_each(umbel: Run, app: Umbel) -> None:
    pdf = (("kind", "pdf"), ("x-match", "any"))
    app.broker.declare(
        ["celery"],
        [Binding("sport", "news", "topic", "sport.#"), Binding("a", "files", "headers", "", pdf)],
    )
    lines = umbel("-A", "proj", "queues").out.splitlines()
    assert [line.split() for line in lines[4:]] == [
        [],
        ["exchange", "type", "routing", "key", "arguments", "queue"],
        ["files", "headers", "kind='pdf'", "x-match='any'", "a"],
        ["news", "topic", "sport.#", "sport"],
    ]
    queues = {
        each["name"]: each for each in json.loads(umbel("-A", "proj", "queues", "--json").out)
    }
    assert queues["sport"]["bindings"] == [
        {"exchange": "news", "type": "topic", "routing_key": "sport.#", "arguments": {}}
    ]
    assert queues["a"]["bindings"][0]["arguments"] == dict(pdf)


def test_purge_deletes_what_waits_in_the_queues_named(umbel: Run, app: Umbel) -> None:
    for queue in ("celery", "a", "b"):
        app.send_task("x", queue=queue)
    app.send_task("x", queue="a", countdown=60)
    assert umbel("-A", "proj", "purge", "-f", "-Q", "a,celery", "-X", "celery").out == (
        "2 messages deleted from a\n"
    )
    assert {q.name: q.ready for q in app.broker.queues()} == {"a": 0, "b": 1, "celery": 1}
    assert umbel("-A", "proj", "purge", "--force").out == ("2 messages deleted from a, b, celery\n")
    assert umbel("-A", "proj", "purge", "-f").err == "umbel: nothing waits in a, b, celery\n"


def test_purge_asks_first(umbel: Run, app: Umbel, folder: Path) -> None:
    app.send_task("x")
    ended = shell("-A", "proj", "purge", cwd=folder)
    assert ended.code == 64
    assert "There is no terminal to ask at: add --force" in ended.sentence
    assert app.broker.queues()[0].ready == 1


def test_purge_names_the_queues_there_are(umbel: Run, app: Umbel) -> None:
    ended = umbel("-A", "proj", "purge", "-f", "-Q", "celry")
    assert ended.code == 1
    assert "there is no queue 'celry' at this broker; it has: 'celery'" in ended.sentence


# why, result


def test_why(umbel: Run, app: Umbel) -> None:
    sent = app.send_task("x", countdown=60)
    assert "delayed until" in umbel("-A", "proj", "why", sent.id).out
    data = json.loads(umbel("-A", "proj", "why", sent.id, "--json").out)
    assert data["id"] == sent.id
    assert data["case"] == "delayed"
    assert data["sentence"].startswith("delayed until")
    assert data["details"]["queue"] == "celery"
    assert "never seen" in umbel("-A", "proj", "why", "nobody").out


def test_result_says_what_it_waits_for_and_how_long(umbel: Run, app: Umbel) -> None:
    sent = app.send_task("x")
    ended = umbel("-A", "proj", "result", sent.id, "--timeout", "0")
    assert ended.code == 75
    assert "not ready: " in ended.sentence
    ended = umbel("-q", "-A", "proj", "result", sent.id, "--timeout", "0.05")
    assert ended.code == 75
    assert "no task 'y'" in umbel("-A", "proj", "result", sent.id, "-t", "y").sentence


# dead


def test_dead_letters_are_listed_and_shown(umbel: Run, app: Umbel) -> None:
    sent = app.send_task("some.task", [1], {"b": 2})
    bury(app, sent.id, "ValueError: two\nlines")
    ended = umbel("-A", "proj", "dead", "list")
    assert sent.id in ended.out
    assert "some.task" in ended.out
    assert "ValueError: two lines" in ended.out
    [listed] = json.loads(umbel("-A", "proj", "dead", "list", "--json").out)
    shown = json.loads(umbel("-A", "proj", "dead", "show", sent.id, "--json").out)
    assert listed == shown
    assert shown["id"] == sent.id
    assert shown["body"][:2] == [[1], {"b": 2}]
    text = umbel("-A", "proj", "dead", "show", sent.id).out
    for part in (sent.id, "some.task", "[1]", "{'b': 2}", "ValueError: two lines", "history"):
        assert part in text


def test_dead_list_of_one_queue(umbel: Run, app: Umbel) -> None:
    bury(app, app.send_task("x").id)
    assert json.loads(umbel("-A", "proj", "dead", "list", "--queue", "a", "--json").out) == []
    ended = umbel("-A", "proj", "dead", "list", "--queue", "a")
    assert ended.err == "umbel: there are no dead letters of queue 'a'\n"


def test_dead_requeue_and_delete(umbel: Run, app: Umbel) -> None:
    ids = [app.send_task("x").id for _ in range(3)]
    for task_id in ids:
        bury(app, task_id)
    assert umbel("-A", "proj", "dead", "requeue", ids[0]).out == "1 dead letter requeued\n"
    assert isinstance(app.broker.find(ids[0])[0], Ready)
    assert umbel("-A", "proj", "dead", "delete", ids[1]).out == "1 dead letter deleted\n"
    assert [letter.id for letter in app.dead.list()] == [ids[2]]
    assert umbel("-A", "proj", "dead", "delete", "--all").code == 64
    assert umbel("-A", "proj", "dead", "requeue", "--all").out == "1 dead letter requeued\n"
    assert app.dead.list() == []
    assert umbel("-A", "proj", "dead", "delete", "--all", "-f").out == "0 dead letters deleted\n"


@pytest.mark.parametrize("record", [b"no json", b"[]", b"{}", b'{"task_id": "id"}'])
def test_a_result_that_cannot_be_read_is_one_sentence(
    umbel: Run, app: Umbel, record: bytes
) -> None:
    assert app.store is not None
    app.store.put([Result("id", "SUCCESS", record)])
    ended = umbel("-A", "proj", "result", "id")
    assert (ended.code, ended.out) == (1, "")
    assert "a stored result" in ended.sentence
    assert umbel("-A", "proj", "why", "id").out == "finished: SUCCESS\n"


@pytest.mark.parametrize("command", ["result", "why"])
def test_an_empty_id_is_one_sentence(umbel: Run, app: Umbel, command: str) -> None:
    ended = umbel("-A", "proj", command, "")
    assert (ended.code, ended.out) == (64, "")
    assert "the id is empty" in ended.sentence


def test_dead_letters_without_an_id_are_not_lost_by_a_requeue(umbel: Run, app: Umbel) -> None:
    sent = app.send_task("a")
    [message] = app.broker.peek("celery", 1)
    assert isinstance(message, Message)
    stranger = replace(message, headers={**message.headers, "id": None})
    app.broker.publish([Posting(stranger, routing_key="celery")] * 2)
    for task_id in (sent.id, "", ""):
        bury(app, task_id)
    ended = umbel("-A", "proj", "dead", "requeue", "--all")
    assert (ended.code, ended.out) == (1, "1 dead letter requeued\n")
    assert "has no id" in ended.sentence
    assert "umbel dead delete ''" in ended.sentence
    assert [letter.id for letter in app.dead.list()] == ["", ""]
    ended = umbel("-A", "proj", "dead", "delete", "--all", "--force")
    assert (ended.code, ended.out) == (0, "2 dead letters deleted\n")
    assert app.dead.list() == []


def test_dead_list_is_bounded_and_says_so(umbel: Run, app: Umbel) -> None:
    app.send_task("a")
    [message] = app.broker.peek("celery", 1)
    assert isinstance(message, Message)
    for n in range(103):
        numbered = replace(message, headers={**message.headers, "id": f"id{n}"})
        app.broker.publish([Posting(numbered, routing_key="celery")])
    app.broker.enlist("run", "run#1", b"{}")
    taken = app.broker.turn("run#1", 1, queues=["celery"], limit=200).deliveries
    ends = [Settlement(each.lease, How.ACK, dead=Dead("it failed")) for each in taken]
    app.broker.turn("run#1", 2, settlements=ends)
    ended = umbel("-A", "proj", "dead", "list")
    assert ended.out.count("\n") == 101
    assert "id102" in ended.out
    assert ended.sentence == "umbel: these are the newest 100 of 104 dead letters; see --limit"
    ended = umbel("-A", "proj", "dead", "list", "--limit", "200")
    assert (ended.out.count("\n"), ended.err) == (105, "")
    assert len(json.loads(umbel("-A", "proj", "dead", "list", "--json").out)) == 104
    assert len(json.loads(umbel("-A", "proj", "dead", "list", "--json", "--limit", "3").out)) == 3


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["show", "n" * 300], 1, f"there is no dead letter '{'n' * 200}…';"),
        (["show", "nobody"], 1, "there is no dead letter 'nobody'"),
        (["requeue", "nobody"], 1, "`umbel why nobody` says where the task is"),
        (["delete", "nobody"], 1, "there is no dead letter 'nobody'"),
        (["requeue"], 64, "name the ids of dead letters, or say --all"),
        (["requeue", "nobody", "--all"], 64, "name the ids of dead letters, or say --all"),
        (["delete", "nobody", "--queue", "a"], 64, "--queue goes with --all"),
        (["lst"], 64, "no such command 'lst'"),
    ],
)
def test_dead_refuses_in_one_sentence(
    umbel: Run, app: Umbel, arguments: list[str], code: int, said: str
) -> None:
    ended = umbel("-A", "proj", "dead", *arguments)
    assert ended.code == code
    assert said in ended.sentence


# status


def test_status_names_those_alive(umbel: Run, app: Umbel) -> None:
    ended = umbel("-A", "proj", "status")
    assert ended.code == 69
    assert "no worker is online at this broker" in ended.sentence
    app.broker.enlist(RUN, None, b'{"hostname": "umbel@here"}')
    app.broker.enlist(RUN + "2", None, b"not JSON")
    ended = umbel("-A", "proj", "status")
    assert ended.code == 0
    assert ended.out == f"->  {RUN}2: OK\n->  umbel@here: OK\n"
    assert "2 nodes online." in ended.err
    nodes = json.loads(umbel("-A", "proj", "status", "--json").out)
    assert nodes == {"umbel@here": "OK", RUN + "2": "OK"}


def test_status_tells_who_gives_no_answer(umbel: Run, app: Umbel) -> None:
    app.broker.enlist(RUN, None, b'{"hostname": "frozen@here", "answers": true, "lease_time": 30}')
    app.broker.enlist(RUN + "2", None, b'{"hostname": "off@here", "answers": false}')
    ended = umbel("-A", "proj", "status", "-t", "0.1")
    assert ended.code == 0
    assert ended.out == "->  frozen@here: alive, but no answer within 0.1 s\n->  off@here: OK\n"
    assert "2 nodes online." in ended.err


def test_status_of_some(umbel: Run, app: Umbel) -> None:
    for number in (1, 2, 3):
        app.broker.enlist(f"{RUN}{number}", None, b'{"hostname": "w%d@here"}' % number)
    ended = umbel("-A", "proj", "status", "-t", "2", "-d", "w1@here,w3@here")
    assert ended.out == "->  w1@here: OK\n->  w3@here: OK\n"
    assert "2 nodes online." in ended.err
    ended = umbel("-A", "proj", "status", "-d", "w4@here")
    assert ended.code == 69
    assert ended.sentence == (
        "umbel: none of 'w4@here' is online at this broker; online: w1@here, w2@here, w3@here"
    )


# settings


def test_settings(umbel: Run, folder: Path) -> None:
    (folder / "sec.py").write_text(
        "from umbel import Umbel\napp = Umbel(broker='redis://u:hush@h/0', task_acks_late=True)\n"
    )
    ended = umbel("-A", "sec", "settings")
    assert "hush" not in ended.out
    assert "task_acks_late" in ended.out
    assert "worker_lease_time" not in ended.out
    assert "worker_lease_time" in umbel("-A", "sec", "settings", "--all").out
    [late, beat] = json.loads(
        umbel("-A", "sec", "settings", "task_acks_late", "beat_schedule", "--json").out
    )
    assert (late["value"], late["default"], late["state"]) == (True, False, "honoured")
    assert beat["state"] == "later"
    assert beat["sentence"]
    assert umbel("settings").err == "umbel: every setting has its default; --all shows them\n"


def test_settings_names_the_nearest(umbel: Run) -> None:
    ended = umbel("settings", "task_ack_late")
    assert ended.code == 64
    assert "did you mean 'task_acks_late'" in ended.sentence


# whatever the command


def test_without_app_and_broker(umbel: Run, folder: Path) -> None:
    ended = umbel("queues")
    assert ended.code == 78
    assert (
        f"neither an app (-A) nor a broker (-b) is named, and there is no umbel.db in {folder}"
        in (ended.sentence)
    )
    assert not (folder / "umbel.db").exists()
    with Umbel(set_as_current=False) as default:
        default.broker.declare(["celery"])
    assert umbel("queues").code == 0


@pytest.mark.parametrize(
    ("url", "code", "said"),
    [
        ("amqp://h", 78, "amqp:// comes with the release"),
        ("redis://127.0.0.1:1", 69, "redis:127.0.0.1:1 can't be reached"),
        ("redis://127.0.0.1/tasks", 78, "has the db 'tasks'"),
        ("sqlit:///x", 78, "did you mean sqlite://?"),
        ("sqlite:////nowhere/at/all.db", 69, "/nowhere/at/all.db"),
        ("sqlite:///proj.py", 69, "proj.py"),
    ],
)
def test_a_broker_that_cannot_be(umbel: Run, url: str, code: int, said: str) -> None:
    ended = umbel("-b", url, "queues")
    assert ended.code == code
    assert said in ended.sentence


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["wrker"], "there is no command 'wrker'; did you mean 'worker'?"),
        (["zzz"], "there are: worker, call, "),
        (["beat"], "Celery's command 'beat' comes with a later release"),
        (["multi", "start"], "process manager"),
        (["queues", "-A", "proj"], "-A stands before the command, not behind it: umbel -A"),
        (["worker", "--app=proj"], "--app stands before the command"),
        (["--nope", "queues"], "no such option"),
        (["queues", "--jsn"], "see: umbel queues --help"),
        (["worker"], "umbel -A proj worker"),
        (["result"], "missing argument 'ID'"),
    ],
)
def test_a_slip_of_the_fingers(umbel: Run, arguments: list[str], said: str) -> None:
    ended = umbel(*arguments)
    assert ended.code == 64
    assert said in ended.sentence


def test_a_folder_that_is_not_there(umbel: Run) -> None:
    ended = umbel("--workdir", "nope", "queues")
    assert ended.code == 66
    assert "--workdir nope: can't change to that folder: No such file" in ended.sentence


@pytest.mark.parametrize(
    "command",
    [
        ("queues",),
        ("dead", "list"),
        ("dead", "requeue", "--all"),
        ("why", "x"),
        ("status",),
        ("result", "x", "--timeout", "0"),
        ("purge", "-f"),
        ("prune",),
    ],
    ids=" ".join,
)
def test_a_broker_that_is_only_read_is_not_made(
    umbel: Run, folder: Path, command: tuple[str, ...]
) -> None:
    before = set(folder.iterdir())
    for options in (("-b", "sqlite:///typo.db"), ("-A", "proj")):
        ended = umbel(*options, *command)
        assert ended.code == 69
        name = "typo" if "-b" in options else "tasks"
        assert f"there is no broker file {folder}/{name}.db; check the path" in ended.sentence
    assert {path for path in folder.iterdir() if path.name != "__pycache__"} == before


def test_call_makes_the_broker_that_is_named(umbel: Run, folder: Path) -> None:
    assert umbel("-b", "sqlite:///new.db", "call", "x").code == 0
    assert (folder / "new.db").exists()


def test_a_result_is_read_where_the_broker_is_gone(umbel: Run, folder: Path) -> None:
    (folder / "results").mkdir()
    with Umbel(result_backend="file://results", set_as_current=False) as client:
        assert client.store is not None
        meta = b'{"task_id": "id", "status": "SUCCESS", "result": 7, "traceback": null}'
        client.store.put([Result("id", "SUCCESS", meta)])
    options = ("-b", "sqlite:///gone.db", "--result-backend", "file://results")
    assert umbel(*options, "result", "id").out == "7\n"
    ended = umbel(*options, "result", "other", "--timeout", "0")
    assert (ended.code, ended.out) == (69, "")
    assert "there is no broker file" in ended.sentence


def test_a_result_store_of_its_own(umbel: Run, folder: Path, app: Umbel) -> None:
    ended = umbel("-A", "proj", "--result-backend", "sqlite:///other.db", "why", "x")
    assert ended.code == 0
    assert (folder / "other.db").exists()


def test_ctrl_c_is_no_traceback(folder: Path, app: Umbel) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "umbel", "-A", "proj", "result", "nobody"],
        cwd=folder,
        env=clean_environment(),
        preexec_fn=hear_interrupts,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stderr is not None
            assert "waiting" in process.stderr.readline()
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 130
            assert process.stderr.read().split("\n")[-2] == "umbel: interrupted"
        finally:
            process.kill()
