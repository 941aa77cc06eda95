"""What strangers write reaches no terminal as an order."""

from __future__ import annotations

import json
import sys
import unicodedata
import warnings
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.cli.helpers import Ended

from umbel import Umbel
from umbel.cli.output import visible
from umbel.exceptions import NoWorkerYet
from umbel.message import Dead, How, Message, Posting, Result, Settlement

Run = Callable[..., Ended]

EVIL = "a\x1b]0;owned\x07b\x9b31mc\x7fd\re\nf\x00g"
ABSENT = f"x{EVIL}\udcff"
"""No one's; and not UTF-8, as a terminal's clipboard may have it."""

pytestmark = pytest.mark.filterwarnings("ignore::umbel.exceptions.NoWorkerYet")


def _orders(text: str) -> set[str]:
    return {char for char in text if char != "\n" and unicodedata.category(char) in ("Cc", "Cs")}


@given(st.text())
def test_what_is_shown_holds_no_control_characters(text: str) -> None:
    assert not _orders(visible(text))
    assert "\n" not in visible(text)
    assert visible(visible(text)) == visible(text)
    visible(text).encode()


def test_all_else_stays_as_it_is() -> None:
    assert visible("ü ß 你好 🐍 \\x1b ‎") == "ü ß 你好 🐍 \\x1b ‎"
    assert visible("a\x1b[1m\tb\n") == "a\\x1b[1m\\tb\\n"
    assert visible("a\tb\nc\r", lines=True) == "a\tb\nc\\r"
    assert visible("\x9b\ud800") == "\\x9b\\ud800"


@pytest.fixture
def evil(app: Umbel) -> str:
    """A dead letter, a result, a queue and a worker of a stranger."""
    app.broker.declare([EVIL])
    app.send_task("a")
    [message] = app.broker.peek("celery", 1)
    assert isinstance(message, Message)
    headers = {**message.headers, "id": EVIL, "task": EVIL, "argsrepr": EVIL, "kwargsrepr": EVIL}
    app.broker.purge(["celery"])
    app.broker.publish([Posting(replace(message, headers=headers), routing_key="celery")] * 2)
    app.broker.enlist("run", "run#1", json.dumps({"hostname": EVIL}).encode())
    dead = Dead(EVIL, EVIL)
    taken = app.broker.turn("run#1", 1, queues=["celery"], limit=1).deliveries
    ends = [Settlement(each.lease, How.ACK, dead=dead) for each in taken]
    app.broker.turn("run#1", 2, queues=["celery"], settlements=ends)
    return EVIL


@pytest.mark.parametrize(
    "command",
    [
        ["dead", "list"],
        ["dead", "list", "--json"],
        ["dead", "show", EVIL],
        ["dead", "show", EVIL, "--json"],
        ["dead", "show", ABSENT],
        ["dead", "list", "--queue", ABSENT],
        ["dead", "requeue", "--all", "--queue", ABSENT],
        ["dead", "delete", "--all", "--queue", ABSENT],
        ["why", EVIL],
        ["why", EVIL, "--json"],
        ["why", ABSENT],
        ["result", "--timeout", "0", EVIL],
        ["queues"],
        ["queues", "--json"],
        ["status"],
        ["status", "--json"],
        ["purge"],
        ["purge", "-Q", ABSENT],
        ["purge", "--force"],
        ["dead", "delete", "--all"],
        ["call", ABSENT, "-a", "["],
        [ABSENT],
    ],
)
def test_no_command_shows_them(umbel: Run, evil: str, command: list[str]) -> None:
    ended = umbel("-A", "proj", *command)
    assert not _orders(ended.out)
    assert not _orders(ended.err)


def test_a_queue_that_is_not_utf_8_has_no_dead_letters(umbel: Run, evil: str) -> None:
    ended = umbel("-A", "proj", "dead", "list", "--queue", "a\udcff")
    assert (ended.code, ended.out) == (0, "")
    assert ended.err == "umbel: there are no dead letters of queue 'a\\udcff'\n"


def test_why_is_one_line(umbel: Run, evil: str) -> None:
    assert umbel("-A", "proj", "why", evil).out.count("\n") == 1


def test_json_gives_them_back(umbel: Run, evil: str) -> None:
    shown = json.loads(umbel("-A", "proj", "dead", "show", evil, "--json").out)
    assert (shown["id"], shown["task"], shown["reason"]) == (evil, evil, evil)


@pytest.mark.parametrize("watched", [True, False])
def test_a_value_is_exact_for_a_program_and_harmless_on_a_terminal(
    umbel: Run, app: Umbel, monkeypatch: pytest.MonkeyPatch, watched: bool
) -> None:
    value = "red \x1b[31m\n\tgreen"
    store = app.store
    assert store is not None
    meta = {"task_id": "id", "status": "SUCCESS", "result": value, "traceback": None}
    store.put([Result("id", "SUCCESS", json.dumps(meta).encode())])
    monkeypatch.setattr(sys.stdout, "isatty", lambda: watched)
    said = umbel("-A", "proj", "result", "id").out
    assert said == ("red \\x1b[31m\n\tgreen\n" if watched else f"{value}\n")


def test_a_warning_is_harmless(umbel: Run, capfd: pytest.CaptureFixture[str]) -> None:
    umbel("--help")  # from here on, warnings are one line
    warnings.showwarning(NoWorkerYet(EVIL), NoWorkerYet, "file", 1)
    said = capfd.readouterr().err
    assert said.startswith("umbel: a\\x1b")
    assert not _orders(said)
