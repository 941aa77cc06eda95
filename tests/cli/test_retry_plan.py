"""``umbel retry-plan``: what it says is what the task's options do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.helpers import Ended

Run = Callable[..., Ended]

PROJ = """
from datetime import timedelta
from umbel import Umbel
from umbel.retry import Exponential, Fixed, Linear

app = Umbel("proj", broker="sqlite:///tasks.db")

class Strange(Exception):
    def __init__(self, status):
        self.status = status

def by_status(retries, exc):
    return exc.status * retries

@app.task(
    autoretry_for={ConnectionError: Exponential(jitter="none"), TimeoutError: Linear(10)},
    attempts=6, dead_letter_for=(PermissionError, ValueError), dont_autoretry_for=BrokenPipeError,
)
def mapped(): ...

@app.task(autoretry_for=(OSError, KeyError), retry_backoff=5, retry_backoff_max=12)
def celery(): ...

@app.task(bind=True, default_retry_delay=7, max_retries=None)
def plain(self): ...

@app.task(bind=True, retry_backoff=Fixed(3))
def asked(self): ...

@app.task(autoretry_for=Strange, retry_backoff=by_status)
def strange(): ...

@app.task(autoretry_for=OSError, retry_backoff=lambda retries, exc: 2 * retries, max_retries=2)
def function(): ...

@app.task(autoretry_for=OSError, retry_backoff=Fixed(10), retry_max_elapsed=35, max_retries=9)
def limited(): ...

@app.task(autoretry_for=OSError, retry_kwargs={"countdown": 4, "max_retries": 1})
def kwargs(): ...

@app.task(autoretry_for=OSError, retry_kwargs={"countdown": timedelta(minutes=1), "max_retries": 1})
def minute(): ...
"""


@pytest.fixture
def folder(folder: Path) -> Path:
    (folder / "proj.py").write_text(PROJ)
    return folder


def plan(umbel: Run, task: str, *options: str) -> dict[str, Any]:
    ended = umbel("-A", "proj", "retry-plan", f"proj.{task}", *options, "--json")
    assert (ended.code, ended.err) == (0, "")
    data: dict[str, Any] = json.loads(ended.out)
    return data


def delays(one: dict[str, Any], case: str = "latest") -> list[float]:
    return [each["delay"][case] for each in one["retries"]]


def test_a_plan_for_every_class_of_a_mapping(umbel: Run) -> None:
    data = plan(umbel, "mapped")
    first, second = data["plans"]
    assert (first["exceptions"], delays(first)) == (["ConnectionError"], [1, 2, 4, 8, 16])
    assert (second["exceptions"], delays(second)) == (["TimeoutError"], [10, 20, 30, 40, 50])
    assert first["total"] == {"earliest": 31, "expected": 31, "latest": 31}
    assert [each["since_first_run"]["latest"] for each in second["retries"]] == [
        10,
        30,
        60,
        100,
        150,
    ]
    assert (first["max_retries"], first["retry_after_maximum"], first["more"]) == (5, 600, False)
    assert data["never_retried"] == ["PermissionError", "ValueError"]


def test_celerys_options(umbel: Run) -> None:
    (one,) = plan(umbel, "celery")["plans"]
    assert one["exceptions"] == ["OSError", "KeyError"]
    assert [delays(one, case) for case in ("earliest", "expected", "latest")] == [
        [0, 0, 0],
        [2.5, 5, 6],
        [5, 10, 12],
    ]
    assert one["total"] == {"earliest": 0, "expected": 13.5, "latest": 27}
    assert one["retry_after_maximum"] is None
    assert one["policy"] == "retry_backoff=5, retry_backoff_max=12, retry_jitter=True"


@pytest.mark.parametrize(
    ("task", "policy", "expected"),
    [
        ("plain", "default_retry_delay=7", [7] * 20),
        ("asked", "Fixed(delay=3, maximum=None, jitter='none')", [3, 3, 3]),
        ("function", "the function <lambda>", [0, 2]),
        ("kwargs", "retry_kwargs countdown=4", [4]),
        ("minute", "retry_kwargs countdown=60", [60]),
        ("limited", "Fixed(delay=10, maximum=None, jitter='none')", [10, 10, 10]),
    ],
)
def test_other_ways_to_say_it(umbel: Run, task: str, policy: str, expected: list[float]) -> None:
    (one,) = plan(umbel, task)["plans"]
    assert (one["policy"], delays(one)) == (policy, expected)


def test_a_plan_without_end_is_cut(umbel: Run) -> None:
    (one,) = plan(umbel, "plain", "--retries", "3")["plans"]
    assert (one["max_retries"], one["total"]["latest"], one["more"]) == (None, 21, True)
    said = umbel("-A", "proj", "retry-plan", "proj.plain", "--retries", "3").out
    assert "no limit of retries" in said
    assert "total of these: earliest 21 s" in said


def test_for_people(umbel: Run) -> None:
    ended = umbel("-A", "proj", "retry-plan", "proj.mapped")
    first, second, header, row, *_ = ended.out.splitlines()
    policy = "Exponential(base=1, factor=2, maximum=600, jitter='none')"
    assert first == f"proj.mapped after ConnectionError: {policy}"
    assert second == "retries: 5, runs: 6"
    assert header.split()[:5] == ["retry", "earliest", "expected", "latest", "total:"]
    assert row.split() == ["1"] * 7
    assert "total: earliest 31 s, expected 31 s, latest 31 s\n" in ended.out
    assert "a Retry-After makes a delay longer, up to 600 s" in ended.out
    assert ended.out.endswith("never retried: PermissionError, ValueError\n")
    ended = umbel("-A", "proj", "retry-plan", "proj.limited")
    assert "none later than 35 s after the first run began" in ended.out


@pytest.mark.parametrize(
    "name", ["builtins.ConnectionResetError", "ConnectionResetError", "ConnectionError"]
)
def test_one_exception(umbel: Run, name: str) -> None:
    (one,) = plan(umbel, "mapped", "--exception", name)["plans"]
    assert one["exceptions"] == [name.rpartition(".")[2]]
    assert delays(one) == [1, 2, 4, 8, 16]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("UnicodeError", "dead_letter_for names ValueError"),
        ("BrokenPipeError", "dont_autoretry_for names BrokenPipeError"),
        ("KeyError", "autoretry_for doesn't name it"),
        ("Reject", "by raising it, a task says itself how it ends"),
    ],
)
def test_exceptions_that_lead_to_no_retry(umbel: Run, name: str, why: str) -> None:
    ended = umbel("-A", "proj", "retry-plan", "proj.mapped", "--exception", name)
    assert ended.code == 0
    assert f"proj.mapped isn't retried after {name}: {why}" in ended.out
    data = plan(umbel, "mapped", "--exception", name)
    assert (data["plans"], why in data["reason"]) == ([], True)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["proj.maped"], 64, "the app has no task 'proj.maped'; did you mean 'proj.mapped'?"),
        (["proj.mapped", "--exception", "Nope"], 64, "there is no such exception class"),
        (["proj.mapped", "--exception", "int"], 64, "write module.Class"),
        (["proj.mapped", "--exception", "nope.Nope"], 64, "can't import 'nope'"),
        (["proj.strange"], 1, "the function by_status raised AttributeError for a Strange"),
    ],
)
def test_what_cannot_be_planned(umbel: Run, arguments: list[str], code: int, said: str) -> None:
    ended = umbel("-A", "proj", "retry-plan", *arguments)
    assert ended.code == code
    assert said in ended.sentence


def test_it_needs_an_app(umbel: Run) -> None:
    ended = umbel("retry-plan", "proj.mapped")
    assert ended.code == 64
    assert "no app is named" in ended.sentence
